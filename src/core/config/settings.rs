//! The effective settings of this node, and the flags that only concern the node.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use super::load::{ConfigError, ConfigInput};
use super::tree::{Node, Origin};
use super::{KubeletConfiguration, LogFormat, NOT_ACTED_ON, Taint};

/// Where pods are described when nothing else says where they come from.
pub const DEFAULT_MANIFEST_DIR: &str = "/etc/keelson/manifests";

/// What the agent runs by. Complete: nothing that it needs is left for it to default.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub kubelet: KubeletConfiguration,
    /// How to reach the apiserver.
    pub kubeconfig: Option<PathBuf>,
    /// No kubeconfig: pods come from the manifest directory only, and nothing is reported to anyone.
    pub standalone: bool,
    pub node_name: String,
    /// Given by --node-ip. An unspecified address (`0.0.0.0`, `::`) only says which family is preferred.
    pub node_ips: Vec<IpAddr>,
    pub node_labels: BTreeMap<String, String>,
    pub register_node: bool,
    pub register_with_taints: Vec<Taint>,
    /// /var/lib/kubelet unless given: pods, plugins, pki lie under it as the kubelet lays them.
    pub root_dir: PathBuf,
    pub cert_dir: PathBuf,
    /// With its scheme: unix:///run/containerd/containerd.sock.
    pub container_runtime_endpoint: String,
    pub image_service_endpoint: String,
    /// The directory (or file) with manifests of static pods.
    pub static_pod_path: Option<PathBuf>,
    pub pod_logs_dir: PathBuf,
    /// Links for log collectors: beside pod_logs_dir, so /var/log/containers unless that was moved.
    pub container_logs_dir: PathBuf,
    /// What `keelson pods` connects to.
    pub local_socket: PathBuf,
    pub runtime_cgroups: Option<String>,
    /// "external" taints the node until a cloud controller has looked at it.
    pub cloud_provider: Option<String>,
    pub log_format: LogFormat,
    pub log_verbosity: u32,
    /// Fields that were given a value but that this version does not act on, each with where it was given.
    pub not_acted_on: Vec<String>,
}

/// The kubelet's flags that have no field in its configuration, as given.
#[derive(Debug, Clone, Default)]
pub struct NodeFlags {
    pub kubeconfig: Option<PathBuf>,
    pub hostname_override: Option<String>,
    pub node_ip: Option<String>,
    pub node_labels: Option<String>,
    pub root_dir: Option<PathBuf>,
    pub cert_dir: Option<PathBuf>,
    pub runtime_cgroups: Option<String>,
    pub cloud_provider: Option<String>,
    pub local_socket: Option<PathBuf>,
}

pub(super) fn build(
    kubelet: KubeletConfiguration,
    given: &Node,
    input: &ConfigInput,
    problems: &mut Vec<ConfigError>,
) -> Settings {
    let node = &input.node;
    let mut complain = |flag, problem| {
        problems.push(ConfigError { origin: Some(Origin::Flag(flag)), field: String::new(), problem });
    };
    let node_name = match &node.hostname_override {
        Some(name) => name.trim().to_lowercase(),
        None => input.hostname.trim().to_lowercase(),
    };
    if !is_dns_name(&node_name) {
        complain(
            "hostname-override",
            format!(
                "{node_name:?} cannot name a node: use lower-case letters, digits, '-' and '.', at most 253"
            ),
        );
    }
    let node_ips = node_ips(node.node_ip.as_deref()).unwrap_or_else(|problem| {
        complain("node-ip", problem);
        vec![]
    });
    let node_labels = node_labels(node.node_labels.as_deref()).unwrap_or_else(|problem| {
        complain("node-labels", problem);
        BTreeMap::new()
    });
    let standalone = node.kubeconfig.is_none();
    let root_dir = node.root_dir.clone().unwrap_or_else(|| "/var/lib/kubelet".into());
    let static_pod_path = match kubelet.static_pod_path.as_str() {
        "" if standalone => Some(DEFAULT_MANIFEST_DIR.into()),
        "" => None,
        path => Some(path.into()),
    };
    Settings {
        kubeconfig: node.kubeconfig.clone(),
        standalone,
        node_name,
        node_ips,
        node_labels,
        register_node: kubelet.register_node && !standalone,
        register_with_taints: kubelet.register_with_taints.clone(),
        cert_dir: node.cert_dir.clone().unwrap_or_else(|| root_dir.join("pki")),
        root_dir,
        container_runtime_endpoint: endpoint(&kubelet.container_runtime_endpoint),
        image_service_endpoint: endpoint(&kubelet.image_service_endpoint),
        static_pod_path,
        pod_logs_dir: kubelet.pod_logs_dir.clone().into(),
        container_logs_dir: container_logs_dir(&kubelet.pod_logs_dir),
        local_socket: node.local_socket.clone().unwrap_or_else(|| "/run/keelson/keelson.sock".into()),
        runtime_cgroups: node.runtime_cgroups.clone().filter(|name| !name.is_empty()),
        cloud_provider: node.cloud_provider.clone().filter(|name| !name.is_empty()),
        log_format: kubelet.logging.format,
        log_verbosity: kubelet.logging.verbosity,
        not_acted_on: not_acted_on(&kubelet, given),
        kubelet,
    }
}

