//! The cgroup that a pod's containers live in.

use keelson_core::pod::Step;
use keelson_core::qos::qos_of;
use keelson_core::resources::pod_cgroup;
use keelson_host::cgroup::{Limits, PodCgroup};

use super::Stop;
use crate::worker::Worker;
use crate::worker::blocking::blocking;

impl Worker {
    pub(super) async fn ensure_cgroup(&mut self) -> Result<(), Stop> {
        let Some(desired) = &self.state.desired else { return Ok(()) };
        let kubelet = &self.node.settings.kubelet;
        let wanted = pod_cgroup(&desired.pod, kubelet.cpu_cfs_quota, self.node.cfs_period_micros());
        let positive = |v: Option<i64>| v.and_then(|v| u64::try_from(v).ok());
        let limits = Limits {
            cpu_shares: positive(wanted.cpu_shares),
            cpu_quota_micros: wanted.cpu_quota,
            cpu_period_micros: positive(wanted.cpu_period),
            memory_bytes: wanted.memory_limit,
            pids: Some(kubelet.pod_pids_limit).filter(|n| *n > 0),
            ..Limits::default()
        };
        let pod = PodCgroup { uid: self.uid.clone(), qos: qos_of(&desired.pod), limits };
        let cgroups = self.node.cgroups.clone();
        let done = blocking(move || cgroups.ensure_pod(&pod)).await;
        self.settle_step(Step::EnsureCgroup, done.map(drop))
    }

    pub(super) async fn remove_cgroup(&mut self) -> Result<(), Stop> {
        let (cgroups, uid) = (self.node.cgroups.clone(), self.uid.clone());
        let done = blocking(move || cgroups.remove_pod(&uid)).await;
        self.settle_step(Step::RemoveCgroup, done.map(drop))
    }
}
