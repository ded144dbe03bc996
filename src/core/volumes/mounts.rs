//! Where a container sees the pod's volumes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, Volume, VolumeMount};

use super::place::VolumePlace;
use crate::env::Variables;
use crate::expand::expand;

/// The longest path that Linux takes.
const MAX_PATH_BYTES: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    Private,
    HostToContainer,
    Bidirectional,
}

/// One mount, to be resolved by the executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerMount {
    /// The volume's name, or what the mount is for.
    pub name: String,
    pub container_path: String,
    pub source: MountSource,
    pub read_only: bool,
    pub recursive_read_only: bool,
    pub propagation: Propagation,
    pub selinux_relabel: bool,
}

/// What is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountSource {
    /// `sub_path` must be opened beneath `path` without following a link out of it, because the volume's content belongs to
    /// the pod.
    Host { path: String, sub_path: Option<String> },
    /// The image of the volume that the mount is named after. The runtime looks its `sub_path` up inside of it.
    Image { sub_path: Option<String> },
}

#[derive(Debug, Clone, Copy)]
pub struct MountInput<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    /// The container's environment, for subPathExpr.
    pub env: &'a Variables,
    /// Where each volume is found.
    pub places: &'a BTreeMap<String, VolumePlace>,
    /// The runtime handler can mount recursively read-only.
    pub recursive_read_only: bool,
    /// The pod's /etc/hosts on the host; left out where the container mounts its own.
    pub etc_hosts: Option<&'a str>,
    /// The file on the host that the container writes its termination message to.
    pub termination_log: Option<&'a str>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MountError {
    #[error("cannot find volume {volume:?} to mount into container {container:?}")]
    NoVolume { volume: String, container: String },
    #[error(
        "missing value for {missing:?} in subPathExpr {expr:?} of volume {volume:?} in container {container:?}"
    )]
    Expression { volume: String, container: String, expr: String, missing: Vec<String> },
    #[error("subPathExpr of volume {volume:?} in container {container:?} {problem}")]
    ExpandedPath { volume: String, container: String, problem: String },
    #[error("error SubPath `{0}` must not be an absolute path")]
    Absolute(String),
    #[error("unable to provision SubPath `{0}`: must not contain '..'")]
    Backsteps(String),
    #[error("invalid MountPropagation mode: {0:?}")]
    Propagation(String),
    #[error(
        "failed to resolve recursive read-only mode: volume {volume:?} requested recursive read-only mode, but {why}"
    )]
    RecursiveReadOnly { volume: String, why: String },
}

/// The mounts of a container in the order of its spec, then /etc/hosts and the termination log.
pub fn mounts(input: &MountInput<'_>) -> Result<Vec<ContainerMount>, MountError> {
    let mut all = vec![];
    for mount in input.container.volume_mounts.iter().flatten() {
        all.push(volume_mount(input, mount)?);
    }
    let own_hosts = all.iter().any(|m| m.container_path == "/etc/hosts");
    if let Some(path) = input.etc_hosts.filter(|_| !own_hosts) {
        all.push(managed("k8s-managed-etc-hosts", "/etc/hosts", path));
    }
    let message_path = input.container.termination_message_path.as_deref().unwrap_or("/dev/termination-log");
    if let Some(path) = input.termination_log.filter(|_| !message_path.is_empty()) {
        all.push(managed("termination-log", message_path, path));
    }
    Ok(all)
}

fn managed(name: &str, container_path: &str, host_path: &str) -> ContainerMount {
    ContainerMount {
        name: name.to_owned(),
        container_path: container_path.to_owned(),
        source: MountSource::Host { path: host_path.to_owned(), sub_path: None },
        read_only: false,
        recursive_read_only: false,
        propagation: Propagation::Private,
        selinux_relabel: true,
    }
}

