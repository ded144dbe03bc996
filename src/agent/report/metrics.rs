//! What the agent counts about itself, under the kubelet's names where dashboards know them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keelson_core::ids::PodUid;
use keelson_core::observed::ContainerState;
use keelson_core::probe::{Outcome, ProbeKind};
use keelson_kit::metrics::{Kind, LabelledCounter, Text};

use crate::registry::RuntimePod;
use crate::report::resize_metrics::ResizeMetrics;
use crate::report::start_metrics::StartMetrics;

#[derive(Default)]
pub struct Metrics {
    pub starts: StartMetrics,
    pub resizes: ResizeMetrics,
    started_pods: LabelledCounter<0>,
    own_users: LabelledCounter<0>,
    own_users_failed: LabelledCounter<0>,
    image_volumes: LabelledCounter<0>,
    image_volumes_mounted: LabelledCounter<0>,
    image_volumes_failed: LabelledCounter<0>,
    started_containers: LabelledCounter<1>,
    failed_containers: LabelledCounter<2>,
    failed_pods: LabelledCounter<0>,
    rejected_pods: LabelledCounter<1>,
    rotated_logs: LabelledCounter<0>,
    log_streams: Arc<AtomicU64>,
    probes: Mutex<BTreeMap<(PodUid, String, ProbeKind), Probes>>,
}

#[derive(Default)]
struct Probes {
    namespace: String,
    pod: String,
    successful: u64,
    failed: u64,
    unknown: u64,
}

/// A log that is being read.
pub struct LogStream(Arc<AtomicU64>);

impl Drop for LogStream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Metrics {
    pub fn sandbox_made(&self) {
        self.started_pods.count([]);
    }

    /// A sandbox with users of its own was asked for, and came about or not.
    pub fn own_users(&self, made: bool) {
        self.own_users.count([]);
        if !made {
            self.own_users_failed.count([]);
        }
    }

    /// A container with so many mounts of images was asked for; `error` is what the runtime says if it was not made.
    pub fn image_volumes(&self, mounts: usize, error: Option<&str>) {
        // What a runtime says first of a mount of an image that failed.
        let failed = error.is_some_and(|e| e.starts_with("ImageVolumeMountFailed"));
        for _ in 0..mounts {
            self.image_volumes.count([]);
            let counted = if failed { &self.image_volumes_failed } else { &self.image_volumes_mounted };
            counted.count([]);
        }
    }

    pub fn sandbox_not_made(&self) {
        self.failed_pods.count([]);
    }

    /// `kind` is container or init_container.
    pub fn container_started(&self, kind: &str) {
        self.started_containers.count([kind]);
    }

    pub fn container_not_started(&self, kind: &str, reason: &str) {
        self.failed_containers.count([reason, kind]);
    }

    pub fn pod_rejected(&self, reason: &str) {
        self.rejected_pods.count([reason]);
    }

    pub fn log_rotated(&self) {
        self.rotated_logs.count([]);
    }

    /// Somebody reads a log, until this is dropped.
    pub fn log_stream(&self) -> LogStream {
        self.log_streams.fetch_add(1, Ordering::Relaxed);
        LogStream(self.log_streams.clone())
    }

    pub fn probed(&self, pod: (&PodUid, &str, &str), container: &str, kind: ProbeKind, outcome: &Outcome) {
        let (uid, namespace, name) = pod;
        let mut probes = lock(&self.probes);
        let probes = probes.entry((uid.clone(), container.to_owned(), kind)).or_insert_with(|| Probes {
            namespace: namespace.to_owned(),
            pod: name.to_owned(),
            ..Probes::default()
        });
        match outcome {
            Outcome::Success | Outcome::Warning(_) => probes.successful += 1,
            Outcome::Failure(_) => probes.failed += 1,
            Outcome::Unknown(_) => probes.unknown += 1,
        }
    }

    /// Nothing of a pod that is gone is kept.
    pub fn forget(&self, uid: &PodUid) {
        lock(&self.probes).retain(|(of, _, _), _| of != uid);
    }

