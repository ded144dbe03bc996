//! From a volume that names a claim to the persistent volume behind it, with everything that speaks against giving it to the pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, HostPathVolumeSource, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, Pod,
    Volume,
};
use serde_json::Value;

use crate::admission::node_selector_matches;

/// The claim that a volume names: by its name, or by that of the pod for one that was made for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRef {
    pub claim: String,
    pub made_for_pod: bool,
}

/// What a pod is given of a claim.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedVolume {
    /// The persistent volume, which also names its directory in the pod's.
    pub name: String,
    pub backing: Backing,
    pub read_only: bool,
}

/// Where its content is.
#[derive(Debug, Clone, PartialEq)]
pub enum Backing {
    HostPath(HostPathVolumeSource),
    /// A directory of this machine.
    Local {
        path: String,
        mount_options: Vec<String>,
    },
}

/// Keeps a claim that is in use from going away: one that is being deleted stays until the pods that use it are gone.
const IN_USE: &str = "kubernetes.io/pvc-protection";

impl ClaimRef {
    /// `None` for a volume of another kind.
    pub fn of(pod: &Pod, volume: &Volume) -> Option<Self> {
        if let Some(source) = &volume.persistent_volume_claim {
            return Some(Self { claim: source.claim_name.clone(), made_for_pod: false });
        }
        volume.ephemeral.as_ref()?;
        let pod = pod.metadata.name.as_deref().unwrap_or_default();
        Some(Self { claim: format!("{pod}-{}", volume.name), made_for_pod: true })
    }

    /// The persistent volume that a claim is bound to.
    pub fn bound_to<'a>(
        &self,
        pod: &Pod,
        claim: Option<&'a PersistentVolumeClaim>,
    ) -> Result<&'a str, String> {
        let name = &self.claim;
        let Some(claim) = claim else { return Err(format!("persistentvolumeclaim {name:?} not found")) };
        if self.made_for_pod && !is_controlled_by(claim, pod) {
            let (pod, namespace) = (pod.metadata.name.as_deref(), pod.metadata.namespace.as_deref());
            return Err(format!(
                "PVC {}/{name} was not created for pod {}/{} (pod is not owner)",
                claim.metadata.namespace.as_deref().unwrap_or_default(),
                namespace.unwrap_or_default(),
                pod.unwrap_or_default(),
            ));
        }
        let protected = claim.metadata.finalizers.iter().flatten().any(|f| f == IN_USE);
        if claim.metadata.deletion_timestamp.is_some() && !protected {
            return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
        }
        let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("Pending");
        let volume = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or_default();
        if phase != "Bound" || volume.is_empty() {
            return Err(format!(
                "persistentvolumeclaim {name:?} is not bound to a volume yet; it is {phase}"
            ));
        }
        Ok(volume)
    }
}

/// What the pod gets. `claim` is bound to `volume`, as far as it knows. `labels` are those of this node.
pub fn claimed_volume(
    pod: &Pod,
    used_as: &Volume,
    claim: &PersistentVolumeClaim,
    volume: Option<&PersistentVolume>,
    (node, labels): (&str, &BTreeMap<String, String>),
) -> Result<ClaimedVolume, String> {
    let bound = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or_default();
    let Some(volume) = volume else { return Err(format!("persistentvolume {bound:?} not found")) };
    let name = volume.metadata.name.clone().unwrap_or_default();
    let none = PersistentVolumeSpec::default();
    let spec = volume.spec.as_ref().unwrap_or(&none);
    let of = spec.claim_ref.as_ref().and_then(|claim| claim.uid.as_deref());
    if of.is_none() || of != claim.metadata.uid.as_deref() {
        return Err(format!("persistentvolume {name:?} is not bound to this claim but to {}", owner(spec)));
    }
    if name.is_empty() || name.starts_with('.') || name.contains('/') {
        return Err(format!("the name of persistentvolume {name:?} is no name of a directory"));
    }
    check_use(pod, used_as, spec.volume_mode.as_deref().unwrap_or("Filesystem"))?;
    let affinity = spec.node_affinity.as_ref().and_then(|a| a.required.as_ref());
    if affinity.is_some_and(|required| !node_selector_matches(required, node, labels)) {
        return Err(format!(
            "persistentvolume {name:?} cannot be used on this node: its node affinity does not match the node's labels"
        ));
    }
    let claimed_read_only = used_as.persistent_volume_claim.as_ref().and_then(|c| c.read_only);
    Ok(ClaimedVolume { backing: backing(&name, spec)?, name, read_only: claimed_read_only == Some(true) })
}

fn backing(name: &str, spec: &PersistentVolumeSpec) -> Result<Backing, String> {
    if let Some(source) = &spec.host_path {
        return Ok(Backing::HostPath(source.clone()));
    }
    if let Some(source) = &spec.local {
        let path = source.path.clone();
        if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
            return Err(format!(
                "local.path {path:?} of persistentvolume {name:?} must be absolute and without '..'"
            ));
        }
        return Ok(Backing::Local { path, mount_options: spec.mount_options.clone().unwrap_or_default() });
    }
    Err(format!("persistentvolume {name:?} is of kind {}, which this agent does not support", kind(spec)))
}

/// What the spec calls its source.
fn kind(spec: &PersistentVolumeSpec) -> String {
    const OTHERS: [&str; 9] = [
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
    ];
    let fields = match serde_json::to_value(spec) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let found = fields.into_iter().map(|(key, _)| key).find(|key| !OTHERS.contains(&key.as_str()));
    found.unwrap_or_else(|| "none".to_owned())
}

/// A volume with files in it is mounted, a raw one is a device.
fn check_use(pod: &Pod, volume: &Volume, mode: &str) -> Result<(), String> {
    let spec = pod.spec.as_ref();
    let all = spec.into_iter().flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers));
    let mounted = |c: &Container| c.volume_mounts.iter().flatten().any(|m| m.name == volume.name);
    let raw = |c: &Container| c.volume_devices.iter().flatten().any(|d| d.name == volume.name);
    for container in all {
        if mounted(container) && mode != "Filesystem" {
            return Err(format!(
                "its volumeMode is {mode}, but container {:?} names it in volumeMounts",
                container.name
            ));
        }
        if raw(container) && mode != "Block" {
            return Err(format!(
                "its volumeMode is {mode}, but container {:?} names it in volumeDevices",
                container.name
            ));
        }
    }
    if mode == "Filesystem" {
        return Ok(());
    }
    Err(format!("its volumeMode is {mode}, which this agent does not support"))
}

fn owner(spec: &PersistentVolumeSpec) -> String {
    match &spec.claim_ref {
        Some(claim) => format!(
            "{}/{}",
            claim.namespace.as_deref().unwrap_or_default(),
            claim.name.as_deref().unwrap_or_default()
        ),
        None => "none".to_owned(),
    }
}

fn is_controlled_by(claim: &PersistentVolumeClaim, pod: &Pod) -> bool {
    let owners = claim.metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|owner| owner.controller == Some(true));
    controllers.any(|owner| pod.metadata.uid.as_deref() == Some(owner.uid.as_str()))
}

#[cfg(test)]
#[path = "claim_tests.rs"]
mod tests;
