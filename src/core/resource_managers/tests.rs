use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::admission::Rejection;
use crate::cpu_manager::Options;
use crate::cpu_manager::checkpoint as cpu_file;
use crate::machine_topology::{MachineCore, MachineNode, MachineTopology};
use crate::memory_manager::checkpoint as memory_file;

/// Two nodes of two cores and 1 GiB each, a core and 100 MiB of the first reserved.
fn managers(policy: Policy, scope: Scope) -> ResourceManagers {
    let node = |id: u32| MachineNode {
        id,
        cores: (0..2)
            .map(|n| MachineCore { socket: id, threads: vec![id * 2 + n], uncore_cache: None })
            .collect(),
        memory_bytes: 1 << 30,
        ..MachineNode::default()
    };
    let machine = MachineTopology { nodes: vec![node(0), node(1)], sockets: 2 };
    let reserved: BTreeMap<_, _> = [(0, [("memory".to_owned(), 100 << 20)].into())].into();
    ResourceManagers {
        policy,
        scope,
        numa: machine.numa(false).unwrap(),
        cpu: Some(StaticPolicy::new(machine.cpus(), CpuSet::from([0]), 1, Options::default()).unwrap()),
        memory: Some(MemoryPolicy::new(machine.memory(&reserved))),
    }
}

fn pod(containers: &[(&str, &str)]) -> Pod {
    let containers: Vec<_> = containers
        .iter()
        .enumerate()
        .map(|(n, (cpu, memory))| {
            let list = json!({"cpu": cpu, "memory": memory});
            json!({"name": format!("c{n}"), "resources": {"requests": list, "limits": list}})
        })
        .collect();
    serde_json::from_value(json!({"spec": {"containers": containers}})).unwrap()
}

fn uid(n: u32) -> PodUid {
    PodUid::try_from(format!("pod-{n}")).unwrap()
}

#[test]
fn cpus_and_memory_come_from_one_node_where_that_is_asked_for() {
    let managers = managers(Policy::SingleNumaNode, Scope::Pod);
    let mut held = managers.initial();
    managers.admit(&mut held, &pod(&[("1", "200Mi"), ("1", "200Mi")]), &uid(1)).unwrap();
    let bound = |held: &Held, container: &str| {
        let Binding { cpus, memory_nodes } = managers.binding(held, &uid(1), container);
        format!("{} {}", cpus.unwrap_or_default(), memory_nodes.unwrap_or_default())
    };
    assert_eq!([bound(&held, "c0"), bound(&held, "c1"), bound(&held, "other")], ["2 1", "3 1", "0-1 "]);
    let refused = managers.admit(&mut held, &pod(&[("1", "2Gi")]), &uid(2)).unwrap_err();
    assert_eq!(Rejection::from(refused.clone()).reason, "UnexpectedAdmissionError", "{refused}");
    let refused = managers.admit(&mut held, &pod(&[("2", "10Mi")]), &uid(3)).unwrap_err();
    assert_eq!(Rejection::from(refused.clone()).reason, "TopologyAffinityError", "{refused}");
    managers.release(&mut held, &uid(1));
    assert_eq!(held.cpu, managers.initial().cpu);
    assert_eq!(held.memory.machine, managers.initial().memory.machine);
}

#[test]
fn a_pod_that_is_refused_takes_nothing_and_one_that_was_admitted_keeps_what_it_has() {
    let managers = managers(Policy::None, Scope::Container);
    let mut held = managers.initial();
    let refused = managers.admit(&mut held, &pod(&[("1", "10Mi"), ("3", "10Mi")]), &uid(1)).unwrap_err();
    assert_eq!(Rejection::from(refused.clone()).reason, "UnexpectedAdmissionError", "{refused}");
    assert_eq!(held, managers.initial());
    let good = pod(&[("1", "10Mi"), ("1", "10Mi")]);
    managers.admit(&mut held, &good, &uid(1)).unwrap();
    let before = held.clone();
    managers.admit(&mut held, &good, &uid(1)).unwrap();
    assert_eq!((held.cpu, held.memory.machine), (before.cpu, before.memory.machine));
}

#[test]
fn what_runs_keeps_its_cpus_when_nothing_is_written_down() {
    let managers = managers(Policy::None, Scope::Container);
    let mut held = managers.initial();
    let (exclusive, sharing) = (pod(&[("2", "10Mi")]), pod(&[("500m", "10Mi")]));
    managers.admit(&mut held, &exclusive, &uid(1)).unwrap();
    managers.admit(&mut held, &sharing, &uid(2)).unwrap();
    let seen = |n: u32| Seen {
        pod: uid(n),
        container: "c0".into(),
        cpus: managers.binding(&held, &uid(n), "c0").cpus.unwrap(),
        memory_nodes: CpuSet::default(),
    };
    let mut rebuilt = managers.rebuilt(&[seen(1), seen(2)]);
    assert_eq!(rebuilt.cpu, held.cpu);
    // One that was taken for its own gives it back when its pod turns out to share.
    let mut mistaken = seen(2);
    mistaken.cpus = CpuSet::from([1]);
    let mut wrong = managers.rebuilt(&[seen(1), mistaken]);
    for (n, pod) in [(1, &exclusive), (2, &sharing)] {
        managers.admit(&mut rebuilt, pod, &uid(n)).unwrap();
        managers.admit(&mut wrong, pod, &uid(n)).unwrap();
    }
    assert_eq!((&rebuilt.cpu, &wrong.cpu), (&held.cpu, &held.cpu));
    assert_eq!(managers.check(&rebuilt), Ok(()));
}

