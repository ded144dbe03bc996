//! Validates the runtime's answers. An entry that cannot be true is left out, or stripped of the part that cannot be, with a
//! line in the log; the entries beside it are used.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Component, Path};

use jiff::Timestamp;
use keelson_core::ids::{ContainerId, PodUid, SandboxId};
use keelson_core::observed::{
    ContainerState, ObservedContainer, ObservedResources, ObservedSandbox, ObservedUser, SandboxState,
};
use keelson_core::user_namespaces::UserNamespace;
use keelson_proto::runtime::v1 as proto;
use tracing::warn;

use crate::convert::labels;

type Map = BTreeMap<String, String>;

/// Whose entry it is, as its labels say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    pub uid: PodUid,
    pub namespace: String,
    pub name: String,
}

impl Owner {
    /// `None` for entries that no node agent made, such as those of other tools on the same runtime.
    pub fn read(labels: &Map, id: &str) -> Option<Self> {
        let uid = labels.get(labels::POD_UID)?;
        let namespace = labels.get(labels::POD_NAMESPACE)?;
        let name = labels.get(labels::POD_NAME)?;
        let becomes_a_path = |text: &str| PodUid::try_from(text).map(drop);
        let checked = becomes_a_path(namespace).and(becomes_a_path(name)).and(PodUid::try_from(uid.as_str()));
        match checked {
            Ok(uid) => Some(Self { uid, namespace: namespace.clone(), name: name.clone() }),
            Err(error) => {
                warn!(id, %error, "runtime entry ignored: its labels do not name a pod");
                None
            }
        }
    }

    /// NAMESPACE_NAME_UID, as the directory of the pod's logs is called on disk.
    fn log_directory(&self) -> String {
        format!("{}_{}_{}", self.namespace, self.name, self.uid)
    }
}

pub(crate) fn sandbox_state(reported: i32, id: &str) -> SandboxState {
    match proto::PodSandboxState::try_from(reported) {
        Ok(proto::PodSandboxState::SandboxReady) => SandboxState::Ready,
        Ok(proto::PodSandboxState::SandboxNotready) => SandboxState::NotReady,
        Err(_) => {
            warn!(id, state = reported, "sandbox in a state that does not exist, taken as not ready");
            SandboxState::NotReady
        }
    }
}

pub(crate) fn container_state(reported: i32, id: &str) -> ContainerState {
    match proto::ContainerState::try_from(reported) {
        Ok(proto::ContainerState::ContainerCreated) => ContainerState::Created,
        Ok(proto::ContainerState::ContainerRunning) => ContainerState::Running,
        Ok(proto::ContainerState::ContainerExited) => ContainerState::Exited,
        Ok(proto::ContainerState::ContainerUnknown) => ContainerState::Unknown,
        Err(_) => {
            warn!(id, state = reported, "container in a state that does not exist, taken as unknown");
            ContainerState::Unknown
        }
    }
}

pub(crate) fn sandbox(status: &proto::PodSandboxStatus, owner: &Owner) -> Option<ObservedSandbox> {
    let id = match SandboxId::try_from(status.id.as_str()) {
        Ok(id) => id,
        Err(error) => {
            warn!(uid = %owner.uid, pod = owner.name, %error, "sandbox ignored");
            return None;
        }
    };
    let metadata = status.metadata.clone().unwrap_or_default();
    if metadata.uid != owner.uid.as_str() {
        warn!(%id, label = %owner.uid, metadata = metadata.uid, "sandbox ignored: its label names another pod than its metadata");
        return None;
    }
    let state = sandbox_state(status.state, id.as_str());
    let namespaces =
        status.linux.as_ref().and_then(|l| l.namespaces.as_ref()).and_then(|n| n.options.as_ref());
    let host_network = namespaces.is_some_and(|o| o.network() == proto::NamespaceMode::Node);
    let ips = if state == SandboxState::Ready && !host_network { addresses(status) } else { vec![] };
    Some(ObservedSandbox {
        attempt: metadata.attempt,
        state,
        created_at: timestamp(status.created_at),
        ips,
        host_network,
        runtime_handler: status.runtime_handler.clone(),
        user_namespace: namespaces.and_then(|o| o.userns_options.as_ref()).and_then(user_namespace),
        id,
    })
}

/// One mapping, the same for users and groups, from id 0 on: that is what agents ask for.
fn user_namespace(options: &proto::UserNamespace) -> Option<UserNamespace> {
    let [ids] = &options.uids[..] else { return None };
    let whole = options.mode() == proto::NamespaceMode::Pod
        && options.uids == options.gids
        && ids.container_id == 0
        && ids.length > 0;
    whole.then_some(UserNamespace { first_host_id: ids.host_id, length: ids.length })
}

fn addresses(status: &proto::PodSandboxStatus) -> Vec<IpAddr> {
    let Some(network) = &status.network else { return vec![] };
    let reported = std::iter::once(&network.ip).chain(network.additional_ips.iter().map(|more| &more.ip));
    reported
        .filter(|text| !text.is_empty())
        .filter_map(|text| match text.parse() {
            Ok(address) => Some(address),
            Err(_) => {
                warn!(id = status.id, address = text, "sandbox has an address that is none, left out");
                None
            }
        })
        .collect()
}

