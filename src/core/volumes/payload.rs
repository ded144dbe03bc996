//! The files of configMap, secret, downwardAPI and projected volumes.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, ProjectedVolumeSource, Secret, Volume, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::downward::{DownwardError, file_field, resource_field};

/// Files by their path inside the volume, which never leaves it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Payload {
    pub files: BTreeMap<String, PayloadFile>,
}

#[derive(Clone, PartialEq, Eq)]
pub struct PayloadFile {
    pub data: Vec<u8>,
    pub mode: u32,
    /// Who owns the file, where that is not root: a token is readable for the pod's one user and nobody else.
    pub uid: Option<i64>,
}

/// Contents may be secret, so they are never printed.
impl std::fmt::Debug for PayloadFile {
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
    /// Service account tokens by audience (empty: the API server's own) and expiration in seconds.
    pub tokens: &'a BTreeMap<(String, i64), String>,
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
    #[error("{0} sources are not supported by this agent")]
    Unsupported(&'static str),
}

/// A token that a projected volume of the pod needs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenRequestSpec {
    pub volume: String,
    /// Empty for the API server's own audience.
    pub audience: String,
    pub expiration_seconds: i64,
}

const DEFAULT_MODE: i32 = 0o644;
const DEFAULT_EXPIRATION: i64 = 3600;

/// The files of a volume, or None when its kind is not made of files that the agent writes.
pub fn payload(volume: &Volume, input: &VolumeInput<'_>) -> Result<Option<Payload>, VolumeError> {
    let files = if let Some(source) = &volume.config_map {
        let optional = source.optional == Some(true);
        config_map(input, &source.name, source.items.as_deref(), optional, mode(source.default_mode))
    } else if let Some(source) = &volume.secret {
        let name = source.secret_name.as_deref().unwrap_or_default();
        let optional = source.optional == Some(true);
        secret(input, name, source.items.as_deref(), optional, mode(source.default_mode))
    } else if let Some(source) = &volume.downward_api {
        downward(input, source.items.as_deref(), mode(source.default_mode))
    } else if let Some(source) = &volume.projected {
        projected(input, source)
    } else {
        return Ok(None);
    };
    let files = files.and_then(checked);
    match files {
        Ok(files) => Ok(Some(Payload { files })),
        Err(problem) => Err(VolumeError { volume: volume.name.clone(), problem }),
    }
}

/// Every token that the pod's volumes need, each once.
pub fn token_requests(pod: &Pod) -> Vec<TokenRequestSpec> {
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    let mut requests: Vec<_> = volumes
        .flat_map(|volume| {
            let sources = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
            sources.filter_map(|s| s.service_account_token.as_ref()).map(|token| TokenRequestSpec {
                volume: volume.name.clone(),
                audience: token.audience.clone().unwrap_or_default(),
                expiration_seconds: token.expiration_seconds.unwrap_or(DEFAULT_EXPIRATION),
            })
        })
        .collect();
    requests.sort();
    requests.dedup();
    requests
}

type Files = BTreeMap<String, PayloadFile>;

fn config_map(
    input: &VolumeInput<'_>,
    name: &str,
    items: Option<&[KeyToPath]>,
    optional: bool,
    mode: u32,
) -> Result<Files, VolumeProblem> {
    let empty = Arc::default();
    let found = match input.config_maps.get(name) {
        Some(found) => found,
        None if optional => &empty,
        None => return Err(VolumeProblem::ConfigMapMissing(name.to_owned())),
    };
    let texts = found.data.iter().flatten().map(|(key, text)| (key, text.as_bytes()));
    // Text wins over binary data under the same key.
    let binaries = found.binary_data.iter().flatten().map(|(key, bytes)| (key, bytes.0.as_slice()));
    let data: BTreeMap<_, _> = binaries.chain(texts).collect();
    pick(&data, items, optional, mode).map_err(VolumeProblem::ConfigMapKey)
}

fn secret(
    input: &VolumeInput<'_>,
    name: &str,
    items: Option<&[KeyToPath]>,
    optional: bool,
    mode: u32,
) -> Result<Files, VolumeProblem> {
    let empty = Arc::default();
    let found = match input.secrets.get(name) {
        Some(found) => found,
        None if optional => &empty,
        None => return Err(VolumeProblem::SecretMissing(name.to_owned())),
    };
    let data: BTreeMap<_, _> =
        found.data.iter().flatten().map(|(key, bytes)| (key, bytes.0.as_slice())).collect();
    pick(&data, items, optional, mode).map_err(VolumeProblem::SecretKey)
}