/// What happens to a node: pods come and go, agents end and begin, files are lost.
#[derive(Debug, Clone)]
enum Happening {
    Comes { pod: u32, containers: Vec<(u32, u32)> },
    Goes { pod: u32 },
    Restarts,
    LosesItsFiles,
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let containers = proptest::collection::vec((0..4u32, 1..600u32), 1..3);
    let one = prop_oneof![
        4 => (0..8u32, containers).prop_map(|(pod, containers)| Happening::Comes { pod, containers }),
        3 => (0..8u32).prop_map(|pod| Happening::Goes { pod }),
        1 => Just(Happening::Restarts),
        1 => Just(Happening::LosesItsFiles),
    ];
    proptest::collection::vec(one, 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn nothing_is_given_twice_nor_kept_from_those_who_come_later(
        aligned in prop_oneof![Just(Policy::None), Just(Policy::BestEffort), Just(Policy::Restricted)],
        of_pods in any::<bool>(),
        happenings in happenings(),
    ) {
        let managers = managers(aligned, if of_pods { Scope::Pod } else { Scope::Container });
        let (mut held, mut here) = (managers.initial(), BTreeMap::new());
        for happening in happenings {
            match happening {
                Happening::Comes { pod, .. } if here.contains_key(&uid(pod)) => {}
                Happening::Comes { pod, containers } => {
                    let of = |(cpus, mib): &(u32, u32)| {
                        (if *cpus == 0 { "500m".to_owned() } else { cpus.to_string() }, format!("{mib}Mi"))
                    };
                    let texts: Vec<_> = containers.iter().map(of).collect();
                    let texts: Vec<_> = texts.iter().map(|(c, m)| (c.as_str(), m.as_str())).collect();
                    let object = self::pod(&texts);
                    if managers.admit(&mut held, &object, &uid(pod)).is_ok() {
                        here.insert(uid(pod), object);
                    }
                }
                Happening::Goes { pod } => {
                    here.remove(&uid(pod));
                    managers.release(&mut held, &uid(pod));
                }
                Happening::Restarts => {
                    let (cpu, memory) = (cpu_file::encode("static", &held.cpu), memory_file::encode("Static", &held.memory));
                    held.cpu = cpu_file::decode(&cpu, "static").unwrap();
                    held.memory = memory_file::decode(&memory, "Static").unwrap();
                    prop_assert_eq!(managers.check(&held), Ok(()));
                }
                Happening::LosesItsFiles => {
                    let before = held.clone();
                    held = managers.rebuilt(&seen(&managers, &held, &here));
                    for (uid, pod) in &here {
                        managers.admit(&mut held, pod, uid).unwrap();
                    }
                    prop_assert_eq!((&held.cpu, &held.memory.blocks), (&before.cpu, &before.memory.blocks));
                }
            }
            let mut taken = managers.cpu.as_ref().unwrap().reserved().clone();
            for (uid, containers) in &held.cpu.exclusive {
                prop_assert!(here.contains_key(uid), "{} is gone and holds CPUs", uid);
                for cpus in containers.values() {
                    prop_assert!(taken.intersection(cpus).is_empty() && held.cpu.shared.intersection(cpus).is_empty());
                    taken = taken.union(cpus);
                }
            }
            prop_assert_eq!(managers.check(&held), Ok(()));
        }
        here.keys().for_each(|uid| managers.release(&mut held, uid));
        prop_assert_eq!(&held.cpu, &managers.initial().cpu);
        prop_assert_eq!(&held.memory.machine, &managers.initial().memory.machine);
    }
}

/// Every container, as the runtime would show it.
fn seen(managers: &ResourceManagers, held: &Held, here: &BTreeMap<PodUid, Pod>) -> Vec<Seen> {
    let containers = here.iter().flat_map(|(uid, pod)| {
        pod.spec.iter().flat_map(|s| &s.containers).map(move |c| (uid.clone(), c.name.clone()))
    });
    let seen = containers.map(|(pod, container)| {
        let bound = managers.binding(held, &pod, &container);
        let (cpus, memory_nodes) = (bound.cpus.unwrap(), bound.memory_nodes.unwrap_or_default());
        Seen { pod, container, cpus, memory_nodes }
    });
    seen.collect()
}
