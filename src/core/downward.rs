//! What a pod may learn about itself: fields of its own object, and the resources its containers were given.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, ObjectFieldSelector, Pod, PodSpec, ResourceFieldSelector};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::resources::{Amount, amount, amount_of, has_pod_level};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DownwardError {
    #[error("unsupported pod version: {0}; fieldRef knows v1 only")]
    Version(String),
    #[error("field label not supported: {0}")]
    Field(String),
    #[error("fieldPath {0:?} does not support subscript; only metadata.labels and metadata.annotations do")]
    Subscript(String),
    #[error("invalid key subscript in {0}: it must be a qualified name such as example.com/name")]
    Key(String),
    #[error("unsupported container resource : {0}")]
    Resource(String),
    #[error("container {0} not found")]
    Container(String),
    #[error("divisor of {resource}: {problem}")]
    Divisor { resource: String, problem: String },
    #[error("{0} is not known yet")]
    NotYet(&'static str),
}

/// The addresses that the status fields stand for, primary first.
#[derive(Debug, Clone, Copy, Default)]
pub struct Addresses<'a> {
    pub pod_ips: &'a [IpAddr],
    pub host_ips: &'a [IpAddr],
}

/// A field as an environment value.
pub fn env_field(
    selector: &ObjectFieldSelector,
    pod: &Pod,
    addresses: Addresses<'_>,
) -> Result<String, DownwardError> {
    check_version(selector)?;
    let spec = pod.spec.as_ref();
    let text = |value: Option<&String>| Ok(value.cloned().unwrap_or_default());
    match selector.field_path.as_str() {
        "spec.nodeName" | "spec.host" => text(spec.and_then(|s| s.node_name.as_ref())),
        "spec.serviceAccountName" => text(spec.and_then(|s| s.service_account_name.as_ref())),
        "status.hostIP" => first(addresses.host_ips).ok_or(DownwardError::NotYet("the node's address")),
        "status.hostIPs" => Ok(list(addresses.host_ips)),
        "status.podIP" => Ok(first(pod_ips(spec, addresses)).unwrap_or_default()),
        "status.podIPs" => Ok(list(pod_ips(spec, addresses))),
        path => metadata_field(path, pod),
    }
}

/// A field as the content of a file: only what is known before the pod runs and what may change while it does.
pub fn file_field(selector: &ObjectFieldSelector, pod: &Pod) -> Result<String, DownwardError> {
    check_version(selector)?;
    metadata_field(&selector.field_path, pod)
}

/// A container's request or limit, divided and rounded up. A limit that is not set is the pod's, or else all that the
/// node can give. `container` is the one that asks, unless the selector names another.
pub fn resource_field(
    selector: &ResourceFieldSelector,
    pod: &Pod,
    container: Option<&Container>,
    node_allocatable: &BTreeMap<String, Quantity>,
) -> Result<String, DownwardError> {
    let name = selector.container_name.as_deref().unwrap_or_default();
    let container = match (name, container) {
        ("", Some(own)) => own,
        _ => find(pod, name).ok_or_else(|| DownwardError::Container(name.to_owned()))?,
    };
    let unsupported = || DownwardError::Resource(selector.resource.clone());
    let (kind, resource) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let known = matches!(resource, "cpu" | "memory" | "ephemeral-storage");
    if !known && !resource.starts_with("hugepages-") {
        return Err(unsupported());
    }
    let own = container.resources.as_ref();
    let value = match kind {
        "requests" => amount(own.and_then(|r| r.requests.as_ref()), resource),
        "limits" => {
            let limit = amount(own.and_then(|r| r.limits.as_ref()), resource);
            if limit.is_zero() && known { default_limit(pod, resource, node_allocatable) } else { limit }
        }
        _ => return Err(unsupported()),
    };
    divide(value, selector, resource == "cpu")
}

fn default_limit(pod: &Pod, resource: &str, node_allocatable: &BTreeMap<String, Quantity>) -> Amount {
    let pod_limits = pod.spec.as_ref().and_then(|s| s.resources.as_ref()).and_then(|r| r.limits.as_ref());
    let pod_limit = amount(pod_limits, resource);
    if has_pod_level(pod_limits) && resource != "ephemeral-storage" && !pod_limit.is_zero() {
        return pod_limit;
    }
    amount(Some(node_allocatable), resource)
}