/// All keys under their own names, or only those that items list, under the paths given there.
fn pick(
    data: &BTreeMap<&String, &[u8]>,
    items: Option<&[KeyToPath]>,
    optional: bool,
    mode: u32,
) -> Result<Files, String> {
    let file = |bytes: &[u8], mode| PayloadFile { data: bytes.to_vec(), mode, uid: None };
    let items = items.unwrap_or_default();
    if items.is_empty() {
        return Ok(data.iter().map(|(key, bytes)| ((*key).clone(), file(bytes, mode))).collect());
    }
    let mut files = Files::new();
    for item in items {
        match data.get(&item.key) {
            Some(bytes) => {
                files.insert(item.path.clone(), file(bytes, own_mode(item.mode, mode)));
            }
            None if optional => {}
            None => return Err(item.key.clone()),
        }
    }
    Ok(files)
}

fn downward(
    input: &VolumeInput<'_>,
    items: Option<&[DownwardAPIVolumeFile]>,
    mode: u32,
) -> Result<Files, VolumeProblem> {
    let mut files = Files::new();
    for item in items.unwrap_or_default() {
        let text = if let Some(field) = &item.field_ref {
            file_field(field, input.pod)?
        } else if let Some(field) = &item.resource_field_ref {
            resource_field(field, input.pod, None, input.node_allocatable)?
        } else {
            String::new()
        };
        let file = PayloadFile { data: text.into_bytes(), mode: own_mode(item.mode, mode), uid: None };
        files.insert(item.path.clone(), file);
    }
    Ok(files)
}

/// Several sources in one directory. A later source replaces an earlier one's file of the same path.
fn projected(input: &VolumeInput<'_>, volume: &ProjectedVolumeSource) -> Result<Files, VolumeProblem> {
    let mode = mode(volume.default_mode);
    let mut files = Files::new();
    for source in volume.sources.iter().flatten() {
        files.extend(projection(input, source, mode)?);
    }
    Ok(files)
}

fn projection(input: &VolumeInput<'_>, source: &VolumeProjection, mode: u32) -> Result<Files, VolumeProblem> {
    if let Some(s) = &source.config_map {
        return config_map(input, &s.name, s.items.as_deref(), s.optional == Some(true), mode);
    }
    if let Some(s) = &source.secret {
        return secret(input, &s.name, s.items.as_deref(), s.optional == Some(true), mode);
    }
    if let Some(s) = &source.downward_api {
        return downward(input, s.items.as_deref(), mode);
    }
    if let Some(s) = &source.service_account_token {
        let audience = s.audience.clone().unwrap_or_default();
        let key = (audience, s.expiration_seconds.unwrap_or(DEFAULT_EXPIRATION));
        let token = input.tokens.get(&key).ok_or(VolumeProblem::TokenPending(key.0))?;
        let (mode, uid) = token_access(input.pod, mode);
        let file = PayloadFile { data: token.clone().into_bytes(), mode, uid };
        return Ok(Files::from([(s.path.clone(), file)]));
    }
    if source.cluster_trust_bundle.is_some() {
        return Err(VolumeProblem::Unsupported("clusterTrustBundle"));
    }
    if source.pod_certificate.is_some() {
        return Err(VolumeProblem::Unsupported("podCertificate"));
    }
    Ok(Files::new())
}

/// A token is narrowed to its reader where there is one: the group of the volume, or the one user that every
/// container runs as.
fn token_access(pod: &Pod, mode: u32) -> (u32, Option<i64>) {
    let Some(spec) = &pod.spec else { return (mode, None) };
    let of_pod = spec.security_context.as_ref();
    if of_pod.is_some_and(|s| s.fs_group.is_some()) {
        return (0o600, None);
    }
    let default = of_pod.and_then(|s| s.run_as_user);
    let mut users = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
        .map(|c| c.security_context.as_ref().and_then(|s| s.run_as_user).or(default));
    match users.next().flatten() {
        Some(uid) if users.all(|u| u == Some(uid)) => (0o600, Some(uid)),
        _ => (mode, None),
    }
}

/// Normalises every path and refuses what could be written outside, over the swap's own names, or onto itself.
fn checked(files: Files) -> Result<Files, VolumeProblem> {
    let mut clean = Files::new();
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