fn volume_mount(input: &MountInput<'_>, mount: &VolumeMount) -> Result<ContainerMount, MountError> {
    let no_volume =
        || MountError::NoVolume { volume: mount.name.clone(), container: input.container.name.clone() };
    let mut volumes = input.pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    let volume = volumes.find(|v| v.name == mount.name).ok_or_else(no_volume)?;
    let place = input.places.get(&mount.name).ok_or_else(no_volume)?;
    let sub_path = sub_path(input, mount)?;
    let path = mount.mount_path.as_str();
    Ok(ContainerMount {
        name: mount.name.clone(),
        container_path: if path.starts_with('/') { path.to_owned() } else { format!("/{path}") },
        source: match place {
            VolumePlace::Host(path) => MountSource::Host { path: path.clone(), sub_path },
            VolumePlace::Image(_) => MountSource::Image { sub_path },
        },
        read_only: mount.read_only == Some(true) || is_read_only(volume),
        recursive_read_only: recursive_read_only(mount, input.recursive_read_only)?,
        propagation: propagation(mount)?,
        selinux_relabel: volume.host_path.is_none() && place.image().is_none(),
    })
}

fn sub_path(input: &MountInput<'_>, mount: &VolumeMount) -> Result<Option<String>, MountError> {
    let path = match mount.sub_path_expr.as_deref().unwrap_or_default() {
        "" => mount.sub_path.clone().unwrap_or_default(),
        expr => expanded(input, mount, expr)?,
    };
    if path.is_empty() {
        return Ok(None);
    }
    if path.starts_with('/') {
        return Err(MountError::Absolute(path));
    }
    if path.split('/').any(|part| part == "..") || path.contains('\0') {
        return Err(MountError::Backsteps(path));
    }
    Ok(Some(path))
}

/// An unknown name may not pass here: what is meant for one container would be another's.
fn expanded(input: &MountInput<'_>, mount: &VolumeMount, expr: &str) -> Result<String, MountError> {
    let (volume, container) = (mount.name.clone(), input.container.name.clone());
    let mut missing = vec![];
    let known = |name: &str| {
        let value = input.env.get(name);
        if value.is_none() {
            missing.push(name.to_owned());
        }
        value
    };
    let path = expand(expr, MAX_PATH_BYTES, known);
    if !missing.is_empty() {
        return Err(MountError::Expression { volume, container, expr: expr.to_owned(), missing });
    }
    let problem = match path.map(String::from_utf8) {
        Ok(Ok(path)) => return Ok(path),
        Ok(Err(_)) => "refers to a value that is not UTF-8 text".to_owned(),
        Err(_) => format!("becomes a path of more than {MAX_PATH_BYTES} bytes"),
    };
    Err(MountError::ExpandedPath { volume, container, problem })
}

/// What the agent writes itself is never the container's to change, and an image is not either.
fn is_read_only(volume: &Volume) -> bool {
    volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.downward_api.is_some()
        || volume.projected.is_some()
        || volume.image.is_some()
        || volume.persistent_volume_claim.as_ref().is_some_and(|v| v.read_only == Some(true))
        || volume.nfs.as_ref().is_some_and(|v| v.read_only == Some(true))
        || volume.csi.as_ref().is_some_and(|v| v.read_only == Some(true))
}

fn propagation(mount: &VolumeMount) -> Result<Propagation, MountError> {
    match mount.mount_propagation.as_deref() {
        None | Some("" | "None") => Ok(Propagation::Private),
        Some("HostToContainer") => Ok(Propagation::HostToContainer),
        Some("Bidirectional") => Ok(Propagation::Bidirectional),
        Some(other) => Err(MountError::Propagation(other.to_owned())),
    }
}

/// Whether a mount is to be read-only all the way down. Status shows the same answer.
pub(crate) fn recursive_read_only(mount: &VolumeMount, supported: bool) -> Result<bool, MountError> {
    let refuse = |why: String| Err(MountError::RecursiveReadOnly { volume: mount.name.clone(), why });
    let wanted = match mount.recursive_read_only.as_deref() {
        None | Some("" | "Disabled") => return Ok(false),
        Some(wanted) => wanted,
    };
    if mount.read_only != Some(true) {
        return refuse("it is not read-only".into());
    }
    match mount.mount_propagation.as_deref() {
        None | Some("" | "None") => {}
        Some(other) => return refuse(format!("it is not compatible with propagation {other:?}")),
    }
    match wanted {
        "IfPossible" => Ok(supported),
        "Enabled" if supported => Ok(true),
        "Enabled" => refuse("it is not supported by the runtime".into()),
        other => refuse(format!("{other:?} is not Disabled, IfPossible or Enabled")),
    }
}