/// Cpu counts in thousandths so that a divisor of 1m is exact; everything else in whole units.
fn divide(value: Amount, selector: &ResourceFieldSelector, milli: bool) -> Result<String, DownwardError> {
    let bad = |problem: String| DownwardError::Divisor { resource: selector.resource.clone(), problem };
    let divisor = match &selector.divisor {
        Some(q) if !q.0.is_empty() => amount_of(q).map_err(|e| bad(e.to_string()))?,
        _ => Amount::ZERO,
    };
    let divisor = if divisor.is_zero() { Amount::from_milli(1000) } else { divisor };
    if !divisor.is_positive() {
        return Err(bad("it is negative".into()));
    }
    let (value, by) = if milli { (value.milli(), divisor.milli()) } else { (value.value(), divisor.value()) };
    Ok((value / by + i64::from(value % by > 0)).to_string())
}

fn find<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let spec = pod.spec.as_ref()?;
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|c| c.name == name)
}

fn check_version(selector: &ObjectFieldSelector) -> Result<(), DownwardError> {
    match selector.api_version.as_deref() {
        None | Some("" | "v1") => Ok(()),
        Some(other) => Err(DownwardError::Version(other.to_owned())),
    }
}

fn metadata_field(path: &str, pod: &Pod) -> Result<String, DownwardError> {
    let meta = &pod.metadata;
    if let Some((map, key)) = path.strip_suffix("']").and_then(|p| p.split_once("['")) {
        let (values, lowered) = match map {
            "metadata.labels" => (&meta.labels, key.to_owned()),
            "metadata.annotations" => (&meta.annotations, key.to_lowercase()),
            _ => return Err(DownwardError::Subscript(path.to_owned())),
        };
        if !is_qualified_name(&lowered) {
            return Err(DownwardError::Key(path.to_owned()));
        }
        return Ok(values.as_ref().and_then(|m| m.get(key)).cloned().unwrap_or_default());
    }
    Ok(match path {
        "metadata.name" => meta.name.clone().unwrap_or_default(),
        "metadata.namespace" => meta.namespace.clone().unwrap_or_default(),
        "metadata.uid" => meta.uid.clone().unwrap_or_default(),
        "metadata.labels" => lines(meta.labels.as_ref()),
        "metadata.annotations" => lines(meta.annotations.as_ref()),
        other => return Err(DownwardError::Field(other.to_owned())),
    })
}

/// One `key="value"` a line, sorted by key, the value quoted as Go quotes strings.
fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<_> =
        map.into_iter().flatten().map(|(key, value)| format!("{key}={}", quote(value))).collect();
    lines.join("\n")
}

fn quote(value: &str) -> String {
    let mut out = String::from("\"");
    for c in value.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            ' '..='~' => out.push(c),
            '\0'..='\u{7f}' => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if is_printable(c) => out.push(c),
            c if u32::from(c) < 0x1_0000 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    out.push('"');
    out
}

/// Behind a letter, `escape_debug` escapes exactly what cannot be shown; at the start it would also escape marks.
fn is_printable(c: char) -> bool {
    let text: String = ['a', c].into_iter().collect();
    text.escape_debug().count() == 2
}

/// `[prefix/]name`: a DNS subdomain, and 63 letters, digits, `-`, `_` or `.` that begin and end with a letter or digit.
fn is_qualified_name(text: &str) -> bool {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    let edge = |s: &str| {
        s.starts_with(|c: char| c.is_ascii_alphanumeric()) && s.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    let name_ok = name.len() <= 63
        && edge(name)
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    let prefix_ok = prefix.is_none_or(|p| {
        p.len() <= 253
            && p.split('.').all(|label| {
                edge(label) && label.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
            })
    });
    name_ok && prefix_ok
}

fn pod_ips<'a>(spec: Option<&PodSpec>, addresses: Addresses<'a>) -> &'a [IpAddr] {
    let host_network = spec.and_then(|s| s.host_network).unwrap_or(false);
    if host_network && addresses.pod_ips.is_empty() { addresses.host_ips } else { addresses.pod_ips }
}

fn first(ips: &[IpAddr]) -> Option<String> {
    ips.first().map(IpAddr::to_string)
}

