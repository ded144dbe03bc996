use super::*;
use ActionOutcome as Done;

fn no_sandbox(cause: SandboxFailureCause) -> Done {
    Done::SandboxCreated(Err(SandboxFailure { message: "no".into(), cause }))
}

#[test]
fn failures_are_reported_and_end_the_plan() {
    let stopped = |pre_stop: Result<(), String>, stop: Result<(), String>| {
        Done::ContainersStopped(vec![Stopped { name: "a".into(), pre_stop, stop }])
    };
    let no = || Err("no".to_owned());
    let hook = |result| Done::PostStartEnded { id: id("a0"), name: "a".into(), result };
    let cases = [
        (Done::Step(Step::RemoveSandbox, Ok(())), ""),
        (Done::Step(Step::RemoveSandbox, no()), " STOP"),
        (
            Done::Step(Step::EnsureCgroup, no()),
            "FailedToCreatePodContainer: unable to ensure pod container exists: no STOP",
        ),
        (not_mounted(), "FailedMount: no STOP"),
        (
            no_sandbox(SandboxFailureCause::Other),
            "FailedCreatePodSandBox: Failed to create pod sandbox: no STOP",
        ),
        (no_sandbox(SandboxFailureCause::NetworkNotReady), "NetworkNotReady: network is not ready: no STOP"),
        (not_started("ErrImagePull", StartRetry::Pull), "Failed: Error: ErrImagePull STOP"),
        (not_started("ErrImageNeverPull", StartRetry::Later), "Failed: Error: ErrImageNeverPull STOP"),
        (not_started("CreateContainerError", StartRetry::Later), "Failed: Error: no STOP"),
        (Done::ContainerStarted { name: "a".into(), result: Ok(()) }, "Started: Container started"),
        (hook(Some(Ok(()))), ""),
        (hook(Some(no())), "FailedPostStartHook: PostStartHook failed STOP"),
        (hook(None), " STOP"),
        (stopped(Ok(()), Ok(())), ""),
        (stopped(no(), Ok(())), "FailedPreStopHook: PreStopHook failed"),
        (stopped(Ok(()), no()), "FailedKillPod: error killing container: no STOP"),
    ];
    for (done, expected) in cases {
        let name = format!("{done:?}");
        assert_eq!(words(&state().apply(done, at(0))), expected, "{name}");
    }
}

