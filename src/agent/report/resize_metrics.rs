//! Resizes of pods that run, under the kubelet's names.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PodCondition, PodStatus};
use keelson_kit::metrics::{Kind, LabelledCounter, LabelledHistogram, Text};

use crate::pods::resizes::Trigger;

/// Milliseconds.
const BOUNDS: &[f64] = &[
    10.0, 50.0, 100.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 30_000.0, 60_000.0, 120_000.0,
    300_000.0, 600_000.0,
];

pub struct ResizeMetrics {
    requested: LabelledCounter<3>,
    infeasible: LabelledCounter<1>,
    accepted_late: LabelledCounter<1>,
    took: LabelledHistogram,
}

impl Default for ResizeMetrics {
    fn default() -> Self {
        Self {
            requested: LabelledCounter::default(),
            infeasible: LabelledCounter::default(),
            accepted_late: LabelledCounter::default(),
            took: LabelledHistogram::new(BOUNDS),
        }
    }
}

impl ResizeMetrics {
    /// Resource, requirement and operation, one for each figure of a container that a spec has changed.
    pub fn requested(&self, operations: &[[&'static str; 3]]) {
        operations.iter().for_each(|operation| self.requested.count(*operation));
    }

    pub fn infeasible(&self, detail: &str) {
        self.infeasible.count([detail]);
    }

    /// One that had to wait was granted.
    pub fn accepted_late(&self, trigger: Trigger) {
        self.accepted_late.count([trigger.label()]);
    }

    pub fn actuated(&self, success: bool, took: Duration) {
        self.took.observe(if success { "true" } else { "false" }, took.as_secs_f64() * 1000.0);
    }

    /// How many wait and how many are under way is what the pods' statuses say.
    pub fn write<'a>(&self, text: &mut Text, statuses: impl Iterator<Item = &'a PodStatus> + Clone) {
        let names = ["resource", "requirement", "operation"];
        let help = "Figures of containers that specs of running pods have changed";
        self.requested.write(text, "kubelet_container_requested_resizes_total", names, help);
        let help = "How long it took to give a pod what was granted, in milliseconds";
        self.took.write(text, "kubelet_pod_resize_duration_milliseconds", "success", help);
        let shown = |kind: &'static str| {
            statuses
                .clone()
                .flat_map(|s| s.conditions.iter().flatten())
                .filter(move |c| c.type_ == kind && c.status == "True")
        };
        text.family("kubelet_pod_pending_resizes", Kind::Gauge, "Resizes that are not granted");
        for (reason, label) in [("Deferred", "deferred"), ("Infeasible", "infeasible")] {
            let of = |c: &&PodCondition| c.reason.as_deref() == Some(reason);
            text.sample(&[("reason", label)], shown("PodResizePending").filter(of).count());
        }
        let going = shown("PodResizeInProgress").count();
        text.single(
            "kubelet_pod_in_progress_resizes",
            Kind::Gauge,
            "Resizes that are granted and not done",
            going,
        );
        let help = "Resizes that this node rules out";
        self.infeasible.write(text, "kubelet_pod_infeasible_resizes_total", ["reason_detail"], help);
        let help = "Resizes that were granted after they had to wait";
        self.accepted_late.write(
            text,
            "kubelet_pod_deferred_accepted_resizes_total",
            ["retry_trigger"],
            help,
        );
    }
}