    pub fn write(&self, text: &mut Text, node: &str, pods: &[Arc<RuntimePod>]) {
        text.family("kubelet_node_name", Kind::Gauge, "The node's name; always 1");
        text.sample(&[("node", node)], 1);
        let running = pods.iter().filter(|p| p.sandbox.as_ref().is_some_and(|s| s.ready)).count();
        text.single("kubelet_running_pods", Kind::Gauge, "Pods that have a running sandbox", running);
        text.family("kubelet_running_containers", Kind::Gauge, "Containers by their state");
        for (state, label) in [
            (ContainerState::Created, "created"),
            (ContainerState::Exited, "exited"),
            (ContainerState::Running, "running"),
            (ContainerState::Unknown, "unknown"),
        ] {
            let count: usize =
                pods.iter().map(|p| p.containers.iter().filter(|c| c.state == state).count()).sum();
            text.sample(&[("container_state", label)], count);
        }
        self.starts.write(text);
        self.started_pods.write(text, "kubelet_started_pods_total", [], "Sandboxes that were made");
        let help = "Sandboxes with users of their own that were asked for";
        self.own_users.write(text, "kubelet_started_user_namespaced_pods_total", [], help);
        let help = "Sandboxes with users of their own that were not made";
        self.own_users_failed.write(text, "kubelet_started_user_namespaced_pods_errors_total", [], help);
        for (counter, name, help) in [
            (
                &self.image_volumes,
                "kubelet_image_volume_requested_total",
                "Mounts of images that were asked for",
            ),
            (
                &self.image_volumes_mounted,
                "kubelet_image_volume_mounted_succeed_total",
                "Mounts of images that were made",
            ),
            (
                &self.image_volumes_failed,
                "kubelet_image_volume_mounted_errors_total",
                "Mounts of images that failed",
            ),
        ] {
            counter.write(text, name, [], help);
        }
        let help = "Sandboxes that could not be made";
        self.failed_pods.write(text, "kubelet_started_pods_errors_total", [], help);
        let help = "Containers that were started";
        self.started_containers.write(text, "kubelet_started_containers_total", ["container_type"], help);
        let help = "Containers that could not be started";
        let labels = ["code", "container_type"];
        self.failed_containers.write(text, "kubelet_started_containers_errors_total", labels, help);
        let help = "Pods that this node would not run";
        self.rejected_pods.write(text, "kubelet_admission_rejections_total", ["reason"], help);
        self.rotated_logs.write(
            text,
            "keelson_log_rotations_total",
            [],
            "Logs of containers that were rotated",
        );
        let streams = self.log_streams.load(Ordering::Relaxed);
        text.single("keelson_log_streams", Kind::Gauge, "Logs that are being read", streams);
    }

    pub fn write_probes(&self, text: &mut Text) {
        text.family("prober_probe_total", Kind::Counter, "Probes by what they found");
        for ((uid, container, kind), probes) in lock(&self.probes).iter() {
            for (result, count) in
                [("successful", probes.successful), ("failed", probes.failed), ("unknown", probes.unknown)]
            {
                if count == 0 {
                    continue;
                }
                let labels = [
                    ("container", container.as_str()),
                    ("namespace", &probes.namespace),
                    ("pod", &probes.pod),
                    ("pod_uid", uid.as_str()),
                    ("probe_type", kind.title()),
                    ("result", result),
                ];
                text.sample(&labels, count);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_forgotten_with_their_pod() {
        let metrics = Metrics::default();
        let uid = PodUid::try_from("u").expect("uid");
        let pod = (&uid, "ns", "web");
        metrics.probed(pod, "main", ProbeKind::Liveness, &Outcome::Success);
        metrics.probed(pod, "main", ProbeKind::Liveness, &Outcome::Failure("no".into()));
        let written = |metrics: &Metrics| {
            let mut text = Text::default();
            metrics.write_probes(&mut text);
            text.finish()
        };
        let line = "prober_probe_total{container=\"main\",namespace=\"ns\",pod=\"web\",pod_uid=\"u\",\
                    probe_type=\"Liveness\",result=\"failed\"} 1\n";
        assert!(written(&metrics).contains(line), "{}", written(&metrics));
        metrics.forget(&uid);
        assert!(!written(&metrics).contains("web"));
    }
}
