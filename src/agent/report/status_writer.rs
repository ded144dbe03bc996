//! Writes the status of pods to the apiserver. What it should be is in the registry; here is kept what the apiserver has.
//! The latest status wins, one request a pod at a time, nothing is sent that did not change, and nothing is lost while the
//! apiserver is away.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use keelson_apiserver::{Api, ApiError, ErrorKind};
use keelson_core::ids::PodUid;
use keelson_kit::backoff::{Backoff, Policy};
use tokio::sync::watch;

use crate::registry::Registry;

const RETRY: Policy = Policy::new(Duration::from_millis(500), Duration::from_secs(30));

/// The API object that shows a pod: the pod itself, or the mirror of a static one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

#[derive(Clone)]
pub struct StatusWriter {
    api: Option<Api>,
    registry: Registry,
    written: Arc<Mutex<HashMap<PodUid, Written>>>,
}

/// How far the apiserver is with one pod.
struct Written {
    target: Option<Target>,
    /// What the apiserver has, as far as we know, and the version of the object that says so.
    known: PodStatus,
    version: u64,
    /// What was accepted as `version`. The apiserver may store it in other words (rounded times), so it is compared
    /// with what we want next, not with what came back.
    accepted: Option<Arc<PodStatus>>,
    sending: bool,
    settled: watch::Sender<bool>,
}

impl Default for Written {
    fn default() -> Self {
        Self {
            target: None,
            known: PodStatus::default(),
            version: 0,
            accepted: None,
            sending: false,
            settled: watch::Sender::new(true),
        }
    }
}

impl Written {
    /// What is still to be written, and to which object.
    fn due(&self, wanted: Option<Arc<PodStatus>>) -> Option<(&Target, Arc<PodStatus>)> {
        let (target, wanted) = (self.target.as_ref()?, wanted?);
        (self.accepted.as_ref() != Some(&wanted) && self.known != *wanted).then_some((target, wanted))
    }
}

/// What became of one attempt to write.
enum Attempt {
    Done,
    Failed(ApiError),
    /// Nobody keeps this pod any more.
    Gone,
}

impl StatusWriter {
    pub fn new(api: Option<Api>, registry: Registry) -> Self {
        Self { api, registry, written: Arc::default() }
    }

    /// The object that shows this pod, with its status as the watch last delivered it.
    pub fn bind(&self, uid: &PodUid, target: Option<Target>, object: Option<&Pod>) {
        {
            let mut entries = self.lock();
            let entry = entries.entry(uid.clone()).or_default();
            if entry.target != target {
                *entry = Written { target, sending: entry.sending, ..Written::default() };
            }
            // The watch may lag behind the answers to our own patches; only what is newer is news. If somebody else
            // wrote the status, ours is written again.
            let version = object.map_or(0, version);
            if let Some(object) = object
                && version > entry.version
            {
                entry.known = object.status.clone().unwrap_or_default();
                entry.version = version;
                entry.accepted = None;
            }
        }
        self.write(uid);
    }

    /// A status was published: it is written now, or after the one that is on its way.
    pub fn write(&self, uid: &PodUid) {
        let Some(api) = &self.api else { return };
        {
            let mut entries = self.lock();
            let Some(entry) = entries.get_mut(uid) else { return };
            if entry.sending {
                return;
            }
            let settled = entry.due(self.wanted(uid)).is_none();
            entry.settled.send_replace(settled);
            if settled {
                return;
            }
            entry.sending = true;
        }
        let (this, uid, api) = (self.clone(), uid.clone(), api.clone());
        tokio::spawn(async move { this.send_all(&uid, &api).await });
    }

    /// Resolves when the apiserver has what was published last, or when there is no object (any more) to write to.
    pub async fn settled(&self, uid: &PodUid) {
        let Some(mut done) = self.lock().get(uid).map(|e| e.settled.subscribe()) else { return };
        // An error means that the entry is gone, and with it the need to wait.
        let _ = done.wait_for(|s| *s).await;
    }

    pub fn forget(&self, uid: &PodUid) {
        self.lock().remove(uid);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PodUid, Written>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wanted(&self, uid: &PodUid) -> Option<Arc<PodStatus>> {
        self.registry.get(uid)?.status
    }

    async fn send_all(&self, uid: &PodUid, api: &Api) {
        let mut backoff = Backoff::default();
        while let Some((target, known, wanted)) = self.next(uid) {
            let sent =
                api.patch_pod_status(&target.namespace, &target.name, &target.uid, &known, &wanted).await;
            let sent = match sent {
                Err(e) if e.is_conflict() => Err(replaced_or(api, &target, e).await),
                other => other,
            };
            match self.record(uid, &target, wanted, sent) {
                Attempt::Gone => return,
                Attempt::Done => {
                    backoff.reset();
                    self.note(uid, Ok(()));
                }
                Attempt::Failed(error) => {
                    let pause = backoff.fail(RETRY);
                    let pod = format!("{}/{}", target.namespace, target.name);
                    tracing::warn!(pod, %uid, %error, retry_in = ?pause, "status not written");
                    self.note(uid, Err(&error.to_string()));
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// Into the pod's timeline.
    fn note(&self, uid: &PodUid, written: Result<(), &str>) {
        if let Some(recorder) = self.registry.timelines().get(uid) {
            recorder.record(|timeline, now| timeline.status_written(written, now));
        }
    }

    fn record(
        &self,
        uid: &PodUid,
        target: &Target,
        wanted: Arc<PodStatus>,
        sent: Result<Option<Pod>, ApiError>,
    ) -> Attempt {
        let mut entries = self.lock();
        let Some(entry) = entries.get_mut(uid) else { return Attempt::Gone };
        if entry.target.as_ref() != Some(target) {
            return Attempt::Done;
        }
        match sent {
            Ok(object) => {
                if let Some(object) = object {
                    entry.version = entry.version.max(version(&object));
                    entry.known = object.status.unwrap_or_default();
                }
                entry.accepted = Some(wanted);
            }
            // Gone, or replaced by another pod of the same name: there is nothing left to write to.
            Err(e) if e.is_not_found() => {
                tracing::debug!(pod = target.name, %uid, error = %e, "status no longer wanted");
                entry.target = None;
            }
            Err(e) => return Attempt::Failed(e),
        }
        Attempt::Done
    }

    /// The next status to send. `None` ends the sender: what is published afterwards finds that nobody sends.
    fn next(&self, uid: &PodUid) -> Option<(Target, PodStatus, Arc<PodStatus>)> {
        let mut entries = self.lock();
        let entry = entries.get_mut(uid)?;
        let work = entry.due(self.wanted(uid));
        let work = work.map(|(target, wanted)| (target.clone(), entry.known.clone(), wanted));
        if work.is_none() {
            entry.sending = false;
            entry.settled.send_replace(true);
        }
        work
    }
}

/// A conflict is either about the pod's uid, and then the pod is not there any more, or it passes.
async fn replaced_or(api: &Api, target: &Target, conflict: ApiError) -> ApiError {
    match api.get_pod(&target.namespace, &target.name).await {
        Ok(Some(pod)) if pod.metadata.uid.as_deref() == Some(&target.uid) => conflict,
        Ok(_) => ApiError { kind: ErrorKind::NotFound, ..conflict },
        Err(e) => e,
    }
}

/// Versions are numbers on every apiserver there is. One that is not is older than everything.
fn version(pod: &Pod) -> u64 {
    pod.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0)
}
