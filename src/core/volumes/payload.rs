//! The files of configMap, secret, downwardAPI and projected volumes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, ProjectedVolumeSource, Secret, Volume, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::needs::TokenNeed;
use super::trust_bundle::{TrustBundle, TrustBundleProblem, trust_anchors};
use crate::downward::{DownwardError, file_field, resource_field};

/// The most that a volume of files may take, counted in whole blocks and with its directories. An object has at most
/// 1 MiB, but a pod may ask for it under any number of names, in memory that no limit of the pod's covers.
pub const MAX_PAYLOAD_BYTES: usize = 32 << 20;

/// Files by their path inside the volume, which never leaves it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Payload<'a> {
    pub files: BTreeMap<String, PayloadFile<'a>>,
}

#[derive(Clone, PartialEq, Eq)]
pub struct PayloadFile<'a> {
    /// Borrowed from its object, however many files show the same.
    pub data: Cow<'a, [u8]>,
    pub mode: u32,
    /// Who owns the file, where that is not root: a token is readable for the pod's one user and nobody else.
    pub uid: Option<i64>,
}

/// Contents may be secret, so they are never printed.
impl std::fmt::Debug for PayloadFile<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PayloadFile({} bytes, mode {:o}, uid {:?})", self.data.len(), self.mode, self.uid)
    }
}

#[derive(Debug, Clone, Copy)]
pub struct VolumeInput<'a> {
    pub pod: &'a Pod,
    /// By name; both of the pod's namespace.
    pub config_maps: &'a BTreeMap<String, Arc<ConfigMap>>,
    pub secrets: &'a BTreeMap<String, Arc<Secret>>,
    /// Service account tokens.
    pub tokens: &'a BTreeMap<TokenNeed, String>,
    /// All of the cluster.
    pub trust_bundles: &'a [TrustBundle],
    pub node_allocatable: &'a BTreeMap<String, Quantity>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("MountVolume.SetUp failed for volume {volume:?} : {problem}")]
pub struct VolumeError {
    pub volume: String,
    pub problem: VolumeProblem,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VolumeProblem {
    #[error("configmap {0:?} not found")]
    ConfigMapMissing(String),
    #[error("secret {0:?} not found")]
    SecretMissing(String),
    #[error("configmap references non-existent config key: {0}")]
    ConfigMapKey(String),
    #[error("references non-existent secret key: {0}")]
    SecretKey(String),
    #[error(transparent)]
    Downward(#[from] DownwardError),
    #[error("no service account token for audience {0:?} yet")]
    TokenPending(String),
    #[error("path {0:?} must be relative, inside the volume, and must not begin with '..'")]
    Path(String),
    #[error("path {0:?} is both a file and a directory of another file")]
    PathConflict(String),
    #[error(
        "its files take more than {MAX_PAYLOAD_BYTES} bytes, which is the most that is written into one volume; spread them over several"
    )]
    TooLarge,
    #[error(transparent)]
    TrustBundle(#[from] TrustBundleProblem),
    #[error(
        "podCertificate sources are not supported by this agent; they belong to the feature gate PodCertificateRequest, which is off by default in Kubernetes 1.36"
    )]
    PodCertificate,
}

const DEFAULT_MODE: i32 = 0o644;

/// The files of a volume, or None when its kind is not made of files that the agent writes.
pub fn payload<'a>(volume: &Volume, input: &VolumeInput<'a>) -> Result<Option<Payload<'a>>, VolumeError> {
    let mut files = Files::default();
    let done = if let Some(source) = &volume.config_map {
        let optional = source.optional == Some(true);
        config_map(
            &mut files,
            input,
            &source.name,
            source.items.as_deref(),
            optional,
            mode(source.default_mode),
        )
    } else if let Some(source) = &volume.secret {
        let name = source.secret_name.as_deref().unwrap_or_default();
        let optional = source.optional == Some(true);
        secret(&mut files, input, name, source.items.as_deref(), optional, mode(source.default_mode))
    } else if let Some(source) = &volume.downward_api {
        downward(&mut files, input, source.items.as_deref(), mode(source.default_mode))
    } else if let Some(source) = &volume.projected {
        projected(&mut files, input, source)
    } else {
        return Ok(None);
    };
    match done.and_then(|()| checked(files.by_path)) {
        Ok(files) => Ok(Some(Payload { files })),
        Err(problem) => Err(VolumeError { volume: volume.name.clone(), problem }),
    }
}

