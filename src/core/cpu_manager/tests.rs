use k8s_openapi::api::core::v1::{Container, Pod};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::cpuset::CpuSet;
use crate::ids::PodUid;

/// CPUs numbered as Linux numbers them: the second threads of all cores after the first ones.
fn machine(sockets: u32, nodes_per_socket: u32, cores_per_node: u32, threads: u32) -> Topology {
    let cores = sockets * nodes_per_socket * cores_per_node;
    let places = (0..cores * threads).map(|cpu| {
        let core = cpu % cores;
        let numa_node = core / cores_per_node;
        (cpu, CpuPlace { numa_node, socket: numa_node / nodes_per_socket, core, uncore_cache: numa_node })
    });
    Topology::new(places.collect(), sockets as usize)
}

fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn uid(n: usize) -> PodUid {
    PodUid::try_from(format!("pod-{n}")).unwrap()
}

fn pod(containers: &[(&str, &str)]) -> Pod {
    let container = |(name, cpu): &(&str, &str)| {
        let resources = json!({"cpu": cpu, "memory": "1Mi"});
        json!({"name": name, "resources": {"requests": resources, "limits": resources}})
    };
    let containers: Vec<_> = containers.iter().map(container).collect();
    serde_json::from_value(json!({"spec": {"containers": containers}})).unwrap()
}

fn containers(pod: &Pod) -> Vec<Container> {
    pod.spec.clone().unwrap().containers
}

#[test]
fn whole_parts_of_the_machine_are_taken_first() {
    let options = Options::default();
    let cases: &[(Topology, Options, &str, usize, &str)] = &[
        // Two sockets of four cores with two threads: 0-3 and 4-7, and 8-15 beside them.
        (machine(2, 1, 4, 2), options, "0-15", 1, "0"),
        (machine(2, 1, 4, 2), options, "0-15", 2, "0,8"),
        (machine(2, 1, 4, 2), options, "0-15", 8, "0-3,8-11"),
        (machine(2, 1, 4, 2), options, "0-15", 9, "0-4,8-11"),
        (machine(2, 1, 4, 2), options, "1-15", 1, "8"),
        (machine(2, 1, 4, 2), options, "1-15", 2, "1,9"),
        (machine(2, 1, 4, 2), Options { across_cores: true, ..options }, "0-15", 2, "0-1"),
        (machine(2, 1, 4, 2), Options { across_numa: true, ..options }, "0-15", 10, "0-2,4-6,8-9,12-13"),
    ];
    for (topology, options, free, count, expected) in cases {
        let policy = StaticPolicy::new(topology.clone(), CpuSet::default(), 0, *options).unwrap();
        let mut assignments = Assignments { shared: cpus(free), ..Assignments::default() };
        let pod = pod(&[("main", &count.to_string())]);
        policy.allocate(&mut assignments, &pod, &uid(0), &containers(&pod)[0], None).unwrap();
        let taken = assignments.of(&uid(0), "main").unwrap();
        assert_eq!(taken.to_string(), *expected, "{count} of {free} with {options:?}");
    }
}

#[test]
fn only_whole_cpus_of_guaranteed_pods_are_exclusive() {
    for (cpu, expected) in [("2", 2), ("2000m", 2), ("1500m", 0), ("0", 0)] {
        let pod = pod(&[("main", cpu)]);
        assert_eq!(exclusive_cpus(&pod, &containers(&pod)[0]), expected, "{cpu}");
    }
    let mut burstable = pod(&[("main", "2")]);
    burstable.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap().limits = None;
    assert_eq!(exclusive_cpus(&burstable, &containers(&burstable)[0]), 0);
}

#[test]
fn whole_cores_only_refuses_what_is_none() {
    let options = Options { full_pcpus_only: true, ..Options::default() };
    let policy = StaticPolicy::new(machine(1, 1, 2, 2), cpus("0"), 1, options).unwrap();
    for (count, reason) in [("1", Some("SMTAlignmentError")), ("2", None), ("4", Some("SMTAlignmentError"))] {
        let mut assignments = policy.initial();
        let pod = pod(&[("main", count)]);
        let done = policy.allocate(&mut assignments, &pod, &uid(0), &containers(&pod)[0], None);
        assert_eq!(done.err().map(|e| e.reason()), reason, "{count}");
    }
}

fn machines() -> impl Strategy<Value = Topology> {
    (1..=2u32, 1..=2u32, 1..=4u32, 1..=2u32).prop_map(|(s, n, c, t)| machine(s, n, c, t))
}

fn options() -> impl Strategy<Value = Options> {
    any::<[bool; 6]>().prop_map(|[full, numa, socket, cores, strict, cache]| Options {
        full_pcpus_only: full,
        across_numa: numa,
        align_by_socket: socket,
        across_cores: cores && !full && !numa,
        strict_reservation: strict,
        by_uncore_cache: cache && !cores && !numa,
    })
}

proptest! {
    /// Whatever comes and goes, nobody has what another has or what is reserved, and all of it comes back.
    #[test]
    fn sets_never_overlap_and_come_back(
        topology in machines(),
        options in options(),
        steps in proptest::collection::vec((0..6usize, 1..6usize, any::<bool>()), 1..40),
    ) {
        let policy = StaticPolicy::new(topology, CpuSet::default(), 1, options).unwrap();
        let mut assignments = policy.initial();
        for (n, count, comes) in steps {
            let pod = pod(&[("a", &count.to_string()), ("b", "1")]);
            if comes {
                for container in containers(&pod) {
                    let before = assignments.clone();
                    let had = assignments.of(&uid(n), &container.name).cloned();
                    match policy.allocate(&mut assignments, &pod, &uid(n), &container, None) {
                        Ok(()) if had.is_none() => {
                            let given = assignments.of(&uid(n), &container.name).unwrap();
                            prop_assert_eq!(given.len(), exclusive_cpus(&pod, &container));
                        }
                        _ => prop_assert_eq!(&before, &assignments),
                    }
                }
            } else {
                assignments.release(&uid(n), "a");
                assignments.release(&uid(n), "b");
            }
            prop_assert_eq!(policy.check(&assignments), Ok(()));
            let mut seen = CpuSet::default();
            for cpus in assignments.exclusive.values().flat_map(|c| c.values()) {
                prop_assert!(seen.intersection(cpus).is_empty());
                prop_assert!(cpus.intersection(policy.reserved()).is_empty());
                seen = seen.union(cpus);
            }
        }
        for n in 0..6 {
            assignments.release(&uid(n), "a");
            assignments.release(&uid(n), "b");
        }
        prop_assert_eq!(assignments, policy.initial());
    }
}
