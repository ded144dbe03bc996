//! Gives a pod that runs what it was granted: its cgroup and its containers, in the order of the plan.

use std::time::Instant;

use k8s_openapi::api::core::v1::{Container, Pod};
use keelson_core::allocation::{PodPart, Resize, ResizeStep, Shrink};
use keelson_core::pod::ActionOutcome;
use keelson_core::qos::qos_of;
use keelson_core::resources::{
    LinuxResources, container_resources, pod_cgroup, sandbox_overhead, sandbox_resources,
};
use keelson_core::timeline::{Place, Step};
use keelson_cri::convert::linux_resources;
use keelson_cri::proto::LinuxContainerResources;
use keelson_host::cgroup::{Detail, Limits, PodCgroup};

use super::Stop;
use crate::worker::Worker;
use crate::worker::blocking::blocking;

impl Worker {
    pub(super) async fn resize(&mut self, resize: Resize) -> Result<(), Stop> {
        let began = Instant::now();
        let timing = self.recorder.begin(Step::Resize, None, Place::Runtime);
        let done = self.take_steps(resize).await;
        timing.ended(&done);
        self.node.reports.metrics.resizes.actuated(done.is_ok(), began.elapsed());
        self.settle(ActionOutcome::Resized(done))
    }

    async fn take_steps(&mut self, resize: Resize) -> Result<(), String> {
        self.room_to_shrink(&resize.shrinks).await?;
        for step in resize.steps {
            match &step {
                ResizeStep::Pod(part) => self.resize_pod(*part).await?,
                ResizeStep::Container { name, id, .. } => {
                    let pod = self.state.after_step(&step).ok_or("the pod is not known any more")?;
                    let Some(resources) = self.container_figures(&pod, name) else { continue };
                    let done = self.node.runtime.update_container_resources(id, resources).await;
                    done.map_err(|e| format!("updating container {name:?}: {e}"))?;
                }
                ResizeStep::PodDone(_) => {}
            }
            let _ = self.settle(ActionOutcome::ResizeStep(step));
        }
        Ok(())
    }

    fn container_figures(&self, pod: &Pod, name: &str) -> Option<LinuxContainerResources> {
        let mut all = pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers));
        let container = all.find(|c| c.name == name)?;
        Some(linux_resources(&self.linux_resources(pod, container)))
    }

    /// What a container's cgroup is to have.
    pub(super) fn linux_resources(&self, pod: &Pod, container: &Container) -> LinuxResources {
        let kubelet = &self.node.settings.kubelet;
        let mut resources = container_resources(
            pod,
            container,
            &self.node.machine.node_capacity(),
            kubelet.cpu_cfs_quota,
            self.node.cfs_period_micros(),
        );
        self.node.machine.resources.complete(pod, container, &mut resources);
        let bound = self.node.managers.binding(&self.uid, &container.name);
        resources.cpuset_cpus = bound.cpus.unwrap_or_default().to_string();
        resources.cpuset_mems = bound.memory_nodes.unwrap_or_default().to_string();
        resources
    }

    /// The runtime is told first: one that gives the pod a machine of its own may refuse. Most know nothing of it.
    async fn resize_pod(&self, part: PodPart) -> Result<(), String> {
        let Some(desired) = self.state.desired.clone() else { return Ok(()) };
        let (quota, period) = (self.node.settings.kubelet.cpu_cfs_quota, self.node.cfs_period_micros());
        if let Some(sandbox) = self.observed.latest_sandbox() {
            let told = [
                sandbox_overhead(&desired.pod, quota, period),
                sandbox_resources(&desired.pod, quota, period),
            ];
            let [overhead, resources] =
                told.map(|r| linux_resources(&self.node.machine.resources.complete_sandbox(r)));
            match self.node.runtime.update_sandbox_resources(&sandbox.id, overhead, resources).await {
                Err(e) if !e.is_unimplemented() => {
                    return Err(format!("the runtime rejects the resize: {e}"));
                }
                _ => {}
            }
        }
        let mut wanted = pod_cgroup(&desired.pod, quota, period);
        self.node.machine.resources.complete_pod(&desired.pod, &mut wanted);
        let all = Limits::from(wanted);
        let limits = match part {
            PodPart::MemoryLimit => {
                Limits { memory_bytes: all.memory_bytes, kept_memory: all.kept_memory, ..Limits::default() }
            }
            PodPart::CpuLimit => Limits {
                cpu_quota_micros: all.cpu_quota_micros,
                cpu_period_micros: all.cpu_period_micros,
                ..Limits::default()
            },
            PodPart::CpuRequest => Limits { cpu_shares: all.cpu_shares, ..Limits::default() },
        };
        let pod = PodCgroup { uid: self.uid.clone(), qos: qos_of(&desired.pod), limits };
        let cgroups = self.node.cgroups.clone();
        blocking(move || cgroups.ensure_pod(&pod)).await.map(drop).map_err(|e| e.to_string())
    }

    /// Nothing is bounded below what it uses: the kernel would kill it.
    async fn room_to_shrink(&self, shrinks: &[Shrink]) -> Result<(), String> {
        let Some(desired) = self.state.desired.as_ref().filter(|_| !shrinks.is_empty()) else {
            return Ok(());
        };
        let Some(place) = self.node.cgroups.pod_place(&self.uid, qos_of(&desired.pod)) else { return Ok(()) };
        let (cgroups, shrinks) = (self.node.cgroups.clone(), shrinks.to_vec());
        let refused = blocking(move || {
            let mut dir = cgroups.at(&place);
            let below = dir.below();
            let mut refused = vec![];
            for Shrink { container, limit } in shrinks {
                let (what, used) = match &container {
                    None => ("pod".to_owned(), dir.usage("", Detail::CpuAndMemory)),
                    Some((name, id)) => {
                        let own = below.iter().find(|b| b.contains(id.as_str()));
                        let used = own.and_then(|own| dir.usage(own, Detail::CpuAndMemory));
                        (format!("container {name:?}"), used)
                    }
                };
                match used.and_then(|u| u.memory) {
                    None => refused.push(format!("missing {what} memory usage")),
                    Some(used) if used >= u64::try_from(limit).unwrap_or(0) => refused.push(format!(
                        "attempting to set {what} memory limit ({limit}) below current usage ({used})"
                    )),
                    Some(_) => {}
                }
            }
            Ok::<_, std::convert::Infallible>(refused)
        })
        .await
        .map_err(|e| e.to_string())?;
        match refused.as_slice() {
            [] => Ok(()),
            [one] => Err(format!("cannot decrease memory limits: {one}")),
            many => Err(format!("cannot decrease memory limits: [{}]", many.join(", "))),
        }
    }
}