fn list(ips: &[IpAddr]) -> String {
    ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": "web-0", "namespace": "shop", "uid": "u-1",
                "labels": {"app": "web", "Tier": "front"},
                "annotations": {"example.com/Note": "say \"hi\"\n\u{1}é\u{a0}", "b": "2"},
            },
            "spec": {
                "nodeName": "n1", "serviceAccountName": "sa",
                "containers": [
                    {"name": "a", "resources": {"requests": {"cpu": "250m", "memory": "64Mi"}, "limits": {"memory": "100M"}}},
                    {"name": "b", "resources": {"limits": {"hugepages-2Mi": "4Mi"}}},
                ],
            },
        }))
        .unwrap()
    }

    fn field(path: &str) -> ObjectFieldSelector {
        ObjectFieldSelector { api_version: Some("v1".into()), field_path: path.into() }
    }

    #[test]
    fn fields_read_as_the_kubelet_reads_them() {
        let (pod_ips, host_ips) =
            (["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()], ["192.0.2.1".parse().unwrap()]);
        let addresses = Addresses { pod_ips: &pod_ips, host_ips: &host_ips };
        for (path, want) in [
            ("metadata.name", Ok("web-0")),
            ("metadata.namespace", Ok("shop")),
            ("metadata.uid", Ok("u-1")),
            ("metadata.labels['app']", Ok("web")),
            ("metadata.labels['absent']", Ok("")),
            ("metadata.annotations['example.com/Note']", Ok("say \"hi\"\n\u{1}é\u{a0}")),
            ("metadata.labels", Ok("Tier=\"front\"\napp=\"web\"")),
            ("metadata.annotations", Ok("b=\"2\"\nexample.com/Note=\"say \\\"hi\\\"\\n\\x01é\\u00a0\"")),
            ("spec.nodeName", Ok("n1")),
            ("spec.serviceAccountName", Ok("sa")),
            ("status.hostIP", Ok("192.0.2.1")),
            ("status.hostIPs", Ok("192.0.2.1")),
            ("status.podIP", Ok("10.0.0.7")),
            ("status.podIPs", Ok("10.0.0.7,fd00::7")),
            ("metadata.labels['a b']", Err("invalid key subscript in metadata.labels['a b']")),
            ("spec.nodeName['x']", Err("does not support subscript")),
            ("spec.containers", Err("field label not supported: spec.containers")),
        ] {
            match (env_field(&field(path), &pod(), addresses), want) {
                (Ok(got), Ok(want)) => assert_eq!(got, want, "{path}"),
                (Err(got), Err(want)) => assert!(got.to_string().contains(want), "{path}: {got}"),
                (got, want) => panic!("{path}: got {got:?}, want {want:?}"),
            }
        }
        assert!(file_field(&field("status.podIP"), &pod()).is_err(), "an address is no file");
        let old = ObjectFieldSelector { api_version: Some("v2".into()), field_path: "metadata.name".into() };
        assert!(env_field(&old, &pod(), addresses).unwrap_err().to_string().contains("v2"));
    }

    #[test]
    fn resources_are_divided_and_rounded_up() {
        let allocatable: BTreeMap<String, Quantity> =
            [("cpu", "4"), ("memory", "8Gi"), ("ephemeral-storage", "10G")]
                .map(|(k, v)| (k.into(), Quantity(v.into())))
                .into();
        for (what, container, resource, divisor, want) in [
            ("cpu rounds up to whole cpus", "a", "requests.cpu", "", Ok("1")),
            ("cpu by 1m is exact", "a", "requests.cpu", "1m", Ok("250")),
            ("memory in Mi", "a", "requests.memory", "1Mi", Ok("64")),
            ("a limit rounds up", "a", "limits.memory", "1Mi", Ok("96")),
            ("an unset cpu limit is the node's", "a", "limits.cpu", "1", Ok("4")),
            ("an unset storage limit is the node's", "b", "limits.ephemeral-storage", "1", Ok("10000000000")),
            ("an unset request is zero", "b", "requests.cpu", "1", Ok("0")),
            ("huge pages", "b", "limits.hugepages-2Mi", "1Mi", Ok("4")),
            ("unknown resource", "a", "limits.gpu", "1", Err("unsupported container resource : limits.gpu")),
            ("unknown container", "z", "limits.cpu", "1", Err("container z not found")),
            ("bad divisor", "a", "limits.cpu", "1Q", Err("1Q")),
        ] {
            let selector = ResourceFieldSelector {
                container_name: Some(container.into()),
                divisor: (!divisor.is_empty()).then(|| Quantity(divisor.into())),
                resource: resource.into(),
            };
            match (resource_field(&selector, &pod(), None, &allocatable), want) {
                (Ok(got), Ok(want)) => assert_eq!(got, want, "{what}"),
                (Err(got), Err(want)) => assert!(got.to_string().contains(want), "{what}: {got}"),
                (got, want) => panic!("{what}: got {got:?}, want {want:?}"),
            }
        }
    }
}
