//! Has a pod's volumes prepared and kept up to date: gathers what they need and hands it to the volume manager.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use keelson_apiserver::{ObjectKey, ObjectKind, TokenSpec};
use keelson_core::desired::DesiredPod;
use keelson_core::env::{ObjectRefs, object_refs};
use keelson_core::pod::{ActionOutcome, Step};
use keelson_core::timeline::{Ending, Place, Step as Timed};
use keelson_core::volumes::{
    Change, ClaimRef, ClaimedVolume, Needs, TokenNeed, VolumeOutcome, VolumePlan, claimed_volume,
};
use keelson_volumes::{Gather, Gathered, PodSetup};

use super::Stop;
use super::ownership::OwnershipProgress;
use crate::node::Node;
use crate::worker::Worker;

/// ConfigMaps and Secrets that a pod refers to and that exist, by name.
#[derive(Default, Clone)]
pub(super) struct Objects {
    pub config_maps: BTreeMap<String, Arc<ConfigMap>>,
    pub secrets: BTreeMap<String, Arc<Secret>>,
}

impl Worker {
    pub(super) async fn mount_volumes(&mut self) -> Result<(), Stop> {
        let Some(desired) = self.state.desired.clone() else { return Ok(()) };
        let bundles = desired.volumes().iter().any(|volume| Needs::of(volume).trust_bundles);
        self.inbox.follow(keys(&desired, &object_refs(&desired.pod)), bundles);
        let plan = self.state.plan_volumes(Timestamp::now());
        let node = self.node.clone();
        let timing = self.recorder.begin(Timed::Volumes, None, Place::Volume);
        let progress = OwnershipProgress::new(node.clone(), desired.pod.clone(), self.recorder.clone());
        match self.unless_urgent(carry_out(&node, &desired, &plan, Arc::new(progress))).await {
            Some(outcomes) => {
                let failed = outcomes.iter().any(|o| o.failure().is_some());
                timing.end(if failed { Ending::Failed } else { Ending::Done });
                self.settle(ActionOutcome::VolumesMounted(outcomes))
            }
            None => Err(Stop),
        }
    }

    pub(super) async fn unmount_volumes(&mut self) -> Result<(), Stop> {
        let dirs = self.node.dirs.pod(&self.uid);
        let timing = self.recorder.begin(Timed::VolumesUnmounted, None, Place::Volume);
        let done = self.node.volumes.teardown(&dirs).await;
        timing.ended(&done);
        self.settle_step(Step::UnmountVolumes, done)
    }

    /// For one of the pod's containers.
    pub(super) async fn objects(&self, desired: &DesiredPod, container: &str) -> Result<Objects, String> {
        let refs = object_refs(&desired.pod);
        let Some(api) = self.node.api.as_ref().filter(|_| refs != ObjectRefs::default()) else {
            return Ok(Objects::default());
        };
        let timing = self.recorder.begin(Timed::Config, Some(container), Place::Apiserver);
        api.objects.acquire(&desired.uid, keys(desired, &refs));
        let fetched = fetch(&self.node, desired, &refs).await;
        timing.ended(&fetched);
        fetched
    }
}

/// What a changed object means for volumes; `None` if nobody knows which one it was.
pub(in crate::worker) fn change(key: Option<&ObjectKey>) -> Change<'_> {
    match key {
        Some(ObjectKey { kind: ObjectKind::ConfigMap, name, .. }) => Change::ConfigMap(name),
        Some(ObjectKey { kind: ObjectKind::Secret, name, .. }) => Change::Secret(name),
        None => Change::AnyObject,
    }
}

fn keys(desired: &DesiredPod, refs: &ObjectRefs) -> BTreeSet<ObjectKey> {
    let of = |kind: ObjectKind| {
        move |name: &String| ObjectKey { kind, namespace: desired.namespace().to_owned(), name: name.clone() }
    };
    let config_maps = refs.config_maps.iter().map(of(ObjectKind::ConfigMap));
    config_maps.chain(refs.secrets.iter().map(of(ObjectKind::Secret))).collect()
}