/// Only what differs from its default: a value that changes nothing needs no warning.
fn not_acted_on(kubelet: &KubeletConfiguration, given: &Node) -> Vec<String> {
    let (Ok(effective), Ok(default)) =
        (serde_json::to_value(kubelet), serde_json::to_value(KubeletConfiguration::default()))
    else {
        return vec![];
    };
    NOT_ACTED_ON
        .iter()
        .filter(|field| {
            let pointer = format!("/{}", field.replace('.', "/"));
            effective.pointer(&pointer) != default.pointer(&pointer)
        })
        .map(|field| format!("{field} ({})", given.origin_of(field)))
        .collect()
}

fn container_logs_dir(pod_logs_dir: &str) -> PathBuf {
    match PathBuf::from(pod_logs_dir).parent() {
        Some(parent) => parent.join("containers"),
        None => "/var/log/containers".into(),
    }
}

/// A path without a scheme is a unix socket; kubelets of old were given those.
fn endpoint(given: &str) -> String {
    if given.starts_with('/') { format!("unix://{given}") } else { given.to_owned() }
}

fn node_ips(given: Option<&str>) -> Result<Vec<IpAddr>, String> {
    let parts = given.unwrap_or_default().split(',').map(str::trim).filter(|part| !part.is_empty());
    let ips: Vec<IpAddr> = parts
        .map(|part| part.parse().map_err(|_| format!("{part:?} is not an IP address")))
        .collect::<Result<_, _>>()?;
    match ips.as_slice() {
        [] | [_] => Ok(ips),
        [a, b] if a.is_ipv4() != b.is_ipv4() && !a.is_unspecified() && !b.is_unspecified() => Ok(ips),
        _ => Err("give one address, or one IPv4 and one IPv6 address".into()),
    }
}

fn node_labels(given: Option<&str>) -> Result<BTreeMap<String, String>, String> {
    let mut labels = BTreeMap::new();
    for part in given.unwrap_or_default().split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let (key, value) = (key.trim(), value.trim());
        if !super::checks::is_qualified_name(key) {
            return Err(format!("{key:?} cannot be the name of a label"));
        }
        if !super::checks::is_label_value(value) {
            return Err(format!("{value:?} cannot be the value of label {key}"));
        }
        if is_reserved(key) {
            return Err(format!(
                "label {key} is reserved: a node may only give itself kubernetes.io labels such as \
                 node.kubernetes.io/*, kubelet.kubernetes.io/*, topology.kubernetes.io/region or /zone, \
                 kubernetes.io/hostname, /os and /arch"
            ));
        }
        labels.insert(key.to_owned(), value.to_owned());
    }
    Ok(labels)
}

/// In a namespace of Kubernetes, but not one of those that a node may set on itself.
fn is_reserved(key: &str) -> bool {
    let Some((namespace, _)) = key.split_once('/') else { return false };
    let within = |suffix: &str| namespace == suffix || namespace.ends_with(&format!(".{suffix}"));
    let own = within("node.kubernetes.io") || within("kubelet.kubernetes.io");
    let allowed = [
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
    ];
    (within("kubernetes.io") || within("k8s.io")) && !own && !allowed.contains(&key)
}

fn is_dns_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 253
        && name.split('.').all(|part| {
            !part.is_empty()
                && !part.starts_with('-')
                && !part.ends_with('-')
                && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        })
}
