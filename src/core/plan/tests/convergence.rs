//! Whatever a pod looks like and wherever an agent dies, following the plans ends in the one right state.

use proptest::prelude::*;

use super::*;

/// Does to the world what a perfect executor would do, one action at a time.
fn carry_out(w: &mut World, action: &Action) {
    match action {
        Action::EnsureCgroup => {}
        Action::MountVolumes => w.state.volumes.state = VolumesState::Ready,
        Action::CreateSandbox { attempt } => w.sandbox(&format!("s{attempt}"), *attempt, SandboxState::Ready),
        Action::StopSandbox { id } => {
            for s in w.observed.sandboxes.iter_mut().filter(|s| s.id == *id) {
                s.state = SandboxState::NotReady;
            }
        }
        Action::RemoveSandbox { id } => {
            w.observed.sandboxes.retain(|s| s.id != *id);
            w.observed.containers.retain(|c| c.sandbox_id != *id);
        }
        Action::StartContainer { name, kind, attempt, .. } => {
            // An init container runs and succeeds at once.
            let init = *kind == ContainerKind::Init;
            let state = if init { ContainerState::Exited } else { ContainerState::Running };
            w.add(name, *attempt, state, 0);
        }
        Action::Resize(_) => {}
        Action::KillContainers(kills) => {
            for c in &mut w.observed.containers {
                if kills.iter().any(|k| k.id == c.id) {
                    c.state = ContainerState::Exited;
                    c.exit_code = 137;
                    c.finished_at = Some(at(990));
                }
            }
        }
        Action::RemoveContainer { id } | Action::ResetContainer { id } => {
            w.observed.containers.retain(|c| c.id != *id)
        }
        Action::UnmountVolumes => w.state.volumes.state = VolumesState::Pending,
        Action::RemoveCgroup => w.state.clean_up = CleanUp::Released,
        Action::Finish => {
            if let Lifecycle::Terminated { reason } = &w.state.lifecycle {
                w.state.clean_up = CleanUp::Finished(reason.clone());
            }
        }
        Action::RemoveDirectories => w.state.clean_up = CleanUp::Gone,
    }
}

/// What the pod waits for comes about: an init container that runs succeeds, a sidecar says that it has started.
fn what_is_awaited_comes(w: &mut World) -> bool {
    let (inits, sidecars) = (w.running_inits(), w.starting_sidecars());
    for c in &mut w.observed.containers {
        if c.state == ContainerState::Running && inits.contains(&c.name) {
            c.state = ContainerState::Exited;
            c.finished_at = Some(at(990));
        }
    }
    let some = !inits.is_empty() || !sidecars.is_empty();
    sidecars.into_iter().for_each(|id| w.sidecar_starts(id));
    some
}

/// Rounds of planning and acting until nothing is left to do; `stops` cuts a round short, as a crash does.
fn settle(w: &mut World, stops: &[usize]) -> usize {
    for round in 0..60 {
        w.advance();
        let plan = plan(&w.state, &w.observed, &w.facts);
        if plan.actions.is_empty() {
            if what_is_awaited_comes(w) {
                continue;
            }
            return round;
        }
        let most = stops.get(round).copied().unwrap_or(usize::MAX);
        for action in plan.actions.iter().take(most) {
            carry_out(w, action);
        }
        if most != usize::MAX {
            // A new agent: what only lived in memory is gone.
            w.state.volumes.state = VolumesState::Pending;
            w.state.containers.clear();
            if w.state.clean_up != CleanUp::Gone {
                w.state.clean_up = CleanUp::Pending;
            }
            if !w.state.lifecycle.is_syncing() {
                w.state.lifecycle = Lifecycle::Syncing;
            }
        }
    }
    panic!("did not converge: {:?}", w.observed);
}

fn any_state() -> impl Strategy<Value = ContainerState> {
    prop_oneof![
        Just(ContainerState::Created),
        Just(ContainerState::Running),
        Just(ContainerState::Exited),
        Just(ContainerState::Unknown)
    ]
}

prop_compose! {
    pub(super) fn any_world()(
        sandboxes in prop::collection::vec(any::<bool>(), 0..3),
        containers in prop::collection::vec((0usize..4, 0u32..3, any_state(), 0i32..2), 0..8),
        policy in prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")],
        first_init in prop_oneof![Just(container("i1")), Just(sidecar("i1")), Just(probed_sidecar("i1"))],
        resets in any::<bool>(),
    ) -> World {
        let mut w = fresh();
        if resets {
            let b = &mut w.spec().containers[1];
            b.restart_policy = Some(policy.into());
            *b = restarts_all(b.clone(), 1);
        }
        w.spec().init_containers.as_mut().unwrap()[0] = first_init;
        w.spec().restart_policy = Some(policy.into());
        for (i, ready) in sandboxes.iter().enumerate() {
            let state = if *ready { SandboxState::Ready } else { SandboxState::NotReady };
            w.sandbox(&format!("s{i}"), i as u32, state);
        }
        if !w.observed.sandboxes.is_empty() {
            for (which, attempt, state, code) in containers {
                let name = ["i1", "i2", "a", "b"][which];
                if w.observed.containers.iter().all(|c| c.name != name || c.attempt != attempt) {
                    w.add(name, attempt, state, code);
                }
            }
        }
        w
    }
}

proptest! {
    // A failure prints its smallest case; a file beside the sources would be taken for a crate.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_state_and_any_crash_points_converge(mut w in any_world(), stops in prop::collection::vec(0usize..4, 0..6)) {
        settle(&mut w, &stops);
        prop_assert!(w.observed.containers.iter().all(|c| c.state != ContainerState::Created));
        let ready = w.observed.sandboxes.iter().filter(|s| s.state == SandboxState::Ready).count();
        let running = w.observed.running().count();
        if w.state.lifecycle.is_syncing() {
            for c in &w.desired.pod.spec.as_ref().unwrap().containers {
                let alive = w.observed.running().filter(|o| o.name == c.name).count();
                let over = w.observed.containers.iter().any(|o| o.name == c.name && o.state == ContainerState::Exited);
                prop_assert!(alive == 1 || (alive == 0 && over));
            }
            prop_assert!(ready == 1);
        } else {
            prop_assert_eq!((running, ready), (0, 0));
        }
        // A plan of a converged pod is empty, and stays so.
        prop_assert_eq!(settle(&mut w, &[]), 0);
    }

    #[test]
    fn a_deleted_pod_leaves_nothing_whatever_it_looked_like(mut w in any_world(), stops in prop::collection::vec(0usize..4, 0..6)) {
        let meta = &mut Arc::make_mut(&mut w.desired.pod).metadata;
        meta.deletion_timestamp = Some(Time(at(900)));
        meta.deletion_grace_period_seconds = Some(5);
        settle(&mut w, &stops);
        prop_assert!(w.observed.containers.is_empty() && w.observed.sandboxes.is_empty());
        prop_assert_eq!(w.state.clean_up, CleanUp::Gone);
    }
}
