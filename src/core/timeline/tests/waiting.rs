//! What a pod waits for, and what would change it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Probe;

use super::super::waits::missing_object;
use super::*;
use crate::env::ConfigError;
use crate::facts::{Facts, ProbeVerdicts};
use crate::image::of_volume;
use crate::plan::Plan;
use crate::pod::{
    ActionOutcome, CleanUp, PodState, SandboxFailure, SandboxFailureCause, StartFailure, StartRetry, Waiting,
};
use crate::volumes::{VolumeError, VolumeOutcome, VolumeProblem};

/// One situation; every case mutates what it is about.
struct World {
    state: PodState,
    plan: Plan,
    observed: ObservedPod,
    facts: Facts,
    standalone: bool,
}

fn world() -> World {
    let mut desired = desired(&["app"]);
    let mut pod = Pod::clone(&desired.pod);
    let spec = pod.spec.as_mut().unwrap();
    spec.containers[0].image = Some("registry.example/app:2".into());
    spec.containers[0].readiness_probe = Some(Probe::default());
    spec.init_containers = Some(vec![Container { name: "first".into(), ..Default::default() }]);
    desired.pod = Arc::new(pod);
    World {
        state: PodState { desired: Some(desired), ..PodState::default() },
        plan: Plan::default(),
        observed: observed(vec![]),
        facts: Facts {
            now: wall(5000),
            probes: BTreeMap::new(),
            host_ips: vec![],
            runtime_name: "x".into(),
            recursive_read_only: false,
        },
        standalone: false,
    }
}

impl World {
    fn not_started(&mut self, failure: StartFailure) {
        let done = ActionOutcome::ContainerStarted { name: "app".into(), result: Err(failure) };
        let _ = self.state.apply(done, wall(5000));
    }

    fn runs(&mut self, name: &str) {
        let mut container = exited(name, 0, 3000, 4000);
        (container.state, container.finished_at) = (ContainerState::Running, None);
        self.observed.containers.push(container);
    }

    fn probed(&mut self, started: bool, ready: bool) {
        let id = ContainerId::try_from("app-id").unwrap();
        self.facts.probes.insert(id, ProbeVerdicts { started, ready, unhealthy: None });
    }

    fn volume_fails(&mut self, problem: VolumeProblem) {
        let message = VolumeError { volume: "v".into(), problem }.to_string();
        let outcomes = vec![
            VolumeOutcome::Directories { path: "/pod".into() },
            VolumeOutcome::Failed { volume: "v".into(), message },
        ];
        let mut desired = self.state.desired.clone().unwrap();
        let mut pod = Pod::clone(&desired.pod);
        let v = k8s_openapi::api::core::v1::Volume { name: "v".into(), ..Default::default() };
        pod.spec.as_mut().unwrap().volumes = Some(vec![v]);
        desired.pod = Arc::new(pod);
        self.state.desired = Some(desired);
        let _ = self.state.apply(ActionOutcome::VolumesMounted(outcomes), wall(5000));
    }

    /// Each as `container: what; then; retry after so many milliseconds`.
    fn waits(&self) -> String {
        let World { state, plan, observed, facts, standalone } = self;
        let all = waits(&WaitInput { state, plan, observed, facts, standalone: *standalone });
        let one = |w: &Wait| {
            let of = w.container.as_deref().map_or(String::new(), |c| format!("{c}: "));
            let retry = w.retry_at.map(|at| format!("; {}", at.duration_since(facts.now).as_millis()));
            format!("{of}{}; {}{}", w.what, w.then, retry.unwrap_or_default())
        };
        all.iter().map(one).collect::<Vec<_>>().join(" | ")
    }
}

