//! A pod from a file on this machine: read strictly, checked, named after the node, and given a uid of its own.
//!
//! A manifest never passes an apiserver, so whatever the apiserver would have refused is refused here, in words that
//! name the file, the line and the field.

mod references;
mod tree;
mod typed;
mod validate;

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus, Toleration};

use crate::defaults;
use crate::ids::PodUid;
use tree::{Tree, Value};

/// A manifest larger than this is not read any further.
pub const MAX_MANIFEST_BYTES: usize = 1 << 20;

/// Annotation names as every client of static pods knows them.
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
pub const CONFIG_SEEN: &str = "kubernetes.io/config.seen";
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

/// Where a manifest was found, by whom, and when.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    /// The file's path, as it shall appear in messages; it is part of what the uid is made from.
    pub file: &'a str,
    pub node_name: &'a str,
    pub seen: Timestamp,
}

/// A pod that runs because its manifest lies in a directory. `pod` has its final name, its uid and all defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct StaticPod {
    pub uid: PodUid,
    pub file: String,
    pub pod: Arc<Pod>,
}

/// What is wrong with a manifest, where, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestError {
    pub file: String,
    pub line: Option<u64>,
    /// The path of the field, such as `spec.containers[0].image`.
    pub field: Option<String>,
    pub problem: String,
}

impl std::error::Error for ManifestError {}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "manifest {}", self.file)?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        if let Some(field) = &self.field {
            write!(f, ", field {field}")?;
        }
        write!(f, ": {}", self.problem)
    }
}

/// A problem at a field, before it is known which file and line that is.
struct Problem {
    field: String,
    text: String,
}

impl Problem {
    fn at(field: impl Into<String>, text: impl Into<String>) -> Self {
        Self { field: field.into(), text: text.into() }
    }
}

/// Reads one Pod from YAML or JSON.
pub fn parse(origin: &Origin<'_>, bytes: &[u8]) -> Result<StaticPod, ManifestError> {
    let fail = |line: Option<u64>, field: Option<String>, problem: String| ManifestError {
        file: origin.file.to_owned(),
        line,
        field,
        problem,
    };
    if bytes.len() > MAX_MANIFEST_BYTES {
        return Err(fail(
            None,
            None,
            format!("is larger than {MAX_MANIFEST_BYTES} bytes, which is the most that is read"),
        ));
    }
    let text = std::str::from_utf8(bytes).map_err(|e| {
        fail(None, None, format!("is not UTF-8 text: byte {} cannot be read", e.valid_up_to()))
    })?;
    let yaml_error = |e: serde_saphyr::Error| {
        let line = e.location().map(|l| l.line());
        fail(line, None, e.without_snippet().to_string())
    };

    let tree = single_document(text, yaml_error, &fail)?;
    let located = |p: Problem| fail(tree.line_of(&p.field), Some(p.field).filter(|f| !f.is_empty()), p.text);
    check_kind(&tree).map_err(located)?;
    let mut pod = typed::pod(&tree).map_err(located)?;
    refuse_unknown_fields(&tree, &pod).map_err(located)?;

    validate::pod(&pod).map_err(located)?;
    references::refuse(&pod).map_err(located)?;
    let uid = uid_of(&pod, origin).map_err(located)?;
    adopt(&mut pod, &uid, origin);
    defaults::apply(&mut pod);
    validate::final_name(&pod).map_err(located)?;
    Ok(StaticPod { uid, file: origin.file.to_owned(), pod: Arc::new(pod) })
}

