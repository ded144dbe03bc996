use proptest::prelude::*;

use super::*;
use crate::status::is_final;

/// Any pod of up to one init container, one sidecar and two main containers, in any state.
fn any_world() -> impl Strategy<Value = World> {
    let policy = prop::sample::select(vec!["Always", "OnFailure", "Never"]);
    let containers = prop::collection::vec(any_step(), 0..6);
    (policy, any::<bool>(), any::<bool>(), containers, 0..5u8).prop_map(
        |(policy, init, sidecar, steps, life)| {
            let mut w = world();
            let mut inits = vec![];
            if init {
                inits.push(json!({"name": "i"}));
            }
            if sidecar {
                inits.push(json!({"name": "s", "restartPolicy": "Always"}));
            }
            w.restart_policy(policy)
                .init(json!(inits))
                .pod("/spec/containers", json!([{"name": "a"}, {"name": "b"}]));
            w.nothing_runs();
            steps.iter().for_each(|step| step.apply(&mut w));
            match life {
                0 => w.terminating(TerminationReason::Deleted),
                1 => w.terminating(evicted()),
                2 => w.terminated(TerminationReason::Completed),
                _ => &mut w,
            };
            w
        },
    )
}

/// Something happens to one container, or the runtime forgets everything.
#[derive(Debug, Clone)]
struct Step {
    container: &'static str,
    attempt: u32,
    what: u8,
    code: i32,
}

fn any_step() -> impl Strategy<Value = Step> {
    let name = prop::sample::select(vec!["a", "b", "i", "s"]);
    (name, 0..3u32, 0..8u8, 0..3i32).prop_map(|(container, attempt, what, code)| Step {
        container,
        attempt,
        what,
        code,
    })
}

impl Step {
    fn apply(&self, w: &mut World) {
        match self.what {
            0 => w.run(self.container, self.attempt),
            1 => w.instance(self.container, self.attempt, ContainerState::Created, 0),
            2 => w.instance(self.container, self.attempt, ContainerState::Unknown, 0),
            3 => w.waits(self.container, "CrashLoopBackOff", "held back"),
            4 => w.nothing_runs(),
            _ => w.exit(self.container, self.attempt, self.code),
        };
    }
}

fn restarts(status: &PodStatus) -> Vec<i32> {
    let lists = [&status.init_container_statuses, &status.container_statuses];
    lists.into_iter().flatten().flatten().map(|c| c.restart_count).collect()
}

proptest! {
    #[test]
    fn computing_it_again_changes_nothing(mut w in any_world(), later in prop::collection::vec(any_step(), 0..6)) {
        w.remember();
        later.iter().for_each(|step| step.apply(&mut w));
        let first = w.derive();
        w.state.previous_status = Arc::new(first.clone());
        w.facts.now = at(500);
        prop_assert_eq!(w.derive(), first);
    }

    #[test]
    fn a_status_only_moves_forward(mut w in any_world(), later in prop::collection::vec(any_step(), 1..10)) {
        let mut before = w.derive();
        for step in &later {
            w.state.previous_status = Arc::new(before.clone());
            step.apply(&mut w);
            let now = w.derive();
            if before.phase.as_deref().is_some_and(is_final) {
                prop_assert_eq!(&now.phase, &before.phase, "after {:?}", step);
            }
            for (old, new) in restarts(&before).into_iter().zip(restarts(&now)) {
                prop_assert!(new >= old, "restarts went from {} to {} after {:?}", old, new, step);
            }
            before = now;
        }
    }

    #[test]
    fn every_container_has_one_state(w in any_world()) {
        let status = w.derive();
        for name in ["a", "b"] {
            prop_assert!(!line(&status, name).contains("not one state"));
            prop_assert!(container(&status, name).state.is_some());
        }
        let ready = status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
        prop_assert!(!(ready && status.phase.as_deref().is_some_and(is_final)), "ready and over");
    }
}