#[test]
fn each_kind_of_failure_serves_its_own_back_off() {
    let sandbox: fn() -> Done = || no_sandbox(SandboxFailureCause::Other);
    let waits = |s: &PodState| s.waiting("a").and_then(|w| w.retry_at);
    type When = fn(&PodState) -> Option<Timestamp>;
    type Case = (&'static str, fn() -> Done, When, [i64; 4]);
    let cases: [Case; 6] = [
        (
            "an image",
            || not_started("ErrImagePull", StartRetry::Pull),
            waits,
            [10_000, 20_000, 40_000, 80_000],
        ),
        ("a container", || not_started("CreateContainerError", StartRetry::Later), waits, [10_000; 4]),
        ("a name that is held", || not_started("CreateContainerError", StartRetry::Soon), waits, [500; 4]),
        (
            "a sandbox",
            sandbox,
            |s| s.sandbox.failure.as_ref().and_then(|w| w.retry_at),
            [1000, 2000, 4000, 8000],
        ),
        ("volumes", || not_mounted(), |s| s.retry.at(), [500, 1000, 2000, 4000]),
        (
            "clean-up",
            || Done::Step(Step::UnmountVolumes, Err("no".into())),
            |s| s.retry.at(),
            [250, 500, 1000, 2000],
        ),
    ];
    for (name, done, when, delays) in cases {
        let mut state = state();
        for delay in delays {
            let _ = state.apply(done(), at(0));
            assert_eq!(when(&state), Some(at(delay)), "{name}");
        }
    }
}

#[test]
fn clean_up_is_tried_again_every_sixteen_seconds_at_least_and_at_once_after_a_success() {
    let mut state = state();
    for _ in 0..40 {
        let _ = state.apply(Done::Step(Step::UnmountVolumes, Err("no".into())), at(0));
    }
    assert_eq!(state.held_until(at(0)), Some(at(16_000)));
    state.round_succeeded();
    assert_eq!(state.held_until(at(0)), None);
}

#[test]
fn containers_that_cannot_be_stopped_together_are_one_failure() {
    let mut state = state();
    let failed = |name: &str| Stopped { name: name.into(), pre_stop: Ok(()), stop: Err("no".into()) };
    let _ = state.apply(Done::ContainersStopped(vec![failed("a"), failed("b"), failed("c")]), at(0));
    assert_eq!(state.retry.at(), Some(at(250)));
}

#[test]
fn volumes_that_were_good_stay_in_use_when_their_renewal_fails() {
    let mut state = state();
    let _ = state.apply(mounted(Some(at(5000))), at(0));
    state.refresh_volumes(at(4999));
    assert_eq!(state.volumes.state, VolumesState::Ready);
    state.refresh_volumes(at(5000));
    assert_eq!(state.volumes.state, VolumesState::Pending);
    assert_eq!(words(&state.apply(not_mounted(), at(5000))), "FailedMount: no");
    assert_eq!((&state.volumes.state, state.volumes.next_review()), (&VolumesState::Ready, Some(at(5500))));
    assert_eq!(state.held_until(at(5000)), None, "what runs or restarts goes on");
    let again = state.plan_volumes(at(5499));
    assert!(!again.prepares("v"), "a new sandbox does not make it come sooner");
}

#[test]
fn a_sandbox_name_that_stays_reserved_is_given_up() {
    let mut state = state();
    let mut attempts = vec![];
    for _ in 0..6 {
        attempts.push(state.sandbox.attempt(2));
        let _ = state.apply(no_sandbox(SandboxFailureCause::NameReserved), at(0));
    }
    assert_eq!(attempts, [2, 2, 2, 2, 3, 4]);
    let _ = state.apply(no_sandbox(SandboxFailureCause::Other), at(0));
    assert_eq!(state.sandbox.attempt(2), 2, "another failure says that the name is free");
    let _ = state.apply(Done::SandboxCreated(Ok(())), at(0));
    assert_eq!(state.sandbox, SandboxMemory::default());
}

#[test]
fn a_start_makes_up_for_what_failed_before() {
    let mut state = state();
    let _ = state.apply(not_started("ErrImagePull", StartRetry::Pull), at(0));
    let _ = state.apply(Done::ContainerStarted { name: "a".into(), result: Ok(()) }, at(1));
    assert_eq!(state.containers["a"], ContainerMemory::default());
}

#[test]
fn a_restart_makes_the_next_one_wait_longer_unless_it_was_up_for_long() {
    let mut state = state();
    let mut delays = vec![];
    for was_up in [1, 1, 1, 600] {
        let _ =
            state.apply(Done::RestartBegun { name: "a".into(), was_up: Duration::from_secs(was_up) }, at(0));
        delays.push(state.containers["a"].crash_backoff.delay().as_secs());
    }
    assert_eq!(delays, [10, 20, 40, 10]);
}

#[test]
fn restarts_wait_no_longer_than_is_configured() {
    for (longest, expected) in
        [(300, [10, 20, 40, 80, 160, 300]), (25, [10, 20, 25, 25, 25, 25]), (3, [3; 6])]
    {
        let longest = CrashPolicy::up_to(Duration::from_secs(longest));
        let mut state = PodState { crash_policy: longest, ..state() };
        let delays = [(); 6].map(|()| {
            let _ = state.apply(Done::RestartBegun { name: "a".into(), was_up: Duration::ZERO }, at(0));
            state.containers["a"].crash_backoff.delay().as_secs()
        });
        assert_eq!(delays, expected);
        let crashed = observed(SandboxState::Ready, &[("a", 9, ContainerState::Exited)]);
        let resumed = PodState::new(Some(desired()), &crashed, longest);
        assert_eq!(resumed.containers["a"].crash_backoff.delay().as_secs(), expected[5], "after a restart");
    }
}

#[test]
fn clean_up_goes_step_by_step() {
    let mut state = state();
    let _ = state.apply(mounted(Some(at(5000))), at(0));
    state.enter(Lifecycle::Terminated { reason: TerminationReason::Deleted });
    let mut done = |step| {
        let _ = state.apply(Done::Step(step, Ok(())), at(0));
        state.clean_up.clone()
    };
    assert_eq!(done(Step::UnmountVolumes), CleanUp::Pending);
    assert_eq!(done(Step::RemoveCgroup), CleanUp::Released);
    assert_eq!(done(Step::Finish), CleanUp::Finished(TerminationReason::Deleted));
    assert_eq!(done(Step::RemoveDirectories), CleanUp::Gone);
    assert_eq!(state.volumes, PodVolumes::default(), "nothing is left to be renewed");
    assert!(!state.is_reported());
}
