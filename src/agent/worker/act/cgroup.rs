//! The cgroup that a pod's containers live in.

use keelson_core::pod::Step;
use keelson_core::qos::qos_of;
use keelson_core::resources::pod_cgroup;
use keelson_core::timeline::{Place, Step as Timed};
use keelson_host::cgroup::{Limits, PodCgroup};

use super::Stop;
use crate::worker::Worker;
use crate::worker::blocking::blocking;

impl Worker {
    pub(super) async fn ensure_cgroup(&mut self) -> Result<(), Stop> {
        let Some(desired) = self.state.bounded_pod(&self.observed) else { return Ok(()) };
        let kubelet = &self.node.settings.kubelet;
        let mut wanted = pod_cgroup(&desired, kubelet.cpu_cfs_quota, self.node.cfs_period_micros());
        self.node.machine.resources.complete_pod(&desired, &mut wanted);
        let pids = Some(kubelet.pod_pids_limit).filter(|n| *n > 0);
        let limits = Limits { pids, ..Limits::from(wanted) };
        let pod = PodCgroup { uid: self.uid.clone(), qos: qos_of(&desired), limits };
        let cgroups = self.node.cgroups.clone();
        let timing = self.recorder.begin(Timed::Cgroup, None, Place::Node);
        let done = blocking(move || cgroups.ensure_pod(&pod)).await;
        timing.ended(&done);
        self.settle_step(Step::EnsureCgroup, done.map(drop))?;
        self.state.cgroup_ensured(&self.observed);
        Ok(())
    }

    pub(super) async fn remove_cgroup(&mut self) -> Result<(), Stop> {
        let (cgroups, uid) = (self.node.cgroups.clone(), self.uid.clone());
        let timing = self.recorder.begin(Timed::CgroupRemoved, None, Place::Node);
        let done = blocking(move || cgroups.remove_pod(&uid)).await;
        timing.ended(&done);
        self.settle_step(Step::RemoveCgroup, done.map(drop))?;
        self.node.user_namespaces.release(&self.uid).await;
        Ok(())
    }
}
