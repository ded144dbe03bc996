//! What the kernel of this machine can do for containers' memory, and what the configuration makes of it: swap, the end of a
//! container that runs out of memory, huge pages.

use k8s_openapi::api::core::v1::{Container, Pod};

use super::aggregate::amount;
use super::linux::{LinuxResources, page_size_name};
use crate::config::{KubeletConfiguration, SwapBehavior};
use crate::manifest::{CONFIG_MIRROR, CONFIG_SOURCE};
use crate::qos::{QosClass, qos_of};

/// Pods of this priority and above are critical to the cluster.
const SYSTEM_CRITICAL: i32 = 2_000_000_000;

/// What the machine reports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// One tree of cgroups for all controllers.
    pub cgroup_v2: bool,
    /// Whether cgroups can bound swap.
    pub swap_controller: bool,
    /// Whether anything is used to swap to.
    pub swap_on: bool,
    pub swap_bytes: u64,
    pub memory_bytes: u64,
    /// In bytes, of every size of huge pages that the kernel has.
    pub page_sizes: Vec<u64>,
}

/// How containers are bounded on this machine, beside what they ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostResources {
    facts: HostFacts,
    limited_swap: bool,
    /// Whether all processes of a container end when it runs out of memory.
    kill_all: bool,
}

/// Why a node must not run with this configuration on this machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostRefusal {
    #[error(
        "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false (failSwapOn)"
    )]
    SwapOn,
    #[error(
        "memorySwap.swapBehavior LimitedSwap needs cgroup v2, and this machine has v1: use NoSwap or leave it out"
    )]
    LimitedSwap,
    #[error(
        "singleProcessOOMKill: false needs cgroup v2, and this machine has v1: leave it out or set it to true"
    )]
    KillAll,
}

impl HostResources {
    pub fn new(config: &KubeletConfiguration, facts: HostFacts) -> Result<Self, HostRefusal> {
        let limited_swap = config.memory_swap.swap_behavior == SwapBehavior::LimitedSwap;
        if facts.swap_on && config.fail_swap_on {
            return Err(HostRefusal::SwapOn);
        }
        if limited_swap && !facts.cgroup_v2 {
            return Err(HostRefusal::LimitedSwap);
        }
        if config.single_process_oom_kill == Some(false) && !facts.cgroup_v2 {
            return Err(HostRefusal::KillAll);
        }
        let kill_all = facts.cgroup_v2 && config.single_process_oom_kill != Some(true);
        Ok(Self { facts, limited_swap, kill_all })
    }

    /// Adds to what a container asks for what holds on this machine.
    pub fn complete(&self, pod: &Pod, container: &Container, resources: &mut LinuxResources) {
        if self.kill_all {
            resources.unified.insert("memory.oom.group".into(), "1".into());
        }
        if self.facts.swap_controller {
            if self.facts.cgroup_v2 {
                let swap = self.swap_limit(pod, container).unwrap_or(0);
                resources.unified.insert("memory.swap.max".into(), swap.to_string());
            } else {
                // Memory and swap together: no more than the memory alone. Zero is no limit, for both.
                resources.memory_swap_limit_bytes = resources.memory_limit_bytes;
            }
        }
        resources.hugepage_limits = self.page_limits(&resources.hugepage_limits);
    }

    /// A limit for every page size of this machine. What was not asked for is not to be had.
    pub fn page_limits(&self, asked: &[(String, u64)]) -> Vec<(String, u64)> {
        let names = self.facts.page_sizes.iter().map(|size| page_size_name(*size));
        let limit = |name: &String| asked.iter().find(|(asked, _)| asked == name).map_or(0, |(_, n)| *n);
        names.map(|name| (name.clone(), limit(&name))).collect()
    }

