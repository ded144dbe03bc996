//! The effective settings of this node, and the flags that only concern the node.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use super::credential_providers::{self, CredentialProvider};
use super::fields::{FieldValue, Support};
use super::load::{ConfigError, ConfigInput};
use super::names::{is_dns_name, is_label_value, is_qualified_name, is_reserved_label};
use super::tree::{Node, Origin};
use super::{ConfigText, KubeletConfiguration};

/// Where pods are described when nothing else says where they come from.
pub const DEFAULT_MANIFEST_DIR: &str = "/etc/keelson/manifests";
/// What `keelson pods` connects to when it is given nothing else.
pub const DEFAULT_SOCKET: &str = "/run/keelson/keelson.sock";

/// What the agent runs by. Complete: nothing that it needs is left for it to default. One field for each thing that is settled
/// before the start; they come from different flags and are read by different parts.
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
    /// A cloud controller initializes this node.
    pub external_cloud: bool,
    pub register_node: bool,
    pub paths: Paths,
    /// With its scheme: unix:///run/containerd/containerd.sock.
    pub container_runtime_endpoint: String,
    pub image_service_endpoint: String,
    pub runtime_cgroups: Option<String>,
    /// Plugins that are asked for credentials of images, in order.
    pub credential_providers: Vec<CredentialProvider>,
    /// Fields that were given a value but that this version does not act on, or not in full, each with where it was given.
    pub not_acted_on: Vec<String>,
}

/// Where things lie on this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Paths {
    /// /var/lib/kubelet unless given: pods, plugins, pki lie under it as the kubelet lays them.
    pub root_dir: PathBuf,
    pub cert_dir: PathBuf,
    /// The directory (or file) with manifests of static pods.
    pub static_pod_path: Option<PathBuf>,
    pub pod_logs_dir: PathBuf,
    /// Links for log collectors: beside pod_logs_dir, so /var/log/containers unless that was moved.
    pub container_logs_dir: PathBuf,
    /// What `keelson pods` connects to.
    pub local_socket: PathBuf,
    /// Where the programs of credential providers lie. Empty without any.
    pub credential_provider_bin_dir: PathBuf,
    /// Archives in it are brought into the runtime.
    pub image_dir: Option<PathBuf>,
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
    pub cloud_provider: Option<String>,
    pub runtime_cgroups: Option<String>,
    pub local_socket: Option<PathBuf>,
    /// The files that --image-credential-provider-config names, read.
    pub credential_provider_config: Option<Vec<ConfigText>>,
    pub credential_provider_bin_dir: Option<PathBuf>,
    pub image_dir: Option<PathBuf>,
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
    let external_cloud = match node.cloud_provider.as_deref() {
        None | Some("") => false,
        Some("external") => true,
        Some(other) => {
            let problem =
                format!("{other:?} is no provider that a node works with: use external, or leave it out");
            complain("cloud-provider", problem);
            false
        }
    };
    let (config, bin_dir) = ("image-credential-provider-config", "image-credential-provider-bin-dir");
    match (&node.credential_provider_config, &node.credential_provider_bin_dir) {
        (Some(_), None) => complain(config, format!("needs --{bin_dir}, where the plugins are")),
        (None, Some(_)) => complain(bin_dir, format!("needs --{config}, which says what they are for")),
        _ => {}
    }
    let configured = node.credential_provider_config.as_deref();
    let credential_providers =
        configured.map(|texts| credential_providers::read(texts, problems)).unwrap_or_default();
    let standalone = node.kubeconfig.is_none();
    Settings {
        kubeconfig: node.kubeconfig.clone(),
        standalone,
        node_name,
        node_ips,
        node_labels,
        external_cloud,
        register_node: kubelet.register_node && !standalone,
        paths: paths(&kubelet, node, standalone),
        container_runtime_endpoint: endpoint(&kubelet.container_runtime_endpoint),
        image_service_endpoint: endpoint(&kubelet.image_service_endpoint),
        runtime_cgroups: node.runtime_cgroups.clone().filter(|name| !name.is_empty()),
        credential_providers,
        not_acted_on: not_acted_on(&kubelet, given),
        kubelet,
    }
}

fn paths(kubelet: &KubeletConfiguration, flags: &NodeFlags, standalone: bool) -> Paths {
    let root_dir = flags.root_dir.clone().unwrap_or_else(|| "/var/lib/kubelet".into());
    Paths {
        cert_dir: flags.cert_dir.clone().unwrap_or_else(|| root_dir.join("pki")),
        root_dir,
        static_pod_path: match kubelet.static_pod_path.as_str() {
            "" if standalone => Some(DEFAULT_MANIFEST_DIR.into()),
            "" => None,
            path => Some(path.into()),
        },
        pod_logs_dir: kubelet.pod_logs_dir.clone().into(),
        container_logs_dir: container_logs_dir(&kubelet.pod_logs_dir),
        local_socket: flags.local_socket.clone().unwrap_or_else(|| DEFAULT_SOCKET.into()),
        image_dir: flags.image_dir.clone(),
        credential_provider_bin_dir: flags.credential_provider_bin_dir.clone().unwrap_or_default(),
    }
}

/// What was given a value of its own but is not acted on, or not in full. A value that changes nothing needs no warning.
fn not_acted_on(kubelet: &KubeletConfiguration, given: &Node) -> Vec<String> {
    let (Ok(effective), Ok(default)) =
        (serde_json::to_value(kubelet), serde_json::to_value(KubeletConfiguration::default()))
    else {
        return vec![];
    };
    let mut found = vec![];
    for field in KubeletConfiguration::fields() {
        let pointer = format!("/{}", field.path.join("/"));
        if effective.pointer(&pointer) == default.pointer(&pointer) {
            continue;
        }
        let name = field.name();
        let origin = given.origin_of(&name);
        match field.support {
            Support::ActedOn => {}
            Support::Partly(missing) => found.push(format!("{name} ({origin}): {missing}")),
            Support::NotActedOn => found.push(format!("{name} ({origin})")),
        }
    }
    found
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
        if !is_qualified_name(key) {
            return Err(format!("{key:?} cannot be the name of a label"));
        }
        if !is_label_value(value) {
            return Err(format!("{value:?} cannot be the value of label {key}"));
        }
        if is_reserved_label(key) {
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
