//! How often managers were asked, what they have given, and how often they could not: under the kubelet's names.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use keelson_core::cpu_manager::exclusive_cpus;
use keelson_core::cpuset::CpuSet;
use keelson_core::resource_managers::{Held, Refusal, ResourceManagers};
use keelson_kit::metrics::{Histogram, Kind, LabelledCounter, Text};

/// Milliseconds.
const ADMISSION_BOUNDS: &[f64] =
    &[0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6, 819.2];

pub struct Counts {
    asked: LabelledCounter<0>,
    misaligned: LabelledCounter<0>,
    took: Mutex<Histogram>,
    cpu_asked: LabelledCounter<0>,
    cpu_refused: LabelledCounter<0>,
    memory_asked: LabelledCounter<0>,
    memory_refused: LabelledCounter<0>,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            asked: LabelledCounter::default(),
            misaligned: LabelledCounter::default(),
            took: Mutex::new(Histogram::new(ADMISSION_BOUNDS)),
            cpu_asked: LabelledCounter::default(),
            cpu_refused: LabelledCounter::default(),
            memory_asked: LabelledCounter::default(),
            memory_refused: LabelledCounter::default(),
        }
    }
}

impl Counts {
    pub fn admitted(
        &self,
        configured: &ResourceManagers,
        pod: &Pod,
        result: &Result<(), Refusal>,
        took: Duration,
    ) {
        self.asked.count([]);
        self.took.lock().unwrap_or_else(PoisonError::into_inner).observe(took.as_secs_f64() * 1000.0);
        let containers =
            pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers));
        for container in containers {
            if configured.cpu.is_some() && exclusive_cpus(pod, container) > 0 {
                self.cpu_asked.count([]);
            }
            if configured.memory.as_ref().is_some_and(|memory| memory.places(pod)) {
                self.memory_asked.count([]);
            }
        }
        match result {
            Ok(()) => {}
            Err(Refusal::Topology) => self.misaligned.count([]),
            Err(Refusal::Cpu(_)) => self.cpu_refused.count([]),
            Err(Refusal::Memory(_)) => self.memory_refused.count([]),
        }
    }

    pub fn write(&self, text: &mut Text, configured: &ResourceManagers, held: &Held) {
        let help = "Pods that the managers were asked about";
        self.asked.write(text, "kubelet_topology_manager_admission_requests_total", [], help);
        let help = "Pods whose resources could not be aligned";
        self.misaligned.write(text, "kubelet_topology_manager_admission_errors_total", [], help);
        let help = "How long the managers took to decide about a pod, in milliseconds";
        text.family("kubelet_topology_manager_admission_duration_ms", Kind::Histogram, help);
        self.took.lock().unwrap_or_else(PoisonError::into_inner).write(text, &[]);
        let help = "Containers that asked for CPUs of their own";
        self.cpu_asked.write(text, "kubelet_cpu_manager_pinning_requests_total", [], help);
        let help = "Containers that could not have CPUs of their own";
        self.cpu_refused.write(text, "kubelet_cpu_manager_pinning_errors_total", [], help);
        let help = "Containers whose memory was to be placed";
        self.memory_asked.write(text, "kubelet_memory_manager_pinning_requests_total", [], help);
        let help = "Containers whose memory could not be placed";
        self.memory_refused.write(text, "kubelet_memory_manager_pinning_errors_total", [], help);
        let Some(policy) = &configured.cpu else { return };
        let shared = held.cpu.shared.difference(policy.reserved()).len() * 1000;
        let help = "What containers without CPUs of their own share, in thousandths of a CPU";
        text.single("kubelet_cpu_manager_shared_pool_size_millicores", Kind::Gauge, help, shared);
        let own: CpuSet =
            held.cpu.exclusive.values().flat_map(|c| c.values()).flat_map(CpuSet::iter).collect();
        let help = "CPUs that one container has for itself";
        text.single("kubelet_cpu_manager_exclusive_cpu_allocation_count", Kind::Gauge, help, own.len());
        let help = "CPUs that one container has for itself, by NUMA node";
        text.family("kubelet_cpu_manager_allocation_per_numa", Kind::Gauge, help);
        for node in policy.topology().numa_nodes() {
            let here =
                own.iter().filter(|cpu| policy.topology().place(*cpu).is_some_and(|p| p.numa_node == node));
            text.sample(&[("numa_node", &node.to_string())], here.count());
        }
    }
}