async fn fetch(node: &Node, desired: &DesiredPod, refs: &ObjectRefs) -> Result<Objects, String> {
    let mut found = Objects::default();
    let Some(api) = &node.api else { return Ok(found) };
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

async fn carry_out(
    node: &Node,
    desired: &DesiredPod,
    plan: &VolumePlan,
    progress: Arc<OwnershipProgress>,
) -> Vec<VolumeOutcome> {
    let setup = Arc::new(PodSetup {
        pod: desired.pod.clone(),
        dirs: node.dirs.pod(&desired.uid),
        node_allocatable: node.state.allocatable(),
        progress,
    });
    if let Some(api) = &node.api {
        api.objects.acquire(&desired.uid, keys(desired, &object_refs(&desired.pod)));
    }
    node.volumes.carry_out(plan, &setup, &Source { node, desired }).await
}

/// Where a pod's volumes get what they need: objects and tokens come from the apiserver, through its caches.
struct Source<'a> {
    node: &'a Node,
    desired: &'a DesiredPod,
}

impl Gather for Source<'_> {
    fn gather<'a>(&'a self, volume: &'a str, needs: Needs) -> BoxFuture<'a, Result<Gathered, String>> {
        Box::pin(async move {
            let refs = ObjectRefs { config_maps: needs.config_maps, secrets: needs.secrets };
            let named = |e: String| format!("volume {volume:?}: {e}");
            let objects = fetch(self.node, self.desired, &refs).await.map_err(named)?;
            let mut gathered = Gathered {
                config_maps: objects.config_maps,
                secrets: objects.secrets,
                ..Gathered::default()
            };
            if needs.trust_bundles {
                let Some(api) = &self.node.api else {
                    return Err(format!(
                        "volume {volume:?} asks for cluster trust bundles, and this node has no apiserver to get them from"
                    ));
                };
                gathered.trust_bundles = api.trust_bundles.get().await.map_err(|e| named(e.to_string()))?;
            }
            if needs.claim {
                gathered.claimed = Some(Arc::new(self.claimed(volume).await.map_err(named)?));
            }
            for need in needs.tokens {
                let Some(api) = &self.node.api else {
                    return Err(format!(
                        "volume {volume:?} asks for a service account token, and this node has no apiserver to get one from"
                    ));
                };
                let spec = self.token(&need);
                let token = api.tokens.get(&spec).await.map_err(|e| named(e.to_string()))?;
                let renew_at = gathered.renew_at.map_or(token.renew_at, |t| t.min(token.renew_at));
                gathered.renew_at = Some(renew_at);
                gathered.tokens.insert(need, token.token);
            }
            Ok(gathered)
        })
    }
}

impl Source<'_> {
    /// What a volume's claim is bound to, if the pod may have it here.
    async fn claimed(&self, volume: &str) -> Result<ClaimedVolume, String> {
        let Some(api) = &self.node.api else {
            return Err(
                "it names a claim, and this node has no apiserver to ask what is behind it".to_owned()
            );
        };
        let pod = &self.desired.pod;
        let used_as = self.desired.volumes().iter().find(|v| v.name == volume);
        let Some((used_as, named)) = used_as.and_then(|v| Some((v, ClaimRef::of(pod, v)?))) else {
            return Err("it names no claim".to_owned());
        };
        let claim =
            api.api.get_claim(self.desired.namespace(), &named.claim).await.map_err(|e| e.to_string())?;
        let bound_to = named.bound_to(pod, claim.as_ref())?;
        let persistent = api.api.get_persistent_volume(bound_to).await.map_err(|e| e.to_string())?;
        let node = self.node.state.admission_view();
        let claim = claim.as_ref().ok_or("its claim is gone")?;
        claimed_volume(pod, used_as, claim, persistent.as_ref(), (&node.name, &node.labels))
    }

    fn token(&self, need: &TokenNeed) -> TokenSpec {
        let account = self.desired.pod.spec.as_ref().and_then(|s| s.service_account_name.clone());
        TokenSpec {
            namespace: self.desired.namespace().to_owned(),
            service_account: account.unwrap_or_else(|| "default".into()),
            pod_name: self.desired.name().to_owned(),
            pod_uid: self.desired.uid.clone(),
            audience: need.audience.clone(),
            expiration_seconds: need.expiration_seconds,
        }
    }
}
