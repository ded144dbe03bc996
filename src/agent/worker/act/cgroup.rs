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
        let mut wanted = pod_cgroup(&desired.pod, kubelet.cpu_cfs_quota, self.node.cfs_period_micros());
        wanted.hugepages = self.node.machine.resources.page_limits(&wanted.hugepages);
        let pids = Some(kubelet.pod_pids_limit).filter(|n| *n > 0);
        let limits = Limits { pids, ..Limits::from(wanted) };
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
