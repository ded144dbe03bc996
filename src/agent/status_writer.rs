//! Tells the apiserver what became of a pod: the latest status wins, one request a pod at a time, nothing is sent
//! that did not change, and nothing is lost while the apiserver is away.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use keelson_apiserver::{Api, ApiError, ErrorKind};
use keelson_core::ids::PodUid;
use tokio::sync::watch;

const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(30);

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
    entries: Arc<Mutex<HashMap<PodUid, Entry>>>,
}

struct Entry {
    target: Option<Target>,
    /// What the apiserver has, as far as we know, and the version of the object that says so.
    known: PodStatus,
    version: u64,
    wanted: Option<PodStatus>,
    /// What was accepted as `version`. The apiserver may store it in other words (rounded times), so it is compared
    /// with what we want next, not with what came back.
    accepted: Option<PodStatus>,
    sending: bool,
    settled: watch::Sender<bool>,
}

impl Default for Entry {
    fn default() -> Self {
        Self {
            target: None,
            known: PodStatus::default(),
            version: 0,
            wanted: None,
            accepted: None,
            sending: false,
            settled: watch::Sender::new(true),
        }
    }
}

impl Entry {
    /// What is still to be told, and to whom.
    fn due(&self) -> Option<(&Target, &PodStatus)> {
        let (target, wanted) = (self.target.as_ref()?, self.wanted.as_ref()?);
        (self.accepted.as_ref() != Some(wanted) && self.known != *wanted).then_some((target, wanted))
    }
}

/// What became of one attempt to tell.
enum Recorded {
    Done,
    Failed(ApiError),
    /// Nobody keeps this pod any more.
    Gone,
}

impl StatusWriter {
    pub fn new(api: Option<Api>) -> Self {
        Self { api, entries: Arc::default() }
    }

    /// The object that shows this pod, with its status as the watch last delivered it.
    pub fn bind(&self, uid: &PodUid, target: Option<Target>, object: Option<&Pod>) {
        {
            let mut entries = self.lock();
            let entry = entries.entry(uid.clone()).or_default();
            if entry.target != target {
                *entry =
                    Entry { target, wanted: entry.wanted.take(), sending: entry.sending, ..Entry::default() };
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
        self.pump(uid);
    }

    pub fn publish(&self, uid: &PodUid, status: PodStatus) {
        {
            let mut entries = self.lock();
            let entry = entries.entry(uid.clone()).or_default();
            if entry.wanted.as_ref() == Some(&status) {
                return;
            }
            entry.wanted = Some(status);
        }
        self.pump(uid);
    }

    /// What was published last.
    pub fn wanted(&self, uid: &PodUid) -> Option<PodStatus> {
        self.lock().get(uid)?.wanted.clone()
    }

    /// Resolves when the apiserver has what was published last, or when there is no object (any more) to tell.
    pub async fn settled(&self, uid: &PodUid) {
        let Some(mut done) = self.lock().get(uid).map(|e| e.settled.subscribe()) else { return };
        // An error means that the entry is gone, and with it the need to wait.
        let _ = done.wait_for(|s| *s).await;
    }

    pub fn forget(&self, uid: &PodUid) {
        self.lock().remove(uid);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PodUid, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pump(&self, uid: &PodUid) {
        let Some(api) = &self.api else { return };
        {
            let mut entries = self.lock();
            let Some(entry) = entries.get_mut(uid) else { return };
            if entry.sending {
                return;
            }
            let settled = entry.due().is_none();
            entry.settled.send_replace(settled);
            if settled {
                return;
            }
            entry.sending = true;
        }
        let (this, uid, api) = (self.clone(), uid.clone(), api.clone());
        tokio::spawn(async move { this.send_all(&uid, &api).await });
    }

    async fn send_all(&self, uid: &PodUid, api: &Api) {
        let mut pause = FIRST_RETRY;
        while let Some((target, known, wanted)) = self.next(uid) {
            let sent =
                api.patch_pod_status(&target.namespace, &target.name, &target.uid, &known, &wanted).await;
            let sent = match sent {
                Err(e) if e.is_conflict() => Err(replaced_or(api, &target, e).await),
                other => other,
            };
            match self.record(uid, &target, wanted, sent) {
                Recorded::Gone => return,
                Recorded::Done => pause = FIRST_RETRY,
                Recorded::Failed(error) => {
                    let pod = format!("{}/{}", target.namespace, target.name);
                    tracing::warn!(pod, %uid, %error, retry_in = ?pause, "status not written");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LAST_RETRY);
                }
            }
        }
    }

    fn record(
        &self,
        uid: &PodUid,
        target: &Target,
        wanted: PodStatus,
        sent: Result<Option<Pod>, ApiError>,
    ) -> Recorded {
        let mut entries = self.lock();
        let Some(entry) = entries.get_mut(uid) else { return Recorded::Gone };
        if entry.target.as_ref() != Some(target) {
            return Recorded::Done;
        }
        match sent {
            Ok(object) => {
                if let Some(object) = object {
                    entry.version = entry.version.max(version(&object));
                    entry.known = object.status.unwrap_or_default();
                }
                entry.accepted = Some(wanted);
            }
            // Gone, or replaced by another pod of the same name: there is nobody left to tell.
            Err(e) if e.is_not_found() => {
                tracing::debug!(pod = target.name, %uid, error = %e, "status no longer wanted");
                entry.target = None;
            }
            Err(e) => return Recorded::Failed(e),
        }
        Recorded::Done
    }

    /// The next thing to send; `None` ends the sender, atomically with the look at what is wanted.
    fn next(&self, uid: &PodUid) -> Option<(Target, PodStatus, PodStatus)> {
        let mut entries = self.lock();
        let entry = entries.get_mut(uid)?;
        let work = entry.due().map(|(target, wanted)| (target.clone(), entry.known.clone(), wanted.clone()));
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