#[test]
fn everything_that_holds_a_pod_up_is_said_with_what_would_change_it() {
    let pull = |message: &str| StartFailure {
        reason: "ErrImagePull",
        message: message.into(),
        retry: StartRetry::Pull,
    };
    let secret = || ConfigError::SecretMissing { name: "db".into() };
    type Case = (&'static str, Box<dyn Fn(&mut World)>, &'static str);
    let cases: Vec<Case> = vec![
        ("nothing", Box::new(|_| {}), ""),
        (
            "an image",
            Box::new(move |w| {
                w.not_started(pull("not found"));
                w.state.soften_image_failures();
            }),
            "app: backs off from pulling registry.example/app:2: ErrImagePull: not found; it goes on when a pull succeeds, \
             or when the spec names another image; 10000",
        ),
        (
            "an image before the back-off has begun",
            Box::new(move |w| w.not_started(pull("not found"))),
            "app: backs off from pulling registry.example/app:2: not found; it goes on when a pull succeeds, or when the \
             spec names another image; 10000",
        ),
        (
            "the image of a volume",
            Box::new(move |w| w.not_started(of_volume("data", "r.io/tools:1", pull("not found")))),
            "app: backs off from pulling r.io/tools:1: image volume \"data\" (r.io/tools:1): not found; it goes on when a pull \
             succeeds, or when the spec names another image; 10000",
        ),
        (
            "an image that is never pulled",
            Box::new(|w| {
                w.not_started(StartFailure { reason: "ErrImageNeverPull", ..StartFailure::create("x") });
            }),
            "app: image registry.example/app:2 is not on this machine, and its pull policy is Never; it goes on when the \
             image has been loaded; 10000",
        ),
        (
            "a secret of the environment",
            Box::new(move |w| w.not_started(StartFailure::config(secret()))),
            "app: waits for secret ns/db, which does not exist; it goes on when the secret is created; 10000",
        ),
        (
            "a secret that can never come",
            Box::new(move |w| {
                w.standalone = true;
                w.not_started(StartFailure::config(secret()));
            }),
            "app: waits for secret ns/db, and this node has no apiserver to get it from; it goes on when its manifest does \
             not refer to it any more; 10000",
        ),
        (
            "a volume",
            Box::new(|w| w.volume_fails(VolumeProblem::ConfigMapMissing("settings".into()))),
            "waits for configmap ns/settings, which does not exist; it goes on when the configmap is created; 500",
        ),
        (
            "another failure of a volume",
            Box::new(|w| w.volume_fails(VolumeProblem::SecretKey("k".into()))),
            "a volume is not ready: MountVolume.SetUp failed for volume \"v\" : references non-existent secret key: k; it \
             goes on when the volume can be set up; 500",
        ),
        (
            "a sandbox",
            Box::new(|w| {
                w.observed.sandboxes.clear();
                let failure =
                    SandboxFailure { message: "no addresses".into(), cause: SandboxFailureCause::Other };
                let _ = w.state.apply(ActionOutcome::SandboxCreated(Err(failure)), wall(5000));
            }),
            "Failed to create pod sandbox: no addresses; it goes on when the runtime can make the sandbox; 1000",
        ),
        (
            "a crash",
            Box::new(|w| {
                w.observed.containers.push(exited("app", 3, 3000, 4000));
                let retry_at = Some(wall(14_000));
                let waiting = Waiting { reason: "CrashLoopBackOff".into(), message: "x".into(), retry_at };
                w.plan.waiting.insert("app".into(), waiting);
            }),
            "app: backs off from starting it again: it ended with exit code 3 (Error) after 1.00 s; it is started again \
             then; another image or other resources start it at once; 9000",
        ),
        (
            "an init container",
            Box::new(|w| w.runs("first")),
            "first: it is running, and what comes after it waits for its end; it goes on when it has ended without a failure",
        ),
        (
            "a readiness probe",
            Box::new(|w| {
                w.runs("app");
                w.probed(true, false);
            }),
            "app: its readiness probe has not succeeded; it is ready when the probe succeeds",
        ),
        (
            "a startup probe",
            Box::new(|w| {
                w.runs("app");
                w.probed(false, false);
            }),
            "app: its startup probe has not succeeded; it goes on when the probe succeeds; when it has failed too often the \
             container is ended",
        ),
        (
            "a gate",
            Box::new(|w| {
                let ready =
                    PodCondition { message: Some("gate x is closed".into()), ..condition("Ready", "False") };
                let conditions = Some(vec![condition("ContainersReady", "True"), ready]);
                w.state.previous_status = Arc::new(PodStatus { conditions, ..Default::default() });
            }),
            "gate x is closed; it is ready when whoever sets this condition does",
        ),
        (
            "an action that failed",
            Box::new(|w| w.state.retry.failed(wall(5000))),
            "the last thing that was done for it failed; it is tried again; 250",
        ),
        (
            "a pod that has ended",
            Box::new(|w| {
                w.state.lifecycle =
                    crate::desired::Lifecycle::Terminated { reason: TerminationReason::Completed };
                w.state.clean_up = CleanUp::Finished(TerminationReason::Completed);
            }),
            "it has ended and waits for nothing; it stays as it is until it is deleted",
        ),
        (
            "a pod that is ready",
            Box::new(|w| {
                let conditions = Some(vec![condition("Ready", "True")]);
                w.state.previous_status = Arc::new(PodStatus { conditions, ..Default::default() });
                w.runs("app");
                w.probed(true, false);
            }),
            "",
        ),
    ];
    for (case, change, expected) in cases {
        let mut world = world();
        change(&mut world);
        assert_eq!(world.waits(), expected, "{case}");
    }
}

