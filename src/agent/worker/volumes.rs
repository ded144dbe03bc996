//! Brings a pod's volumes to life and keeps them fresh: fetches what they show, has it written, remembers for how long
//! it is good.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use keelson_apiserver::{ObjectKey, ObjectKind, TokenSpec};
use keelson_core::backoff::{Backoff, Policy};
use keelson_core::desired::DesiredPod;
use keelson_core::env::{ObjectRefs, object_refs};
use keelson_core::facts::VolumesState;
use keelson_core::resources::pod_cgroup;
use keelson_core::volumes::{VolumeInput, payload, token_requests};
use keelson_host::volumes::{Setup, setup};
use tokio::sync::broadcast;

use super::Worker;
use super::clean::blocking;
use super::execute::Stop;
use crate::context::Context;

const RETRY: Policy = Policy {
    first: Duration::from_millis(500),
    most: Duration::from_secs(120),
    forgive_after: Duration::from_secs(600),
};

/// What is mounted, and what it depends on.
#[derive(Default)]
pub(super) struct Mounted {
    /// Volume name to its path on this machine.
    pub paths: BTreeMap<String, String>,
    /// When the first token in them is to be renewed.
    pub refresh_at: Option<Timestamp>,
    pub refs: BTreeSet<ObjectKey>,
}

pub(super) type Changes = broadcast::Receiver<ObjectKey>;

/// Resolves when something changed that the pod refers to.
pub(super) async fn changed(changes: &mut Option<Changes>, mounted: &Mounted) {
    let Some(changes) = changes else { return std::future::pending().await };
    loop {
        match changes.recv().await {
            Ok(key) if mounted.refs.contains(&key) => return,
            Ok(_) => {}
            // Some changes were missed; ours may be among them.
            Err(broadcast::error::RecvError::Lagged(_)) => return,
            Err(broadcast::error::RecvError::Closed) => return std::future::pending().await,
        }
    }
}

/// ConfigMaps and Secrets that a pod refers to and that exist, by name.
#[derive(Default, Clone)]
pub(super) struct Objects {
    pub config_maps: BTreeMap<String, Arc<ConfigMap>>,
    pub secrets: BTreeMap<String, Arc<Secret>>,
}

impl Worker {
    pub(super) async fn mount_volumes(&mut self) -> Result<(), Stop> {
        let Some(desired) = self.last_desired.clone() else { return Ok(()) };
        self.mounted.refs = keys(&desired, &object_refs(&desired.pod));
        let ctx = self.ctx.clone();
        match self.unless_urgent(mount(&ctx, &desired)).await {
            None => Err(Stop::Interrupted),
            Some(Ok((paths, refresh_at))) => {
                self.mounted.paths = paths;
                self.mounted.refresh_at = refresh_at;
                self.volumes = VolumesState::Ready;
                self.volumes_backoff = Backoff::default();
                Ok(())
            }
            Some(Err(message)) => {
                self.event(true, "FailedMount", &message, None);
                self.volumes_backoff = self.volumes_backoff.next(RETRY, Duration::ZERO);
                let again = self.volumes_backoff.retry_at(Timestamp::now());
                tracing::warn!(error = message, again = %again, "volumes are not ready");
                if self.mounted.paths.is_empty() {
                    self.volumes = VolumesState::Failed(message);
                    self.retry.at = Some(again);
                    Err(Stop::Failed)
                } else {
                    // They were good until now, so whatever runs or restarts goes on with what is there.
                    self.volumes = VolumesState::Ready;
                    self.mounted.refresh_at = Some(again);
                    Ok(())
                }
            }
        }
    }

    pub(super) async fn objects(&self, desired: &DesiredPod) -> Result<Objects, String> {
        fetch(&self.ctx, desired, &object_refs(&desired.pod)).await
    }
}

fn keys(desired: &DesiredPod, refs: &ObjectRefs) -> BTreeSet<ObjectKey> {
    let of = |kind: ObjectKind| {
        move |name: &String| ObjectKey { kind, namespace: desired.namespace().to_owned(), name: name.clone() }
    };
    let config_maps = refs.config_maps.iter().map(of(ObjectKind::ConfigMap));
    config_maps.chain(refs.secrets.iter().map(of(ObjectKind::Secret))).collect()
}

async fn fetch(ctx: &Context, desired: &DesiredPod, refs: &ObjectRefs) -> Result<Objects, String> {
    let mut found = Objects::default();
    let Some(api) = &ctx.api else { return Ok(found) };
    api.objects.acquire(&desired.uid, keys(desired, refs));
    let namespace = desired.namespace();
    for name in &refs.config_maps {
        let object = api.objects.get_config_map(namespace, name).await.map_err(|e| e.to_string())?;
        found.config_maps.extend(object.map(|o| (name.clone(), o)));
    }
    for name in &refs.secrets {
        let object = api.objects.get_secret(namespace, name).await.map_err(|e| e.to_string())?;
        found.secrets.extend(object.map(|o| (name.clone(), o)));
    }
    Ok(found)
}

type Paths = BTreeMap<String, String>;

async fn mount(ctx: &Arc<Context>, desired: &DesiredPod) -> Result<(Paths, Option<Timestamp>), String> {
    let pod = desired.pod.clone();
    let volumes = pod.spec.as_ref().and_then(|s| s.volumes.clone()).unwrap_or_default();
    let objects = fetch(ctx, desired, &object_refs(&pod)).await?;
    let mut tokens = BTreeMap::new();
    let mut refresh_at: Option<Timestamp> = None;
    for wanted in token_requests(&pod) {
        let Some(api) = &ctx.api else {
            return Err(format!(
                "volume {:?} asks for a service account token, and this node has no apiserver to get one from",
                wanted.volume
            ));
        };
        let account = pod.spec.as_ref().and_then(|s| s.service_account_name.clone());
        let spec = TokenSpec {
            namespace: desired.namespace().to_owned(),
            service_account: account.unwrap_or_else(|| "default".into()),
            pod_name: desired.name().to_owned(),
            pod_uid: desired.uid.clone(),
            audience: wanted.audience.clone(),
            expiration_seconds: wanted.expiration_seconds,
        };
        let token = api.tokens.get(&spec).await.map_err(|e| format!("volume {:?}: {e}", wanted.volume))?;
        refresh_at = Some(refresh_at.map_or(token.renew_at, |t| t.min(token.renew_at)));
        tokens.insert((wanted.audience, wanted.expiration_seconds), token.token);
    }
    let node = ctx.node.borrow().allocatable.clone();
    let input = VolumeInput {
        pod: &pod,
        config_maps: &objects.config_maps,
        secrets: &objects.secrets,
        tokens: &tokens,
        node_allocatable: &node,
    };
    let mut work = vec![];
    for volume in volumes {
        let payload = payload(&volume, &input).map_err(|e| e.to_string())?;
        work.push((volume, payload));
    }
    let dirs = ctx.dirs.pod(&desired.uid);
    let fs_group = keelson_host::volumes::fs_group(&pod);
    let memory_limit = pod_cgroup(&pod, true, 100_000).memory_limit.and_then(|n| u64::try_from(n).ok());
    let paths = blocking(move || {
        dirs.ensure().map_err(|e| e.to_string())?;
        let mut paths = Paths::new();
        for (volume, payload) in work {
            let with = Setup { dirs: &dirs, payload: payload.as_ref(), fs_group, memory_limit };
            let path = setup(&volume, &with).map_err(|e| e.to_string())?;
            paths.insert(volume.name, path.to_string_lossy().into_owned());
        }
        Ok::<_, String>(paths)
    })
    .await?;
    Ok((paths, refresh_at))
}