    /// The part of the machine's swap that is the container's part of its memory. None where it gets no swap: only
    /// containers that ask for less memory than they may use do, and none of critical pods.
    fn swap_limit(&self, pod: &Pod, container: &Container) -> Option<i64> {
        let of = |list| amount(list, "memory").value();
        let own = container.resources.as_ref();
        let (request, limit) =
            (of(own.and_then(|r| r.requests.as_ref())), of(own.and_then(|r| r.limits.as_ref())));
        let total = i64::try_from(self.facts.memory_bytes).unwrap_or(i64::MAX);
        let has_swap = self.limited_swap
            && !is_critical(pod)
            && qos_of(pod) == QosClass::Burstable
            && request != limit
            && (1..=total).contains(&request);
        // In floating point, as the kubelet computes it: to the byte the same.
        has_swap.then(|| (request as f64 / total as f64 * self.facts.swap_bytes as f64) as i64)
    }
}

/// Whether the node or the cluster does not work without it.
fn is_critical(pod: &Pod) -> bool {
    let annotation = |name: &str| pod.metadata.annotations.as_ref().and_then(|a| a.get(name));
    annotation(CONFIG_SOURCE).is_some_and(|source| source != "api")
        || annotation(CONFIG_MIRROR).is_some()
        || pod.spec.as_ref().and_then(|s| s.priority).is_some_and(|p| p >= SYSTEM_CRITICAL)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;

    fn facts(cgroup_v2: bool) -> HostFacts {
        HostFacts {
            cgroup_v2,
            swap_controller: true,
            swap_on: true,
            swap_bytes: 4 << 30,
            memory_bytes: 16 << 30,
            page_sizes: vec![2 << 20, 1 << 30],
        }
    }

    fn config(change: impl FnOnce(&mut KubeletConfiguration)) -> KubeletConfiguration {
        let mut config = KubeletConfiguration::default();
        config.fail_swap_on = false;
        change(&mut config);
        config
    }

    fn pod(change: impl FnOnce(&mut Value)) -> (Pod, Container) {
        let resources = json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}});
        let mut pod =
            json!({"metadata": {}, "spec": {"containers": [{"name": "c", "resources": resources}]}});
        change(&mut pod);
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let container = pod.spec.as_ref().unwrap().containers[0].clone();
        (pod, container)
    }

    fn completed(host: &HostResources, (pod, container): &(Pod, Container)) -> LinuxResources {
        let mut resources = LinuxResources {
            memory_limit_bytes: 2 << 30,
            hugepage_limits: vec![("2MB".into(), 8 << 20), ("64KB".into(), 1)],
            ..LinuxResources::default()
        };
        host.complete(pod, container, &mut resources);
        resources
    }

    #[test]
    fn what_cannot_be_had_on_this_machine_is_refused_at_the_start() {
        let limited = |c: &mut KubeletConfiguration| c.memory_swap.swap_behavior = SwapBehavior::LimitedSwap;
        let no_swap = |cgroup_v2| HostFacts { swap_on: false, ..facts(cgroup_v2) };
        for (case, config, facts, refused) in [
            ("swap by default", KubeletConfiguration::default(), facts(true), Some(HostRefusal::SwapOn)),
            ("no swap by default", KubeletConfiguration::default(), no_swap(true), None),
            ("swap that is allowed", config(|_| ()), facts(true), None),
            ("limited swap on v1", config(limited), facts(false), Some(HostRefusal::LimitedSwap)),
            ("limited swap on v2", config(limited), facts(true), None),
            (
                "all processes on v1",
                config(|c| c.single_process_oom_kill = Some(false)),
                facts(false),
                Some(HostRefusal::KillAll),
            ),
            ("one process on v1", config(|c| c.single_process_oom_kill = Some(true)), facts(false), None),
        ] {
            assert_eq!(HostResources::new(&config, facts).err(), refused, "{case}");
        }
    }

    #[test]
    fn a_container_out_of_memory_ends_as_a_whole_on_v2_unless_configured() {
        for (cgroup_v2, single, expected) in [
            (true, None, Some("1")),
            (true, Some(false), Some("1")),
            (true, Some(true), None),
            (false, None, None),
            (false, Some(true), None),
        ] {
            let host = HostResources::new(&config(|c| c.single_process_oom_kill = single), facts(cgroup_v2))
                .unwrap();
            let got = completed(&host, &pod(|_| ())).unified.remove("memory.oom.group");
            assert_eq!(got.as_deref(), expected, "v2 {cgroup_v2}, single {single:?}");
        }
    }

    #[test]
    fn swap_is_limited_to_the_containers_part_and_off_for_everybody_else() {
        let default = config(|_| ());
        let limited = config(|c| c.memory_swap.swap_behavior = SwapBehavior::LimitedSwap);
        let resources = |requests: &str, limits: &str| json!({"requests": {"memory": requests}, "limits": {"memory": limits}});
        let set =
            |resources: Value| move |pod: &mut Value| pod["spec"]["containers"][0]["resources"] = resources;
        let cases: Vec<(&str, &KubeletConfiguration, (Pod, Container), &str)> = vec![
            ("by default", &default, pod(|_| ()), "0"),
            ("a sixteenth of the memory", &limited, pod(|_| ()), "268435456"),
            ("rounded down", &limited, pod(set(resources("1", "2Gi"))), "0"),
            ("a third, in floating point", &limited, pod(set(resources("5726623061", "8Gi"))), "1431655765"),
            ("as much as it may use", &limited, pod(set(resources("1Gi", "1Gi"))), "0"),
            ("nothing asked for", &limited, pod(set(json!({}))), "0"),
            (
                "only a limit",
                &limited,
                pod(set(json!({"limits": {"memory": "1Gi"}, "requests": {"cpu": 1}}))),
                "0",
            ),
            ("only a request", &limited, pod(set(json!({"requests": {"memory": "1Gi"}}))), "268435456"),
            ("more than there is", &limited, pod(set(json!({"requests": {"memory": "17Gi"}}))), "0"),
            ("a critical pod", &limited, pod(|p| p["spec"]["priority"] = json!(2_000_000_000)), "0"),
            (
                "an important one",
                &limited,
                pod(|p| p["spec"]["priority"] = json!(1_999_999_999)),
                "268435456",
            ),
            (
                "a static pod",
                &limited,
                pod(|p| p["metadata"]["annotations"] = json!({"kubernetes.io/config.source": "file"})),
                "0",
            ),
        ];
        for (case, config, pod, expected) in cases {
            let host = HostResources::new(config, facts(true)).unwrap();
            let got = completed(&host, &pod);
            assert_eq!(got.unified.get("memory.swap.max").map(String::as_str), Some(expected), "{case}");
            assert_eq!(got.memory_swap_limit_bytes, 0, "{case}");
        }
    }

    #[test]
    fn on_v1_memory_and_swap_together_are_the_memory() {
        let host = HostResources::new(&config(|_| ()), facts(false)).unwrap();
        let got = completed(&host, &pod(|_| ()));
        assert_eq!((got.memory_swap_limit_bytes, got.unified), (2 << 30, BTreeMap::new()));
    }

    #[test]
    fn without_a_swap_controller_nothing_is_said_of_swap() {
        for cgroup_v2 in [true, false] {
            let facts = HostFacts { swap_controller: false, ..facts(cgroup_v2) };
            let got = completed(&HostResources::new(&config(|_| ()), facts).unwrap(), &pod(|_| ()));
            assert_eq!((got.memory_swap_limit_bytes, got.unified.get("memory.swap.max")), (0, None));
        }
    }

    #[test]
    fn every_page_size_of_the_machine_has_a_limit_and_no_other() {
        let host = HostResources::new(&config(|_| ()), facts(true)).unwrap();
        let got = completed(&host, &pod(|_| ())).hugepage_limits;
        assert_eq!(got, [("2MB".to_owned(), 8 << 20), ("1GB".to_owned(), 0)]);
    }
}