/// Files as they come together, and what they will take. A later one replaces an earlier one of the same path.
#[derive(Default)]
struct Files<'a> {
    by_path: BTreeMap<String, PayloadFile<'a>>,
    taken: usize,
}

impl<'a> Files<'a> {
    fn insert(&mut self, path: &str, file: PayloadFile<'a>) -> Result<(), VolumeProblem> {
        let before = self.by_path.get(path).map_or(0, |old| taken_by(path, old));
        let taken = self.taken - before + taken_by(path, &file);
        if taken > MAX_PAYLOAD_BYTES {
            return Err(VolumeProblem::TooLarge);
        }
        self.taken = taken;
        self.by_path.insert(path.to_owned(), file);
        Ok(())
    }
}

/// A file lies in whole blocks; it and each directory on its way have an inode and a name.
fn taken_by(path: &str, file: &PayloadFile<'_>) -> usize {
    const BLOCK: usize = 4096;
    const INODE: usize = 1024;
    file.data.len().next_multiple_of(BLOCK) + path.split('/').count() * INODE
}

fn config_map<'a>(
    files: &mut Files<'a>,
    input: &VolumeInput<'a>,
    name: &str,
    items: Option<&[KeyToPath]>,
    optional: bool,
    mode: u32,
) -> Result<(), VolumeProblem> {
    let found = match input.config_maps.get(name) {
        Some(found) => found,
        None if optional => return Ok(()),
        None => return Err(VolumeProblem::ConfigMapMissing(name.to_owned())),
    };
    let texts = found.data.iter().flatten().map(|(key, text)| (key, text.as_bytes()));
    // Text wins over binary data under the same key.
    let binaries = found.binary_data.iter().flatten().map(|(key, bytes)| (key, bytes.0.as_slice()));
    let data: BTreeMap<_, _> = binaries.chain(texts).collect();
    pick(files, &data, items, optional, mode, VolumeProblem::ConfigMapKey)
}

fn secret<'a>(
    files: &mut Files<'a>,
    input: &VolumeInput<'a>,
    name: &str,
    items: Option<&[KeyToPath]>,
    optional: bool,
    mode: u32,
) -> Result<(), VolumeProblem> {
    let found = match input.secrets.get(name) {
        Some(found) => found,
        None if optional => return Ok(()),
        None => return Err(VolumeProblem::SecretMissing(name.to_owned())),
    };
    let data: BTreeMap<_, _> =
        found.data.iter().flatten().map(|(key, bytes)| (key, bytes.0.as_slice())).collect();
    pick(files, &data, items, optional, mode, VolumeProblem::SecretKey)
}

/// All keys under their own names, or only those that items list, under the paths given there.
fn pick<'a>(
    files: &mut Files<'a>,
    data: &BTreeMap<&'a String, &'a [u8]>,
    items: Option<&[KeyToPath]>,
    optional: bool,
    mode: u32,
    missing: fn(String) -> VolumeProblem,
) -> Result<(), VolumeProblem> {
    let file = |bytes: &'a [u8], mode| PayloadFile { data: Cow::Borrowed(bytes), mode, uid: None };
    let items = items.unwrap_or_default();
    if items.is_empty() {
        return data.iter().try_for_each(|(key, bytes)| files.insert(key, file(bytes, mode)));
    }
    for item in items {
        match data.get(&item.key) {
            Some(bytes) => files.insert(&item.path, file(bytes, own_mode(item.mode, mode)))?,
            None if optional => {}
            None => return Err(missing(item.key.clone())),
        }
    }
    Ok(())
}

fn downward(
    files: &mut Files<'_>,
    input: &VolumeInput<'_>,
    items: Option<&[DownwardAPIVolumeFile]>,
    mode: u32,
) -> Result<(), VolumeProblem> {
    for item in items.unwrap_or_default() {
        let text = if let Some(field) = &item.field_ref {
            file_field(field, input.pod)?
        } else if let Some(field) = &item.resource_field_ref {
            resource_field(field, input.pod, None, input.node_allocatable)?
        } else {
            String::new()
        };
        let data = Cow::Owned(text.into_bytes());
        files.insert(&item.path, PayloadFile { data, mode: own_mode(item.mode, mode), uid: None })?;
    }
    Ok(())
}

