//! A pod that was granted other resources than its cgroups have.

use k8s_openapi::api::core::v1::{ContainerResizePolicy, ResourceRequirements};
use serde_json::json;

use super::*;
use crate::allocation::Allocation;

/// Converged, with this much for a and b, and the cgroups as they were made for it.
fn sized(a: &str, b: &str) -> World {
    let mut w = converged();
    w.size("a", a);
    w.size("b", b);
    let same = w.spec().containers[0].resources.clone();
    w.spec().init_containers.iter_mut().flatten().for_each(|c| c.resources.clone_from(&same));
    w.state.actuated = Some(Arc::new(Allocation::actuated(&w.desired.pod)));
    w
}

impl World {
    /// CPU and memory, as request and limit in one.
    fn size(&mut self, name: &str, size: &str) {
        let (cpu, memory) = size.split_once(' ').unwrap();
        let list = json!({"cpu": cpu, "memory": memory});
        let wanted = self.spec().containers.iter_mut().find(|c| c.name == name).unwrap();
        wanted.resources = serde_json::from_value(json!({"requests": list, "limits": list})).unwrap();
    }

    fn policy(&mut self, name: &str, resource: &str) {
        let wanted = self.spec().containers.iter_mut().find(|c| c.name == name).unwrap();
        wanted.resize_policy = Some(vec![ContainerResizePolicy {
            resource_name: resource.into(),
            restart_policy: "RestartContainer".into(),
        }]);
    }
}

fn base() -> World {
    sized("1 64Mi", "1 64Mi")
}

#[test]
fn what_runs_gets_what_was_granted() {
    const MEMORY: &str = "Memory-done";
    const CPU: &str = "Cpu-done";
    type Change = fn(&mut World);
    let cases: &[(&str, Change, String)] = &[
        ("nothing was granted", |_| {}, String::new()),
        ("the same in other words", |w| w.size("a", "1000m 65536Ki"), String::new()),
        (
            "more memory: the pod's first",
            |w| w.size("a", "1 128Mi"),
            format!("resize:MemoryLimit,a-0-Memory,{MEMORY},{CPU}"),
        ),
        (
            "less memory: the container's first",
            |w| w.size("a", "1 32Mi"),
            format!("resize:a-0-Memory,MemoryLimit,{MEMORY},{CPU}"),
        ),
        (
            "more CPU: the limit before the request",
            |w| w.size("a", "2 64Mi"),
            format!("resize:{MEMORY},CpuLimit,CpuRequest,a-0-Cpu,{CPU}"),
        ),
        (
            "less CPU: the request before the limit",
            |w| w.size("b", "500m 64Mi"),
            format!("resize:{MEMORY},b-0-Cpu,CpuRequest,CpuLimit,{CPU}"),
        ),
        (
            "one gives to the other: who gives comes first",
            |w| {
                w.size("a", "1 96Mi");
                w.size("b", "1 32Mi");
            },
            format!("resize:b-0-Memory,a-0-Memory,{MEMORY},{CPU}"),
        ),
        (
            "memory needs a restart",
            |w| {
                w.policy("a", "memory");
                w.size("a", "1 128Mi");
            },
            "kill:a-0@30s".into(),
        ),
        (
            "CPU does not, where the policy is about memory",
            |w| {
                w.policy("a", "memory");
                w.size("a", "2 64Mi");
            },
            format!("resize:{MEMORY},CpuLimit,CpuRequest,a-0-Cpu,{CPU}"),
        ),
        (
            "who is ended comes before who is resized",
            |w| {
                w.policy("a", "cpu");
                w.size("a", "2 64Mi");
                w.size("b", "2 64Mi");
            },
            "kill:a-0@30s".into(),
        ),
        (
            "who starts with more finds room",
            |w| {
                w.size("a", "1 128Mi");
                let a = w.observed.containers.iter_mut().find(|c| c.name == "a").unwrap();
                (a.state, a.exit_code) = (ContainerState::Exited, 1);
            },
            format!("resize:MemoryLimit,{MEMORY},{CPU} start:a#1"),
        ),
        (
            "after a failure nothing is tried for a while",
            |w| {
                w.size("a", "1 128Mi");
                w.state.resize.retry_at = Some(w.facts.now + std::time::Duration::from_secs(5));
            },
            String::new(),
        ),
        (
            "a pod that ends is not resized",
            |w| {
                w.size("a", "1 128Mi");
                Arc::make_mut(&mut w.desired.pod).metadata.deletion_timestamp = Some(Time(w.facts.now));
            },
            "kill:a-0@30s+b-0@30s".into(),
        ),
        (
            "the pod as a whole",
            |w| {
                let list = json!({"cpu": "4", "memory": "1Gi"});
                w.spec().resources =
                    serde_json::from_value(json!({"limits": list, "requests": list})).unwrap();
            },
            format!("resize:MemoryLimit,{MEMORY},CpuLimit,CpuRequest,{CPU}"),
        ),
    ];
    for (name, change, expected) in cases {
        let mut w = base();
        change(&mut w);
        let said = w.say();
        // The order of two that end together is not what this is about.
        let said = said.replace("kill:b-0@30s+a-0@30s", "kill:a-0@30s+b-0@30s");
        assert_eq!(said, *expected, "{name}");
    }
}

#[test]
fn a_container_that_is_restarted_for_it_starts_again_whatever_the_policy_and_with_room() {
    let mut w = base();
    w.spec().restart_policy = Some("Never".into());
    w.policy("a", "memory");
    w.size("a", "1 128Mi");
    w.end_as_planned(0);
    assert_eq!(w.say(), "resize:MemoryLimit,Memory-done,Cpu-done start:a#1");
}

#[test]
fn an_agent_that_knows_nothing_restarts_nothing() {
    let mut w = base();
    w.policy("a", "memory");
    let now = ResourceRequirements::default();
    w.state = PodState::new(Some(w.desired.clone()), &w.observed, Default::default());
    w.state.volumes.state = VolumesState::Ready;
    w.state.resume_resize(None, &w.observed);
    assert_eq!(w.say(), "");
    // A record of something else counts, and the runtime reports nothing that speaks against it.
    let mut old = Allocation::actuated(&w.desired.pod);
    old.container_resources.insert("a".into(), now);
    w.state.resume_resize(Some(&old), &w.observed);
    assert_eq!(w.say(), "kill:a-0@30s");
    // Unless it does: the restart was done, and its record was lost.
    let a = w.observed.containers.iter_mut().find(|c| c.name == "a").unwrap();
    a.resources = Some(crate::observed::ObservedResources {
        cpu_shares: 1024,
        cpu_quota: 100_000,
        cpu_period: 100_000,
        memory_limit_bytes: 64 << 20,
        ..Default::default()
    });
    w.state.resume_resize(Some(&old), &w.observed);
    assert_eq!(w.say(), "");
}