pub(crate) fn container(
    status: &proto::ContainerStatus,
    sandbox_id: &str,
    owner: &Owner,
    pod_logs: &Path,
) -> Option<ObservedContainer> {
    let name = status.labels.get(labels::CONTAINER_NAME)?.clone();
    let ids =
        ContainerId::try_from(status.id.as_str()).and_then(|id| Ok((id, SandboxId::try_from(sandbox_id)?)));
    // The name becomes part of a path too.
    let (id, sandbox_id) = match ids.and_then(|ids| PodUid::try_from(name.as_str()).map(|_| ids)) {
        Ok(ids) => ids,
        Err(error) => {
            warn!(uid = %owner.uid, pod = owner.name, container = name, %error, "container ignored");
            return None;
        }
    };
    let state = match container_state(status.state, id.as_str()) {
        ContainerState::Exited if start_was_cut_off(status) => ContainerState::Created,
        state => state,
    };
    let ended = state == ContainerState::Exited;
    let annotation = |key: &str| status.annotations.get(key).cloned();
    let seconds = |key: &str| status.annotations.get(key).and_then(|text| text.parse().ok());
    let text_when_ended = |text: &String| if ended { text.clone() } else { String::new() };
    let termination_message_path =
        annotation(labels::TERMINATION_MESSAGE_PATH).filter(|path| !path.is_empty());
    let image = status.image.clone().unwrap_or_default();
    Some(ObservedContainer {
        attempt: status.metadata.as_ref().map(|m| m.attempt).unwrap_or_default(),
        state,
        created_at: timestamp(status.created_at),
        started_at: happened(status.started_at),
        finished_at: happened(status.finished_at).filter(|_| ended),
        exit_code: if ended { status.exit_code } else { 0 },
        reason: text_when_ended(&status.reason),
        message: text_when_ended(&status.message),
        // As the runtime names it, which for most is the reference with its registry and tag filled in.
        image: if image.image.is_empty() { image.user_specified_image } else { image.image },
        image_id: if status.image_ref.is_empty() {
            status.image_id.clone()
        } else {
            status.image_ref.clone()
        },
        hash: annotation(labels::HASH),
        termination_message_host_path: termination_message_path
            .as_deref()
            .and_then(|path| termination_file(status, path, &name, owner)),
        termination_message_path,
        termination_message_policy: annotation(labels::TERMINATION_MESSAGE_POLICY),
        log_path: log_path(&status.log_path, id.as_str(), owner, pod_logs),
        termination_grace_seconds: seconds(labels::TERMINATION_GRACE),
        deletion_grace_seconds: seconds(labels::DELETION_GRACE),
        pre_stop: annotation(labels::PRE_STOP),
        resources: status.resources.as_ref().and_then(|r| r.linux.as_ref()).map(resources),
        user: status.user.as_ref().and_then(|u| u.linux.as_ref()).map(|user| ObservedUser {
            uid: user.uid,
            gid: user.gid,
            supplemental_groups: user.supplemental_groups.clone(),
        }),
        id,
        sandbox_id,
        name,
    })
}

/// Whoever asked for the start went away before it was done, so the runtime gave it up and calls that an exit. Nothing
/// of the container ever ran: it is no more than created. A start that failed by itself is another matter.
fn start_was_cut_off(status: &proto::ContainerStatus) -> bool {
    status.reason == "StartError" && status.started_at <= 0 && status.message.contains("context canceled")
}

/// Empty unless it lies in the directory of the pod's logs: whoever may read a container's log would be shown any file
/// of the host otherwise. The container itself is there all the same.
fn log_path(reported: &str, id: &str, owner: &Owner, pod_logs: &Path) -> String {
    let directory = pod_logs.join(owner.log_directory());
    let inside = Path::new(reported)
        .strip_prefix(&directory)
        .is_ok_and(|rest| rest.components().all(|part| matches!(part, Component::Normal(_))));
    if inside || reported.is_empty() {
        return reported.to_owned();
    }
    warn!(id, path = reported, directory = %directory.display(), "log path outside of the pod's log directory is not used");
    String::new()
}

/// The file of the host that the container writes its termination message to. Only one under pods/UID/containers/NAME is
/// used: a volume mounted over the same path would name any other file.
fn termination_file(
    status: &proto::ContainerStatus,
    path: &str,
    container: &str,
    owner: &Owner,
) -> Option<String> {
    let directory = format!("pods/{}/containers/{container}", owner.uid);
    let is_ours = |mount: &&proto::Mount| {
        let host = Path::new(&mount.host_path);
        mount.container_path == path
            && host.is_absolute()
            && host.components().all(|part| part != Component::ParentDir)
            && host.parent().is_some_and(|parent| parent.ends_with(&directory))
    };
    status.mounts.iter().rev().find(is_ours).map(|mount| mount.host_path.clone())
}

fn resources(reported: &proto::LinuxContainerResources) -> ObservedResources {
    ObservedResources {
        cpu_shares: reported.cpu_shares,
        cpu_quota: reported.cpu_quota,
        cpu_period: reported.cpu_period,
        memory_limit_bytes: reported.memory_limit_in_bytes,
        cpuset_cpus: reported.cpuset_cpus.clone(),
        cpuset_mems: reported.cpuset_mems.clone(),
    }
}

/// Every number of nanoseconds that fits the wire is a time.
fn timestamp(nanoseconds: i64) -> Timestamp {
    Timestamp::from_nanosecond(nanoseconds.into()).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn happened(nanoseconds: i64) -> Option<Timestamp> {
    (nanoseconds > 0).then(|| timestamp(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_start_that_was_given_up_counts_as_never_started() {
        let status = |reason: &str, started_at: i64, message: &str| proto::ContainerStatus {
            reason: reason.into(),
            started_at,
            message: message.into(),
            ..Default::default()
        };
        for (name, status, expected) in [
            ("the caller went away", status("StartError", 0, "failed to start task: context canceled"), true),
            ("the command does not exist", status("StartError", 0, "exec: \"nope\": not found"), false),
            ("it ran and was cancelled", status("StartError", 1, "context canceled"), false),
            ("it failed by itself", status("Error", 0, "context canceled"), false),
        ] {
            assert_eq!(start_was_cut_off(&status), expected, "{name}");
        }
    }
}