/// Several sources in one directory.
fn projected<'a>(
    files: &mut Files<'a>,
    input: &VolumeInput<'a>,
    volume: &ProjectedVolumeSource,
) -> Result<(), VolumeProblem> {
    let mode = mode(volume.default_mode);
    volume.sources.iter().flatten().try_for_each(|source| projection(files, input, source, mode))
}

fn projection<'a>(
    files: &mut Files<'a>,
    input: &VolumeInput<'a>,
    source: &VolumeProjection,
    mode: u32,
) -> Result<(), VolumeProblem> {
    if let Some(s) = &source.config_map {
        return config_map(files, input, &s.name, s.items.as_deref(), s.optional == Some(true), mode);
    }
    if let Some(s) = &source.secret {
        return secret(files, input, &s.name, s.items.as_deref(), s.optional == Some(true), mode);
    }
    if let Some(s) = &source.downward_api {
        return downward(files, input, s.items.as_deref(), mode);
    }
    if let Some(s) = &source.service_account_token {
        let need = TokenNeed::of(s);
        let token = input.tokens.get(&need).ok_or(VolumeProblem::TokenPending(need.audience))?;
        let (mode, uid) = token_access(input.pod, mode);
        return files.insert(&s.path, PayloadFile { data: Cow::Borrowed(token.as_bytes()), mode, uid });
    }
    if let Some(s) = &source.cluster_trust_bundle {
        let data = Cow::Owned(trust_anchors(s, input.trust_bundles)?);
        let (mode, uid) = token_access(input.pod, mode);
        return files.insert(&s.path, PayloadFile { data, mode, uid });
    }
    if source.pod_certificate.is_some() {
        return Err(VolumeProblem::PodCertificate);
    }
    Ok(())
}

/// A token, or what a projection makes readable as one, is narrowed to its readers where they are known: the group of the volume, which is given the right to read it
/// where the files are written, and the one user that every container runs as.
fn token_access(pod: &Pod, mode: u32) -> (u32, Option<i64>) {
    let Some(spec) = &pod.spec else { return (mode, None) };
    let of_pod = spec.security_context.as_ref();
    let default = of_pod.and_then(|s| s.run_as_user);
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let contexts = containers.map(|c| c.security_context.as_ref());
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| c.security_context.as_ref());
    let mut users = contexts.chain(ephemeral).map(|s| s.and_then(|s| s.run_as_user).or(default));
    let user = users.next().flatten().filter(|uid| users.all(|user| user == Some(*uid)));
    let narrowed = user.is_some() || of_pod.is_some_and(|s| s.fs_group.is_some());
    (if narrowed { 0o600 } else { mode }, user)
}

/// Normalises every path and refuses what could be written outside, over the swap's own names, or onto itself.
fn checked(
    files: BTreeMap<String, PayloadFile<'_>>,
) -> Result<BTreeMap<String, PayloadFile<'_>>, VolumeProblem> {
    let mut clean = BTreeMap::new();
    for (path, file) in files {
        let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        let bad = path.starts_with('/')
            || path.contains('\0')
            || path.len() > 4096
            || parts.is_empty()
            || parts[0].starts_with("..")
            || parts.iter().any(|part| *part == ".." || part.len() > 255);
        if bad {
            return Err(VolumeProblem::Path(path));
        }
        clean.insert(parts.join("/"), file);
    }
    for path in clean.keys() {
        let mut dir = path.as_str();
        while let Some((parent, _)) = dir.rsplit_once('/') {
            if clean.contains_key(parent) {
                return Err(VolumeProblem::PathConflict(parent.to_owned()));
            }
            dir = parent;
        }
    }
    Ok(clean)
}

fn mode(default: Option<i32>) -> u32 {
    own_mode(default, DEFAULT_MODE as u32)
}

fn own_mode(mode: Option<i32>, default: u32) -> u32 {
    mode.and_then(|m| u32::try_from(m).ok()).map_or(default, |m| m & 0o777)
}
