//! How long pods take to start, under the kubelet's names. Every figure comes from the pod's timeline.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use keelson_core::timeline::StartLatency;
use keelson_kit::metrics::{Histogram, Kind, LabelledCounter, LabelledHistogram, Text};

/// As the kubelet has them for the start of a pod.
const START_BOUNDS: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0,
    480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
const PULL_BOUNDS: &[f64] = &[
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0,
    2700.0, 3600.0,
];
/// Prometheus' own.
const CALL_BOUNDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

pub struct StartMetrics {
    running: Mutex<Histogram>,
    total: Mutex<Histogram>,
    sli: Mutex<Histogram>,
    /// Of the first pod with a network of its own.
    first_network_sli: Mutex<Option<f64>>,
    worker: Mutex<Histogram>,
    pulls: LabelledHistogram,
    sandboxes: LabelledHistogram,
    failed_sandboxes: LabelledCounter<1>,
}

impl Default for StartMetrics {
    fn default() -> Self {
        let starts = || Mutex::new(Histogram::new(START_BOUNDS));
        Self {
            running: starts(),
            total: starts(),
            sli: starts(),
            first_network_sli: Mutex::default(),
            worker: Mutex::new(Histogram::new(CALL_BOUNDS)),
            pulls: LabelledHistogram::new(PULL_BOUNDS),
            sandboxes: LabelledHistogram::new(CALL_BOUNDS),
            failed_sandboxes: LabelledCounter::default(),
        }
    }
}

impl StartMetrics {
    /// A pod that was new here has begun to run, so long after it was seen.
    pub fn pod_running(&self, took: Duration) {
        observe(&self.running, took);
    }

    /// The apiserver shows that all containers of a pod run.
    pub fn pod_shown(&self, latency: StartLatency) {
        observe(&self.total, latency.total);
        let Some(sli) = latency.sli else { return };
        observe(&self.sli, sli);
        if latency.network {
            let mut first = self.first_network_sli.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(sli.as_secs_f64());
        }
    }

    /// A pod's worker has begun, so long after the pod was seen.
    pub fn worker_began(&self, after: Duration) {
        observe(&self.worker, after);
    }

    /// `took` has the wait for other pulls in it.
    pub fn image_pulled(&self, bytes: u64, took: Duration) {
        self.pulls.observe(size_label(bytes), took.as_secs_f64());
    }

    pub fn sandbox_run(&self, handler: &str, took: Duration, failed: bool) {
        self.sandboxes.observe(handler, took.as_secs_f64());
        if failed {
            self.failed_sandboxes.count([handler]);
        }
    }

    pub fn write(&self, text: &mut Text) {
        for (name, histogram, help) in [
            (
                "kubelet_pod_start_duration_seconds",
                &self.running,
                "From seeing a pod for the first time to its running",
            ),
            (
                "kubelet_pod_start_total_duration_seconds",
                &self.total,
                "From a pod's creation until the apiserver shows that its containers run",
            ),
            (
                "kubelet_pod_start_sli_duration_seconds",
                &self.sli,
                "The same without pulls and init containers, for pods without volumes that keep data",
            ),
            (
                "kubelet_pod_worker_start_duration_seconds",
                &self.worker,
                "From seeing a pod to its worker's beginning",
            ),
        ] {
            text.family(name, Kind::Histogram, help);
            histogram.lock().unwrap_or_else(PoisonError::into_inner).write(text, &[]);
        }
        text.family(
            "kubelet_first_network_pod_start_sli_duration_seconds",
            Kind::Gauge,
            "What the first pod with a network of its own took, counted as kubelet_pod_start_sli_duration_seconds",
        );
        text.known(&[], *self.first_network_sli.lock().unwrap_or_else(PoisonError::into_inner));
        let help = "How long pulls of images took, by the size of the image";
        self.pulls.write(text, "kubelet_image_pull_duration_seconds", "image_size_in_bytes", help);
        let help = "How long the runtime took to make sandboxes, with their network";
        self.sandboxes.write(text, "kubelet_run_podsandbox_duration_seconds", "runtime_handler", help);
        let help = "Sandboxes that the runtime could not make";
        self.failed_sandboxes.write(text, "kubelet_run_podsandbox_errors_total", ["runtime_handler"], help);
    }
}

fn observe(histogram: &Mutex<Histogram>, time: Duration) {
    histogram.lock().unwrap_or_else(PoisonError::into_inner).observe(time.as_secs_f64());
}

/// The kubelet's words for sizes, seen by dashboards.
fn size_label(bytes: u64) -> &'static str {
    const MB: u64 = 1024 * 1024;
    const GB: u64 = 1024 * MB;
    match bytes {
        0 => "N/A",
        b if b <= 10 * MB => "0-10MB",
        b if b <= 100 * MB => "10MB-100MB",
        b if b <= 500 * MB => "100MB-500MB",
        b if b <= GB => "500MB-1GB",
        b if b <= 5 * GB => "1GB-5GB",
        b if b <= 10 * GB => "5GB-10GB",
        b if b <= 20 * GB => "10GB-20GB",
        b if b <= 30 * GB => "20GB-30GB",
        b if b <= 40 * GB => "30GB-40GB",
        b if b <= 60 * GB => "40GB-60GB",
        b if b <= 100 * GB => "60GB-100GB",
        _ => "GT100GB",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_at_a_bound_belongs_to_the_smaller_range() {
        const MB: u64 = 1024 * 1024;
        for (bytes, label) in [
            (0, "N/A"),
            (1, "0-10MB"),
            (10 * MB, "0-10MB"),
            (10 * MB + 1, "10MB-100MB"),
            (1024 * MB, "500MB-1GB"),
            (u64::MAX, "GT100GB"),
        ] {
            assert_eq!(size_label(bytes), label, "{bytes}");
        }
    }

    #[test]
    fn the_first_pod_with_a_network_is_kept_and_data_volumes_have_no_sli() {
        let metrics = StartMetrics::default();
        let second = Duration::from_secs;
        let pod = |total, sli: Option<u64>, network| StartLatency {
            total: second(total),
            sli: sli.map(second),
            network,
        };
        metrics.pod_shown(pod(9, Some(8), false));
        metrics.pod_shown(pod(7, None, true));
        metrics.pod_shown(pod(5, Some(3), true));
        metrics.pod_shown(pod(5, Some(4), true));
        let mut text = Text::default();
        metrics.write(&mut text);
        let text = text.finish();
        for line in [
            "kubelet_first_network_pod_start_sli_duration_seconds 3\n",
            "kubelet_pod_start_sli_duration_seconds_sum 15\n",
            "kubelet_pod_start_sli_duration_seconds_count 3\n",
            "kubelet_pod_start_total_duration_seconds_count 4\n",
        ] {
            assert!(text.contains(line), "no {line:?} in {text}");
        }
    }
}
