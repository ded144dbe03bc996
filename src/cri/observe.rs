//! What runs, as the runtime reports it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::stream::{self, StreamExt};
use keelson_core::ids::{ContainerId, PodUid, SandboxId};
use keelson_core::manifest::CONFIG_SOURCE;
use keelson_core::observed::{ObservedContainer, ObservedPod, ObservedSandbox};
use keelson_proto::runtime::v1 as proto;
use keelson_proto::runtime::v1::{ContainerFilter, PodSandboxFilter};
use tracing::warn;

use crate::Runtime;
use crate::convert::labels;
use crate::error::{CriError, ErrorKind};
use crate::status::STATUS_TIMEOUT;
use crate::validate::{self, Owner};

/// How many entries are asked about at once when everything is observed.
const AT_ONCE: usize = 8;

/// What a pod is called, for one that the runtime knows nothing of.
#[derive(Debug, Clone, Copy)]
pub struct PodHint<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
}

/// Everything of the runtime's that a node agent made.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    pub pods: BTreeMap<PodUid, ObservedPod>,
    /// Pods that are there, but that the runtime would not report on. Not among `pods`: half a pod misleads.
    pub unread: BTreeMap<PodUid, CriError>,
    /// Those that came from a file on this node.
    pub from_files: BTreeSet<PodUid>,
}

/// Everything in the runtime that carries this pod's uid. Costs two calls, and one more for each entry whose state is not
/// known yet.
pub async fn observe_pod(
    runtime: &Runtime,
    uid: &PodUid,
    hint: PodHint<'_>,
) -> Result<ObservedPod, CriError> {
    let sandboxes = PodSandboxFilter { label_selector: labels::pod_selector(uid), ..Default::default() };
    let containers = ContainerFilter { label_selector: labels::pod_selector(uid), ..Default::default() };
    let patience = runtime.request_timeout().saturating_mul(2);
    let mut seen = observe(runtime, Some(sandboxes), Some(containers), patience).await?;
    if let Some(error) = seen.unread.remove(uid) {
        return Err(error);
    }
    let pod =
        seen.pods.remove(uid).unwrap_or_else(|| ObservedPod::empty(uid.clone(), hint.namespace, hint.name));
    for stray in seen.pods.keys().chain(seen.unread.keys()) {
        warn!(asked = %uid, answered = %stray, "the runtime listed entries of another pod, ignored");
    }
    runtime.cache().keep_only(&pod);
    Ok(pod)
}

/// Looks at everything. A pod that cannot be read does not keep the others from being seen.
pub async fn survey(runtime: &Runtime) -> Result<Survey, CriError> {
    let seen = observe(runtime, None, None, STATUS_TIMEOUT).await?;
    runtime.cache().keep_pods(|uid| seen.pods.contains_key(uid) || seen.unread.contains_key(uid));
    for pod in seen.pods.values() {
        runtime.cache().keep_only(pod);
    }
    for (uid, error) in &seen.unread {
        warn!(%uid, %error, "pod left out: the runtime does not report on it");
    }
    Ok(seen)
}

/// The pods of a [`survey`]. One that is missing here is not surely gone; whoever is about to act on that asks
/// [`observe_pod`] first.
pub async fn observe_all(runtime: &Runtime) -> Result<BTreeMap<PodUid, ObservedPod>, CriError> {
    Ok(survey(runtime).await?.pods)
}

async fn observe(
    runtime: &Runtime,
    sandboxes: Option<PodSandboxFilter>,
    containers: Option<ContainerFilter>,
    patience: Duration,
) -> Result<Survey, CriError> {
    let (sandboxes, containers) =
        futures::try_join!(runtime.list_sandboxes(sandboxes), runtime.list_containers(containers))?;
    let from_file =
        |s: &&proto::PodSandbox| s.annotations.get(CONFIG_SOURCE).is_some_and(|from| from == "file");
    let files = sandboxes.iter().filter(from_file).filter_map(|s| Owner::read(&s.labels, &s.id));
    let from_files = files.map(|owner| owner.uid).collect();
    let sandboxes = sandboxes
        .into_iter()
        .filter_map(|listed| Some((Owner::read(&listed.labels, &listed.id)?, listed)))
        .map(|(owner, listed)| async move {
            (within(patience, &listed.id, sandbox(runtime, &owner, &listed)).await, owner)
        });
    let containers = containers
        .into_iter()
        .filter_map(|listed| Some((Owner::read(&listed.labels, &listed.id)?, listed)))
        .map(|(owner, listed)| async move {
            (within(patience, &listed.id, container(runtime, &owner, &listed)).await, owner)
        });

    let mut seen = Survey { from_files, ..Survey::default() };
    for (answer, owner) in stream::iter(sandboxes).buffer_unordered(AT_ONCE).collect::<Vec<_>>().await {
        match answer {
            Ok(sandbox) => entry(&mut seen.pods, owner).sandboxes.extend(sandbox),
            Err(error) => seen.unreadable(owner, error)?,
        }
    }
    for (answer, owner) in stream::iter(containers).buffer_unordered(AT_ONCE).collect::<Vec<_>>().await {
        match answer {
            Ok(container) => entry(&mut seen.pods, owner).containers.extend(container),
            Err(error) => seen.unreadable(owner, error)?,
        }
    }
    seen.pods.retain(|uid, _| !seen.unread.contains_key(uid));
    seen.pods.values_mut().for_each(newest_first);
    Ok(seen)
}

