//! Whatever fails, however often, and whatever happens meanwhile: once it is over, the pod is as it should be, and on the
//! way there nothing was tried more often than its back-off allows.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use proptest::prelude::*;

use super::convergence::any_world;
use super::simulation::{FAULTS, Fault, Happening, Simulation};
use super::*;
use crate::admission::Rejection;
use crate::allocation::in_progress;

fn eviction() -> Directive {
    Directive::Evict(Eviction {
        reason: "Evicted".into(),
        message: "The node was low on resource: memory.".into(),
        grace: Duration::from_secs(3),
    })
}

fn refusal() -> Directive {
    Directive::Refuse(Rejection { reason: "OutOfcpu".into(), message: "not enough".into() })
}

type Faults = BTreeMap<Fault, VecDeque<bool>>;

fn any_faults() -> impl Strategy<Value = Faults> {
    let often = prop::collection::vec_deque(prop::bool::weighted(0.7), 1..12);
    prop::collection::btree_map(prop::sample::select(FAULTS.to_vec()), often, 0..7)
}

fn either() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("a"), Just("b")]
}

fn any_happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        4 => (either(), 0i32..2).prop_map(|(name, code)| Happening::Exit(name, code)),
        2 => either().prop_map(Happening::Unhealthy),
        1 => either().prop_map(Happening::ImageChanges),
        1 => Just(Happening::SandboxDies),
        1 => Just(Happening::ObjectsChange),
        2 => (either(), 1i64..4, any::<bool>()).prop_map(|(name, n, restart)| Happening::Resize(name, n * 64, restart)),
        1 => Just(Happening::AgentRestarts),
        1 => Just(Happening::AgentLosesFiles),
    ]
}

/// Each some time after the one before.
fn any_happenings() -> impl Strategy<Value = Vec<(u64, Happening)>> {
    prop::collection::vec((0u64..60_000, any_happening()), 0..8)
}

fn simulation(w: World, faults: Faults, happenings: Vec<(u64, Happening)>) -> Simulation {
    let mut at = w.facts.now;
    let mut s = Simulation::new(w);
    s.faults = faults;
    for (pause, what) in happenings {
        at += Duration::from_millis(pause);
        s.happenings.push_back((at, what));
    }
    s
}

/// Something else happens after all of these.
fn finally(mut happenings: Vec<(u64, Happening)>, pause: u64, last: Happening) -> Vec<(u64, Happening)> {
    happenings.push((pause, last));
    happenings
}

fn running(s: &Simulation) -> usize {
    let alive = |c: &&ObservedContainer| c.state != ContainerState::Exited;
    s.w.observed.containers.iter().filter(alive).count()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_pod_converges_once_failures_stop(
        w in any_world(), faults in any_faults(), happenings in any_happenings(),
    ) {
        let mut s = simulation(w, faults, happenings);
        s.run();
        let w = &s.w;
        let ready = w.observed.sandboxes.iter().filter(|s| s.state == SandboxState::Ready).count();
        prop_assert!(w.observed.containers.iter().all(|c| c.state != ContainerState::Created));
        if w.state.lifecycle.is_syncing() {
            prop_assert_eq!(ready, 1);
            prop_assert!(!in_progress(&w.desired.pod, w.state.actuated.as_deref(), &w.observed));
            prop_assert_eq!(&w.state.resize.in_progress, &None);
            for c in &w.desired.pod.spec.as_ref().unwrap().containers {
                let last = w.observed.latest(&c.name).unwrap();
                let as_asked = last.state == ContainerState::Running
                    || !w.state.restarts(w.desired.pod.spec.as_ref().unwrap(), c, ContainerKind::Main, last);
                prop_assert!(as_asked, "{:?}", last);
                // Of one that has ended for good nobody asks why it is not started.
                prop_assert!(last.state == ContainerState::Exited || w.state.waiting(&c.name).is_none());
            }
        } else {
            prop_assert_eq!((running(&s), ready), (0, 0));
        }
        // The plan of a converged pod is empty, and stays so.
        prop_assert!(plan(&s.w.state, &s.w.observed, &s.w.facts).actions.is_empty());
    }

    #[test]
    fn what_the_agent_ended_for_a_restart_runs_in_the_end(
        w in any_world(), faults in any_faults(), pauses in prop::collection::vec(0u64..60_000, 1..5),
        changes in any::<bool>(),
    ) {
        let what = if changes { Happening::ImageChanges("b") } else { Happening::Unhealthy("b") };
        let happenings = pauses.into_iter().map(|pause| (pause, what.clone())).collect();
        let mut s = simulation(w, faults, happenings);
        s.run();
        let of_b = |id: &ContainerId| id.as_str().starts_with("b-");
        // With Never a failed probe is the end; another image is not.
        let policy = s.w.spec().restart_policy.clone();
        if s.ordered.keys().any(of_b) && (changes || policy.as_deref() != Some("Never")) {
            let last = s.w.observed.latest("b").unwrap();
            prop_assert_eq!((last.state, s.ordered.contains_key(&last.id)), (ContainerState::Running, false));
        }
    }

    #[test]
    fn a_deletion_at_any_moment_leads_to_everything_gone(
        w in any_world(), faults in any_faults(), happenings in any_happenings(), pause in 0u64..120_000,
        vanishes in any::<bool>(), evicted in any::<bool>(),
    ) {
        let last = if vanishes { Happening::Vanish } else { Happening::Delete };
        let before = if evicted { finally(happenings, 100, Happening::Decide(eviction())) } else { happenings };
        let mut s = simulation(w, faults, finally(before, pause, last));
        s.run();
        prop_assert!(s.w.observed.containers.is_empty() && s.w.observed.sandboxes.is_empty());
        prop_assert_eq!(&s.w.state.clean_up, &CleanUp::Gone);
    }

    #[test]
    fn a_pod_that_the_node_ends_at_any_moment_stops_and_fails_with_the_reason(
        w in any_world(), faults in any_faults(), happenings in any_happenings(), pause in 0u64..120_000,
        refused in any::<bool>(),
    ) {
        let directive = if refused { refusal() } else { eviction() };
        let reason = if refused { "OutOfcpu" } else { "Evicted" };
        let mut s = simulation(w, faults, finally(happenings, pause, Happening::Decide(directive)));
        s.run();
        prop_assert_eq!(running(&s), 0);
        let Lifecycle::Terminated { reason: end } = &s.w.state.lifecycle else {
            return Err(TestCaseError::fail(format!("{:?}", s.w.state.lifecycle)));
        };
        let status = &s.w.state.previous_status;
        if *end == TerminationReason::Completed {
            // It had ended by itself before.
            prop_assert!(crate::status::is_finished(status));
        } else {
            prop_assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some(reason)));
        }
    }
}