#[test]
fn a_missing_object_is_read_from_this_agents_own_words() {
    let env = |e: ConfigError| missing_object(&e.to_string(), "ns");
    assert_eq!(env(ConfigError::SecretMissing { name: "db".into() }).as_deref(), Some("secret ns/db"));
    assert_eq!(env(ConfigError::ConfigMapMissing { name: "c".into() }).as_deref(), Some("configmap ns/c"));
    let key = ConfigError::SecretKey { namespace: "ns".into(), name: "db".into(), key: "k".into() };
    assert_eq!(env(key), None);
    let volume =
        |problem| missing_object(&VolumeError { volume: "secret \"x\"".into(), problem }.to_string(), "ns");
    let hostile = volume(VolumeProblem::SecretMissing("db".into()));
    assert_eq!(hostile.as_deref(), Some("secret ns/db"), "the name of a volume does not mislead");
    let plain = VolumeError { volume: "v".into(), problem: VolumeProblem::SecretMissing("db".into()) };
    assert_eq!(missing_object(&plain.to_string(), "ns").as_deref(), Some("secret ns/db"));
}

#[test]
fn a_probe_says_what_it_found_and_a_retry_what_failed() {
    let mut t = started();
    t.failed(Step::Probe, Place::Probe, Some("other"), "not this one", at(5200));
    t.failed(Step::Probe, Place::Probe, Some("app"), "Readiness probe failed: 503", at(5200));
    t.failed(Step::Cgroup, Place::Node, None, "read-only", at(5300));
    let probe = Wait::pod("its readiness probe has not succeeded", "y").of("app").see(Detail::Probe);
    let retry = Wait::pod("the last thing failed", "y").see(Detail::Latest).until(Some(wall(8000)));
    t.rests(vec![probe, retry]);
    let now = t.report(None, at(6000)).now;
    assert_eq!(now[0].what, "its readiness probe has not succeeded: Readiness probe failed: 503");
    assert_eq!(now[1].what, "the last thing failed: read-only");
    assert_eq!((now[1].retry_in_seconds, now[1].retry_at.clone()), (Some(2.0), Some(wall(8000).to_string())));
    assert_eq!(t.report(None, at(9000)).now[1].retry_in_seconds, Some(0.0), "overdue is now");
}

#[test]
fn what_goes_on_is_waited_for_before_what_the_pod_went_to_rest_with() {
    let mut t = fresh();
    t.admitted(Ok(()), at(2600));
    t.rests(vec![Wait::pod("old news", "y").of("app"), Wait::pod("of another", "y").of("side")]);
    t.begin(Step::Pull, Some("app"), Place::Registry, at(3000));
    let now = t.report(None, at(4000)).now;
    assert_eq!(now.len(), 2, "{now:?}");
    assert_eq!(
        (now[0].container.as_deref(), now[0].since.clone()),
        (Some("app"), Some(wall(3000).to_string()))
    );
    assert!(now[0].what.contains("being pulled"), "{}", now[0].what);
    assert_eq!(now[1].what, "of another");
}

#[test]
fn a_status_that_the_apiserver_does_not_take_is_waited_for_until_it_does() {
    let mut t = started();
    t.status_written(Err("connection refused"), at(6000));
    t.status_written(Err("connection refused"), at(7000));
    let report = t.report(None, at(8000));
    let wait = report.now.iter().find(|w| w.what.contains("latest status")).unwrap();
    assert_eq!(wait.since, Some(wall(6000).to_string()));
    assert_eq!((report.failures[0].step.as_str(), report.failures[0].count), ("status", 2));
    t.status_written(Ok(()), at(9000));
    assert!(!t.report(None, at(9000)).now.iter().any(|w| w.what.contains("latest status")));
}

#[test]
fn the_json_keeps_its_shape() {
    let mut t = started();
    t.failed(Step::Probe, Place::Probe, Some("app"), "Readiness probe failed: 503", at(5200));
    t.rests(vec![Wait::pod("a", "b").of("app").until(Some(wall(8000)))]);
    let json = serde_json::to_value(t.report(None, at(6000))).unwrap();
    let keys =
        |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(
        keys(&json),
        "at failures leftOut name namespace now others phase ready source stages summary uid"
    );
    assert_eq!(keys(&json["now"][0]), "container retryAt retryInSeconds then what");
    assert_eq!(keys(&json["stages"][0]), "beganAt endedAt places seconds stage steps");
    assert_eq!(
        keys(&json["stages"][0]["steps"][5]),
        "atMost beganAt container endedAt failedTries offsetSeconds place result seconds slowest step"
    );
    assert_eq!(keys(&json["stages"][0]["places"][0]), "place seconds");
    assert_eq!(keys(&json["failures"][0]), "cause container count firstAt lastAt place step");
    let back: WhyReport = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(serde_json::to_value(back).unwrap(), json);
}
