//! What orders, observations and outcomes do to a pod's memory. Whole lives with failures are in `plan::tests::failures`.

mod changes;
mod outcomes;
mod urgency;

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, SecretVolumeSource, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::backoff::CrashPolicy;
use crate::desired::{DesiredPod, Lifecycle, PodSource, TerminationReason};
use crate::ids::{ContainerId, PodUid, SandboxId};
use crate::observed::{ContainerState, ObservedContainer, ObservedPod, ObservedSandbox, SandboxState};
use crate::volumes::{Change, VolumeOutcome, VolumePlace};

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(1_800_000_000_000 + millis).unwrap()
}

fn id(id: &str) -> ContainerId {
    ContainerId::try_from(id).unwrap()
}

/// A pod with one container `a` and a volume `v` that shows a secret and the pod's own labels.
fn desired() -> DesiredPod {
    let a = Container { name: "a".into(), image: Some("image".into()), ..Default::default() };
    let secret = SecretVolumeSource { secret_name: Some("s".into()), ..Default::default() };
    let mut v = Volume { name: "v".into(), secret: Some(secret), ..Default::default() };
    v.downward_api = Some(Default::default());
    let spec = PodSpec { containers: vec![a], volumes: Some(vec![v]), ..Default::default() };
    let pod = Arc::new(Pod { spec: Some(spec), ..Default::default() });
    DesiredPod { uid: PodUid::try_from("u").unwrap(), source: PodSource::Api, pod }
}

fn state() -> PodState {
    PodState { desired: Some(desired()), ..PodState::default() }
}

fn observed(sandbox: SandboxState, containers: &[(&str, u32, ContainerState)]) -> ObservedPod {
    let sandbox_id = SandboxId::try_from("s").unwrap();
    let mut pod = ObservedPod::empty(PodUid::try_from("u").unwrap(), "ns", "p");
    pod.sandboxes.push(ObservedSandbox {
        id: sandbox_id.clone(),
        attempt: 0,
        state: sandbox,
        created_at: at(0),
        ips: vec![],
        host_network: false,
        runtime_handler: String::new(),
        user_namespace: None,
    });
    pod.containers = containers
        .iter()
        .map(|(name, attempt, state)| ObservedContainer {
            id: id(&format!("{name}{attempt}")),
            sandbox_id: sandbox_id.clone(),
            name: (*name).into(),
            attempt: *attempt,
            state: *state,
            created_at: at(0),
            started_at: Some(at(0)),
            finished_at: (*state == ContainerState::Exited).then(|| at(1000)),
            exit_code: 1,
            reason: String::new(),
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
        })
        .collect();
    pod
}

fn mounted(refresh_at: Option<Timestamp>) -> ActionOutcome {
    ActionOutcome::VolumesMounted(vec![
        VolumeOutcome::Directories { path: "/pod".into() },
        VolumeOutcome::Prepared { volume: "v".into(), place: VolumePlace::Host("/pod/v".into()), refresh_at },
    ])
}

fn not_mounted() -> ActionOutcome {
    ActionOutcome::VolumesMounted(vec![
        VolumeOutcome::Directories { path: "/pod".into() },
        VolumeOutcome::Failed { volume: "v".into(), message: "no".into() },
    ])
}

fn not_started(reason: &'static str, retry: StartRetry) -> ActionOutcome {
    let result = Err(StartFailure { reason, message: "no".into(), retry });
    ActionOutcome::ContainerStarted { name: "a".into(), result }
}

fn words(applied: &Applied) -> String {
    let events: Vec<_> = applied.events.iter().map(|e| format!("{}: {}", e.reason, e.message)).collect();
    format!("{}{}", events.join("; "), if applied.stop { " STOP" } else { "" })
}