impl Survey {
    /// A runtime that is gone can report nothing; otherwise the trouble is this pod's.
    fn unreadable(&mut self, owner: Owner, error: CriError) -> Result<(), CriError> {
        if error.kind == ErrorKind::Unavailable {
            return Err(error);
        }
        self.unread.insert(owner.uid, error);
        Ok(())
    }
}

async fn within<T>(
    patience: Duration,
    id: &str,
    call: impl Future<Output = Result<T, CriError>>,
) -> Result<T, CriError> {
    let late = |_| CriError::timeout("observe", id, patience);
    tokio::time::timeout(patience, call).await.map_err(late)?
}

fn entry(pods: &mut BTreeMap<PodUid, ObservedPod>, owner: Owner) -> &mut ObservedPod {
    let Owner { uid, namespace, name } = owner;
    pods.entry(uid).or_insert_with_key(|uid| ObservedPod::empty(uid.clone(), &namespace, &name))
}

async fn sandbox(
    runtime: &Runtime,
    owner: &Owner,
    listed: &proto::PodSandbox,
) -> Result<Option<ObservedSandbox>, CriError> {
    let state = validate::sandbox_state(listed.state, &listed.id);
    if let Some(known) = runtime.cache().sandbox(&owner.uid, &listed.id, state) {
        return Ok(Some(known));
    }
    let Ok(id) = SandboxId::try_from(listed.id.as_str()) else {
        warn!(uid = %owner.uid, pod = owner.name, "sandbox without an id ignored");
        return Ok(None);
    };
    let Some(answer) = unless_gone(runtime.sandbox_status(&id).await)? else { return Ok(None) };
    let Some(status) = answer.status.filter(|status| status.id == listed.id) else {
        warn!(%id, "sandbox ignored: asked for its status, the runtime answered about something else");
        return Ok(None);
    };
    let seen = validate::sandbox(&status, owner);
    if let Some(seen) = &seen {
        runtime.cache().learn_sandbox(&owner.uid, seen);
    }
    Ok(seen)
}

async fn container(
    runtime: &Runtime,
    owner: &Owner,
    listed: &proto::Container,
) -> Result<Option<ObservedContainer>, CriError> {
    let state = validate::container_state(listed.state, &listed.id);
    if let Some(known) = runtime.cache().container(&owner.uid, &listed.id, state) {
        return Ok(Some(known));
    }
    let Ok(id) = ContainerId::try_from(listed.id.as_str()) else {
        warn!(uid = %owner.uid, pod = owner.name, "container without an id ignored");
        return Ok(None);
    };
    let Some(status) = unless_gone(runtime.container_status(&id).await)? else { return Ok(None) };
    if status.id != listed.id {
        warn!(%id, "container ignored: asked for its status, the runtime answered about something else");
        return Ok(None);
    }
    let seen = validate::container(&status, &listed.pod_sandbox_id, owner, runtime.pod_logs());
    if let Some(seen) = &seen {
        runtime.cache().learn_container(&owner.uid, seen);
    }
    Ok(seen)
}

/// Something that is removed between the list and the question is simply not there.
fn unless_gone<T>(answer: Result<T, CriError>) -> Result<Option<T>, CriError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The id settles what the clock does not, so that two observations of the same thing are equal.
fn newest_first(pod: &mut ObservedPod) {
    pod.sandboxes.sort_by(|a, b| (b.created_at, b.attempt, &b.id).cmp(&(a.created_at, a.attempt, &a.id)));
    pod.containers.sort_by(|a, b| (b.created_at, b.attempt, &b.id).cmp(&(a.created_at, a.attempt, &a.id)));
}