/// A byte order mark is how some editors begin a file; it means nothing.
fn document(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

fn single_document(
    text: &str,
    yaml_error: impl Fn(serde_saphyr::Error) -> ManifestError,
    fail: &impl Fn(Option<u64>, Option<String>, String) -> ManifestError,
) -> Result<Tree, ManifestError> {
    let documents: Vec<Tree> =
        serde_saphyr::from_multiple_with_options(document(text), tree::options()).map_err(yaml_error)?;
    let mut filled = documents.into_iter().filter(|d| d.value != Value::Null);
    let first = filled.next().ok_or_else(|| fail(None, None, "is empty; one v1 Pod is expected".into()))?;
    match filled.next() {
        None => Ok(first),
        Some(second) => Err(fail(
            Some(second.place),
            None,
            "holds more than one document; put each pod into a file of its own".into(),
        )),
    }
}

fn check_kind(tree: &Tree) -> Result<(), Problem> {
    if !matches!(tree.value, Value::Map(_)) {
        return Err(Problem::at("", "is not an object; one v1 Pod is expected"));
    }
    let word = |key: &str| match tree.get(key).map(|t| &t.value) {
        Some(Value::Text(text)) => text.as_str(),
        _ => "",
    };
    match (word("apiVersion"), word("kind")) {
        ("v1", "Pod") => Ok(()),
        (_, "") => Err(Problem::at("kind", "is missing; kind: Pod and apiVersion: v1 are expected")),
        (_, kind @ ("PodList" | "List")) => Err(Problem::at(
            "kind",
            format!("is {kind}; put each pod into a file of its own, with kind: Pod"),
        )),
        (_, kind) if kind != "Pod" => {
            Err(Problem::at("kind", format!("is {kind:?}; only kind: Pod runs from a manifest")))
        }
        (version, _) => Err(Problem::at("apiVersion", format!("is {version:?}; apiVersion: v1 is expected"))),
    }
}

/// Whatever the manifest says and the Pod that was read from it does not repeat was not understood.
fn refuse_unknown_fields(tree: &Tree, pod: &Pod) -> Result<(), Problem> {
    let understood: serde_json::Value = serde_json::to_vec(pod)
        .and_then(|json| serde_json::from_slice(&json))
        .map_err(|e| Problem::at("", format!("cannot be written back as a Pod: {e}")))?;
    match tree.first_not_in(&understood) {
        None => Ok(()),
        Some(field) => {
            Err(Problem::at(field, "is not a field of a v1 Pod; check its spelling and its indentation"))
        }
    }
}

/// The uid that the manifest brings, or a hash of what it says and where it lies: an edit gives a new pod, a comment
/// or another layout of the same text does not.
fn uid_of(pod: &Pod, origin: &Origin<'_>) -> Result<PodUid, Problem> {
    let bad = |e: crate::ids::BadId| Problem::at("metadata.uid", e.to_string());
    if let Some(uid) = pod.metadata.uid.as_deref().filter(|uid| !uid.is_empty()) {
        if !uid.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
            return Err(Problem::at(
                "metadata.uid",
                format!("is {uid:?}; lower case letters, digits and '-' are allowed"),
            ));
        }
        return PodUid::try_from(uid).map_err(bad);
    }
    let json = serde_json::to_vec(pod).map_err(|e| Problem::at("", format!("cannot be hashed: {e}")))?;
    let mut hash = Fnv128::new();
    hash.write(&json);
    hash.write(format!("host:{}", origin.node_name).as_bytes());
    hash.write(format!("file:{}", origin.file).as_bytes());
    PodUid::try_from(hash.hex()).map_err(bad)
}

/// Makes the pod this node's own: name, uid, node, annotations, and the toleration that keeps a static pod where it is
/// while its node is unwell.
fn adopt(pod: &mut Pod, uid: &PodUid, origin: &Origin<'_>) {
    let meta = &mut pod.metadata;
    meta.name =
        Some(format!("{}-{}", meta.name.as_deref().unwrap_or_default(), origin.node_name.to_lowercase()));
    if meta.namespace.as_deref().unwrap_or_default().is_empty() {
        meta.namespace = Some("default".into());
    }
    meta.uid = Some(uid.to_string());
    meta.deletion_timestamp = None;
    let annotations = meta.annotations.get_or_insert_default();
    annotations.insert(CONFIG_SOURCE.into(), "file".into());
    annotations.insert(CONFIG_SEEN.into(), origin.seen.to_string());
    annotations.insert(CONFIG_HASH.into(), uid.to_string());

    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(origin.node_name.to_owned());
    let stay = Toleration {
        effect: Some("NoExecute".into()),
        operator: Some("Exists".into()),
        ..Default::default()
    };
    let tolerations = spec.tolerations.get_or_insert_default();
    if !tolerations.contains(&stay) {
        tolerations.push(stay);
    }
    pod.status = Some(PodStatus { phase: Some("Pending".into()), ..Default::default() });
}

/// FNV-1a of 128 bits. It keeps its value over versions and machines, which is what a uid needs; it is no secret.
struct Fnv128(u128);

impl Fnv128 {
    fn new() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }
    fn hex(&self) -> String {
        format!("{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests;
