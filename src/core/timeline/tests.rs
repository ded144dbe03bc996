mod bounds;
mod figures;
mod lives;
mod names;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState as ApiState, ContainerStatus, Pod, PodCondition, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::desired::{DesiredPod, PodSource, TerminationReason};
use crate::ids::{ContainerId, PodUid, SandboxId};
use crate::observed::{ContainerState, ObservedContainer, ObservedPod, ObservedSandbox, SandboxState};

const T0: i64 = 1_800_000_000_000;

fn wall(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(T0 + millis).unwrap()
}

/// So many milliseconds after the agent began.
fn at(millis: i64) -> Moment {
    Moment::new(wall(millis), Duration::from_millis(u64::try_from(millis).unwrap()))
}

fn uid(text: &str) -> PodUid {
    PodUid::try_from(text).unwrap()
}

/// A pod of the apiserver with containers of these names, created 2 s after the agent began.
fn desired(containers: &[&str]) -> DesiredPod {
    let container = |name: &&str| Container { name: (*name).into(), ..Default::default() };
    let spec = PodSpec { containers: containers.iter().map(container).collect(), ..Default::default() };
    let mut pod = Pod { spec: Some(spec), ..Default::default() };
    pod.metadata.name = Some("web".into());
    pod.metadata.namespace = Some("ns".into());
    pod.metadata.creation_timestamp = Some(Time(wall(2000)));
    DesiredPod { uid: uid("u1"), source: PodSource::Api, pod: Arc::new(pod) }
}

/// Seen at 2.5 s.
fn seen(desired: &DesiredPod) -> PodTimeline {
    PodTimeline::new(Beginning::desired(desired, false, wall(0)), at(2500))
}

fn fresh() -> PodTimeline {
    seen(&desired(&["app"]))
}

/// A step from one time to another.
fn step(t: &mut PodTimeline, step: Step, container: Option<&str>, place: Place, from: i64, to: i64) {
    t.begin(step, container, place, at(from));
    t.end(step, container, Ending::Done, at(to));
}

fn condition(kind: &str, status: &str) -> PodCondition {
    let time = Some(Time(wall(0)));
    PodCondition {
        type_: kind.into(),
        status: status.into(),
        last_transition_time: time,
        ..Default::default()
    }
}

fn running(name: &str, ready: bool) -> ContainerStatus {
    let state = ApiState { running: Some(Default::default()), ..Default::default() };
    ContainerStatus { name: name.into(), ready, state: Some(state), ..Default::default() }
}

fn status(containers: Vec<ContainerStatus>, ready: bool) -> PodStatus {
    let ready = if ready { "True" } else { "False" };
    PodStatus {
        phase: Some("Running".into()),
        container_statuses: Some(containers),
        conditions: Some(vec![condition("Ready", ready)]),
        ..Default::default()
    }
}

fn spec() -> PodSpec {
    PodSpec::default()
}

/// The whole start of a pod with one container that is ready at 5.1 s.
fn started() -> PodTimeline {
    let mut t = fresh();
    t.admitted(Ok(()), at(2510));
    step(&mut t, Step::Cgroup, None, Place::Node, 2510, 2520);
    step(&mut t, Step::Volumes, None, Place::Volume, 2520, 2600);
    step(&mut t, Step::Sandbox, None, Place::RuntimeAndNetwork, 2600, 3000);
    step(&mut t, Step::Pull, Some("app"), Place::Registry, 3000, 4800);
    step(&mut t, Step::Created, Some("app"), Place::Runtime, 4800, 4900);
    step(&mut t, Step::Started, Some("app"), Place::Runtime, 4900, 5000);
    t.begin(Step::Ready, Some("app"), Place::Probe, at(5000));
    t.status(&status(vec![running("app", false)], false), &spec(), at(5010));
    t.status(&status(vec![running("app", true)], true), &spec(), at(5100));
    t
}

fn exited(name: &str, code: i32, started: i64, finished: i64) -> ObservedContainer {
    ObservedContainer {
        id: ContainerId::try_from(format!("{name}-id")).unwrap(),
        sandbox_id: SandboxId::try_from("s").unwrap(),
        name: name.into(),
        attempt: 0,
        state: ContainerState::Exited,
        created_at: wall(started),
        started_at: Some(wall(started)),
        finished_at: Some(wall(finished)),
        exit_code: code,
        reason: if code == 0 { "Completed".into() } else { "Error".into() },
        message: String::new(),
        image: String::new(),
        image_id: String::new(),
        hash: None,
        termination_message_path: None,
        termination_message_policy: None,
        termination_message_host_path: None,
        log_path: String::new(),
        termination_grace_seconds: None,
        deletion_grace_seconds: None,
        pre_stop: None,
        resources: None,
        user: None,
    }
}

fn observed(containers: Vec<ObservedContainer>) -> ObservedPod {
    let mut pod = ObservedPod::empty(uid("u1"), "ns", "web");
    pod.sandboxes.push(ObservedSandbox {
        user_namespace: None,
        id: SandboxId::try_from("s").unwrap(),
        attempt: 0,
        state: SandboxState::Ready,
        created_at: wall(1000),
        ips: vec![],
        host_network: true,
        runtime_handler: String::new(),
    });
    pod.containers = containers;
    pod
}

fn stage<'a>(report: &'a WhyReport, name: &str) -> &'a StageReport {
    report.stages.iter().find(|s| s.stage == name).unwrap_or_else(|| panic!("no {name}: {report:?}"))
}

/// Every step of a stage as `name container seconds`.
fn steps(stage: &StageReport) -> Vec<String> {
    let one = |s: &StepReport| {
        let container = s.container.as_deref().map_or(String::new(), |c| format!("{c} "));
        let seconds = s.seconds.map_or("-".to_owned(), |s| s.to_string());
        format!("{} {container}{seconds}", s.step)
    };
    stage.steps.iter().map(one).collect()
}
