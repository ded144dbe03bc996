//! The ids of pods with users of their own: given out once, kept in the kubelet's file in each pod's directory, and given back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keelson_core::config::Settings;
use keelson_core::ids::PodUid;
use keelson_core::observed::{ObservedPod, SandboxState};
use keelson_core::user_namespaces::{Allocator, BadRange, IdRange, UserNamespace, read_subids, write_record};
use keelson_host::dirs::RootDirs;
use keelson_host::user_namespaces::{self as host, SubidsError};

#[derive(Debug, thiserror::Error)]
pub enum UserNamespacesError {
    #[error(transparent)]
    Subids(#[from] SubidsError),
    #[error("pods cannot be given users of their own: {0}")]
    Range(#[from] BadRange),
}

#[derive(Clone)]
pub struct UserNamespaces {
    dirs: RootDirs,
    pods: Arc<Mutex<Allocator>>,
}

impl UserNamespaces {
    /// Finds out which ids are there for pods. An error where the machine's configuration does not fit the node's.
    pub fn open(settings: &Settings, dirs: &RootDirs) -> Result<Self, UserNamespacesError> {
        let search = std::env::var_os("PATH").unwrap_or_default();
        let given = host::subordinate_ids("/etc/passwd".as_ref(), &search)?;
        let given = given.map(|text| read_subids(&text)).transpose()?;
        let per_pod = settings.kubelet.user_namespaces.as_ref().map_or(65_536, |u| u.ids_per_pod);
        let range = IdRange::new(per_pod, given, u32::try_from(settings.kubelet.max_pods).unwrap_or(0))?;
        Ok(Self { dirs: dirs.clone(), pods: Arc::new(Mutex::new(Allocator::new(range))) })
    }

    /// Takes up what an agent before this one has given out, before any pod is given more. What lives is believed first, then
    /// the files. A file that cannot be believed is named once, and its pod goes on.
    pub async fn found(&self, pods: &BTreeMap<PodUid, ObservedPod>) {
        let living = pods.values().filter_map(|pod| Some((pod.uid.clone(), living(pod)?)));
        let (this, living) = (self.clone(), living.collect());
        if let Err(error) = tokio::task::spawn_blocking(move || this.restore(&living)).await {
            tracing::error!(%error, "the ids of pods with users of their own could not be taken up");
        }
    }

    fn restore(&self, living: &BTreeMap<PodUid, UserNamespace>) {
        let mut allocator = self.lock();
        for (uid, ids) in living {
            allocator.adopt(uid, *ids);
        }
        let listed = self.dirs.list_pods().unwrap_or_else(|error| {
            tracing::warn!(%error, "pod directories cannot be listed; the ids of pods that do not run are not known");
            vec![]
        });
        let all: BTreeSet<&PodUid> = listed.iter().chain(living.keys()).collect();
        for uid in all {
            let pod = self.dirs.pod(uid);
            let file = host::read_record(&pod).unwrap_or_else(|error| {
                tracing::warn!(%uid, %error, "the record of a pod's ids is not believed");
                None
            });
            match (living.get(uid), file) {
                (Some(ids), Some(file)) if file == write_record(*ids).into_bytes() => {}
                (Some(ids), file) => {
                    let found =
                        file.map(|f| String::from_utf8_lossy(&f).chars().take(200).collect::<String>());
                    tracing::warn!(%uid, %ids, ?found, "the record of a pod's ids differs from what it runs with, and is written anew");
                    if let Err(error) = host::write_record(&pod, &write_record(*ids)) {
                        tracing::warn!(%uid, %error, "the record of a pod's ids is not written");
                    }
                }
                (None, Some(file)) => {
                    if let Err(error) = allocator.restore(uid, &file) {
                        tracing::warn!(%uid, %error, "the record of a pod's ids is not believed; it gets others with its next sandbox");
                    }
                }
                (None, None) => {}
            }
        }
    }

    /// The pod's ids, which are given to it now if it has none. They are on disk before anything runs with them.
    pub async fn assign(&self, uid: &PodUid) -> Result<UserNamespace, String> {
        let (this, uid) = (self.clone(), uid.clone());
        let done = tokio::task::spawn_blocking(move || {
            let known = this.held(&uid);
            let ids = this.lock().assign(&uid).map_err(|e| format!("create user namespace: {e}"))?;
            if known.is_none()
                && let Err(e) = host::write_record(&this.dirs.pod(&uid), &write_record(ids))
            {
                this.lock().release(&uid);
                return Err(format!("create user namespace: {e}"));
            }
            Ok(ids)
        });
        done.await.unwrap_or_else(|e| Err(e.to_string()))
    }

    pub fn held(&self, uid: &PodUid) -> Option<UserNamespace> {
        self.lock().held(uid)
    }

    /// Nothing of the pod runs any more, and its volumes are gone from here.
    pub async fn release(&self, uid: &PodUid) {
        let (this, uid) = (self.clone(), uid.clone());
        let done = tokio::task::spawn_blocking(move || {
            // The file first: it must not outlive the claim that it stands for.
            if let Err(error) = host::remove_record(&this.dirs.pod(&uid)) {
                tracing::warn!(%error, "the record of a pod's ids stays");
            }
            this.lock().release(&uid);
        });
        if let Err(error) = done.await {
            tracing::warn!(%error, "a pod's ids are not given back");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Allocator> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The ids that the pod's sandbox runs with.
fn living(pod: &ObservedPod) -> Option<UserNamespace> {
    pod.sandboxes.iter().filter(|s| s.state == SandboxState::Ready).find_map(|s| s.user_namespace)
}
