//! What the apiserver fills into a Pod on its way in. A manifest on this machine never passes an apiserver, so the same
//! values are filled in here; everything after this point may rely on them, whichever way a pod came.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, DownwardAPIVolumeFile, EmptyDirVolumeSource, EnvVar, EphemeralContainer,
    HTTPGetAction, Lifecycle, ObjectFieldSelector, Pod, PodSecurityContext, PodSpec, Probe,
    ResourceRequirements, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

const TERMINATION_MESSAGE_PATH: &str = "/dev/termination-log";
const TERMINATION_MESSAGE_POLICY: &str = "File";
const DEFAULT_FILE_MODE: i32 = 0o644;
const TOKEN_LIFETIME_SECONDS: i64 = 3600;

/// Fills in every field that the apiserver would default. Running it twice changes nothing.
pub fn apply(pod: &mut Pod) {
    if let Some(spec) = &mut pod.spec {
        apply_to_spec(spec);
    }
}

fn apply_to_spec(spec: &mut PodSpec) {
    text(&mut spec.dns_policy, "ClusterFirst");
    text(&mut spec.restart_policy, "Always");
    text(&mut spec.scheduler_name, "default-scheduler");
    spec.security_context.get_or_insert_with(PodSecurityContext::default);
    spec.termination_grace_period_seconds.get_or_insert(30);
    spec.enable_service_links.get_or_insert(true);

    let host_network = spec.host_network == Some(true);
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        apply_to_container(container);
        if host_network {
            publish_on_host(container.ports.iter_mut().flatten());
        }
    }
    for container in spec.ephemeral_containers.iter_mut().flatten() {
        apply_to_ephemeral(container);
    }
    for volume in spec.volumes.iter_mut().flatten() {
        apply_to_volume(volume);
    }
    if let Some(resources) = &mut spec.resources {
        requests_from_pod_limits(
            resources,
            &spec.containers,
            spec.init_containers.as_deref().unwrap_or_default(),
        );
    }
}

fn apply_to_container(container: &mut Container) {
    let policy = pull_policy(container.image.as_deref().unwrap_or_default());
    text(&mut container.image_pull_policy, policy);
    text(&mut container.termination_message_path, TERMINATION_MESSAGE_PATH);
    text(&mut container.termination_message_policy, TERMINATION_MESSAGE_POLICY);
    apply_to_ports(container.ports.iter_mut().flatten());
    apply_to_env(container.env.iter_mut().flatten());
    let probes =
        [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe];
    for probe in probes.into_iter().flatten() {
        apply_to_probe(probe);
    }
    container.lifecycle.iter_mut().for_each(apply_to_lifecycle);
    requests_from_limits(container.resources.get_or_insert_with(Default::default));
}

/// An ephemeral container has no resources of its own, and probes and ports in it are refused elsewhere.
fn apply_to_ephemeral(container: &mut EphemeralContainer) {
    let policy = pull_policy(container.image.as_deref().unwrap_or_default());
    text(&mut container.image_pull_policy, policy);
    text(&mut container.termination_message_path, TERMINATION_MESSAGE_PATH);
    text(&mut container.termination_message_policy, TERMINATION_MESSAGE_POLICY);
    apply_to_env(container.env.iter_mut().flatten());
}

/// `Always` when the image names the tag `latest`, or neither tag nor digest; `IfNotPresent` for anything that is
/// meant to stay the same.
pub fn pull_policy(image: &str) -> &'static str {
    let (name, digest) = match image.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (image, None),
    };
    // A colon before the last slash belongs to a registry's port.
    let last = name.rsplit('/').next().unwrap_or(name);
    let tag = last.split_once(':').map(|(_, tag)| tag);
    match (tag, digest) {
        (Some("latest"), _) | (None, None) => "Always",
        _ => "IfNotPresent",
    }
}

fn apply_to_ports<'a>(ports: impl Iterator<Item = &'a mut ContainerPort>) {
    for port in ports {
        text(&mut port.protocol, "TCP");
    }
}

/// A container on the host's network listens on the host, so its port is a host port whether it says so or not.
fn publish_on_host<'a>(ports: impl Iterator<Item = &'a mut ContainerPort>) {
    for port in ports {
        if port.host_port.unwrap_or(0) == 0 {
            port.host_port = Some(port.container_port);
        }
    }
}

fn apply_to_env<'a>(env: impl Iterator<Item = &'a mut EnvVar>) {
    for source in env.filter_map(|var| var.value_from.as_mut()) {
        source.field_ref.iter_mut().for_each(apply_to_field_ref);
    }
}

fn apply_to_field_ref(field: &mut ObjectFieldSelector) {
    text(&mut field.api_version, "v1");
}

fn apply_to_probe(probe: &mut Probe) {
    number(&mut probe.timeout_seconds, 1);
    number(&mut probe.period_seconds, 10);
    number(&mut probe.success_threshold, 1);
    number(&mut probe.failure_threshold, 3);
    probe.http_get.iter_mut().for_each(apply_to_http_get);
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_with(String::new);
    }
}

fn apply_to_http_get(action: &mut HTTPGetAction) {
    text(&mut action.path, "/");
    text(&mut action.scheme, "HTTP");
}

fn apply_to_lifecycle(lifecycle: &mut Lifecycle) {
    for handler in [&mut lifecycle.post_start, &mut lifecycle.pre_stop].into_iter().flatten() {
        handler.http_get.iter_mut().for_each(apply_to_http_get);
    }
}

fn requests_from_limits(resources: &mut ResourceRequirements) {
    if let Some(limits) = &resources.limits {
        let requests = resources.requests.get_or_insert_with(BTreeMap::new);
        for (name, limit) in limits {
            requests.entry(name.clone()).or_insert_with(|| limit.clone());
        }
    }
}

/// A pod-level limit becomes the pod-level request of a resource that no container requests. Where containers do
/// request it, their sum is what counts, and `resources` computes that from the containers when it is needed.
fn requests_from_pod_limits(resources: &mut ResourceRequirements, main: &[Container], init: &[Container]) {
    let requested = |name: &str| {
        let of = |c: &Container| {
            c.resources.as_ref().and_then(|r| r.requests.as_ref()).is_some_and(|r| r.contains_key(name))
        };
        main.iter().chain(init).any(of)
    };
    let missing: Vec<(String, Quantity)> = resources
        .limits
        .iter()
        .flatten()
        .filter(|(name, _)| is_pod_level(name) && !requested(name))
        .map(|(name, limit)| (name.clone(), limit.clone()))
        .collect();
    if !missing.is_empty() {
        let requests = resources.requests.get_or_insert_with(BTreeMap::new);
        for (name, limit) in missing {
            requests.entry(name).or_insert(limit);
        }
    }
}

fn is_pod_level(resource: &str) -> bool {
    resource == "cpu" || resource == "memory" || resource.starts_with("hugepages-")
}

fn apply_to_volume(volume: &mut Volume) {
    if has_no_source(volume) {
        volume.empty_dir = Some(EmptyDirVolumeSource::default());
    }
    if let Some(secret) = &mut volume.secret {
        secret.default_mode.get_or_insert(DEFAULT_FILE_MODE);
    }
    if let Some(config_map) = &mut volume.config_map {
        config_map.default_mode.get_or_insert(DEFAULT_FILE_MODE);
    }
    if let Some(downward) = &mut volume.downward_api {
        downward.default_mode.get_or_insert(DEFAULT_FILE_MODE);
        apply_to_downward_items(downward.items.iter_mut().flatten());
    }
    if let Some(host_path) = &mut volume.host_path {
        host_path.type_.get_or_insert_with(String::new);
    }
    if let Some(image) = &mut volume.image {
        let policy = pull_policy(image.reference.as_deref().unwrap_or_default());
        text(&mut image.pull_policy, policy);
    }
    if let Some(projected) = &mut volume.projected {
        projected.default_mode.get_or_insert(DEFAULT_FILE_MODE);
        for source in projected.sources.iter_mut().flatten() {
            if let Some(token) = &mut source.service_account_token {
                token.expiration_seconds.get_or_insert(TOKEN_LIFETIME_SECONDS);
            }
            if let Some(downward) = &mut source.downward_api {
                apply_to_downward_items(downward.items.iter_mut().flatten());
            }
        }
    }
}

fn apply_to_downward_items<'a>(items: impl Iterator<Item = &'a mut DownwardAPIVolumeFile>) {
    for item in items {
        item.field_ref.iter_mut().for_each(apply_to_field_ref);
    }
}

/// True when nothing but the name is set.
fn has_no_source(volume: &Volume) -> bool {
    *volume == Volume { name: volume.name.clone(), ..Volume::default() }
}

/// The API makes no difference between an absent and an empty string.
fn text(field: &mut Option<String>, default: &str) {
    if field.as_deref().unwrap_or_default().is_empty() {
        *field = Some(default.to_owned());
    }
}

/// Nor between an absent number and zero, where zero has no meaning.
fn number(field: &mut Option<i32>, default: i32) {
    if field.unwrap_or(0) == 0 {
        *field = Some(default);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaulted(json: &str) -> Pod {
        let mut pod: Pod = serde_json::from_str(json).expect("the test's pod");
        apply(&mut pod);
        pod
    }

    #[test]
    fn a_minimal_pod_gets_what_the_apiserver_would_give_it() {
        let pod = defaulted(
            r#"{"spec":{"containers":[{"name":"a","image":"busybox:1.36"}],"volumes":[{"name":"v"}]}}"#,
        );
        let expected: Pod = serde_json::from_str(
            r#"{"spec":{
                "dnsPolicy":"ClusterFirst","restartPolicy":"Always","schedulerName":"default-scheduler","securityContext":{},
                "terminationGracePeriodSeconds":30,"enableServiceLinks":true,
                "containers":[{"name":"a","image":"busybox:1.36","imagePullPolicy":"IfNotPresent","resources":{},
                    "terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File"}],
                "volumes":[{"name":"v","emptyDir":{}}]}}"#,
        )
        .expect("the expected pod");
        assert_eq!(pod, expected);
    }

    #[test]
    fn what_is_set_stays_and_a_second_run_changes_nothing() {
        let json = r#"{"spec":{"restartPolicy":"Never","terminationGracePeriodSeconds":0,"enableServiceLinks":false,
            "containers":[{"name":"a","image":"x:latest","imagePullPolicy":"Never","terminationMessagePath":"/x",
                "livenessProbe":{"periodSeconds":2,"httpGet":{"port":80,"path":"/h"}}}],
            "volumes":[{"name":"c","configMap":{"name":"m","defaultMode":256}}]}}"#;
        let once = defaulted(json);
        let spec = once.spec.as_ref().expect("spec");
        assert_eq!(spec.restart_policy.as_deref(), Some("Never"));
        assert_eq!(spec.termination_grace_period_seconds, Some(0));
        assert_eq!(spec.enable_service_links, Some(false));
        assert_eq!(spec.containers[0].image_pull_policy.as_deref(), Some("Never"));
        let probe = spec.containers[0].liveness_probe.as_ref().expect("probe");
        assert_eq!(
            (probe.period_seconds, probe.timeout_seconds, probe.failure_threshold),
            (Some(2), Some(1), Some(3))
        );
        assert_eq!(probe.http_get.as_ref().and_then(|h| h.path.as_deref()), Some("/h"));
        assert_eq!(probe.http_get.as_ref().and_then(|h| h.scheme.as_deref()), Some("HTTP"));
        assert_eq!(
            spec.volumes.as_ref().expect("v")[0].config_map.as_ref().expect("cm").default_mode,
            Some(256)
        );
        let mut twice = once.clone();
        apply(&mut twice);
        assert_eq!(once, twice);
    }

    #[test]
    fn the_pull_policy_follows_tag_and_digest() {
        let cases = [
            ("busybox", "Always"),
            ("busybox:latest", "Always"),
            ("registry:5000/busybox", "Always"),
            ("registry:5000/a/busybox:1.0", "IfNotPresent"),
            ("busybox@sha256:00", "IfNotPresent"),
            ("busybox:latest@sha256:00", "Always"),
            ("busybox:1@sha256:00", "IfNotPresent"),
        ];
        for (image, policy) in cases {
            assert_eq!(pull_policy(image), policy, "{image}");
        }
    }

    #[test]
    fn requests_come_from_limits_and_host_ports_from_container_ports() {
        let pod = defaulted(
            r#"{"spec":{"hostNetwork":true,
                "initContainers":[{"name":"i","image":"x","restartPolicy":"Always","resources":{"limits":{"cpu":"1"}}}],
                "containers":[{"name":"a","image":"x","ports":[{"containerPort":80},{"containerPort":81,"hostPort":8}],
                    "resources":{"limits":{"cpu":"2","memory":"1Gi"},"requests":{"cpu":"1"}}}]}}"#,
        );
        let spec = pod.spec.expect("spec");
        let resources = spec.containers[0].resources.clone().expect("resources");
        let requests = resources.requests.expect("requests");
        assert_eq!((requests["cpu"].0.as_str(), requests["memory"].0.as_str()), ("1", "1Gi"));
        let init = &spec.init_containers.expect("init")[0];
        assert!(
            init.resources.as_ref().is_some_and(|r| r.requests.as_ref().is_some_and(|r| r["cpu"].0 == "1"))
        );
        let ports = spec.containers[0].ports.clone().expect("ports");
        assert_eq!((ports[0].host_port, ports[1].host_port), (Some(80), Some(8)));
        assert_eq!(ports[0].protocol.as_deref(), Some("TCP"));
    }

    #[test]
    fn volumes_and_field_references_are_defaulted() {
        let pod = defaulted(
            r#"{"spec":{"containers":[{"name":"a","image":"x","env":[{"name":"E","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}]}],
            "volumes":[{"name":"h","hostPath":{"path":"/x"}},{"name":"s","secret":{"secretName":"s"}},
              {"name":"p","projected":{"sources":[{"serviceAccountToken":{"path":"token"}},
                 {"downwardAPI":{"items":[{"path":"n","fieldRef":{"fieldPath":"metadata.name"}}]}}]}}]}}"#,
        );
        let spec = serde_json::to_value(pod.spec.expect("spec")).expect("json");
        let at = |path: &str| spec.pointer(path).cloned().unwrap_or_default();
        assert_eq!(at("/containers/0/env/0/valueFrom/fieldRef/apiVersion"), "v1");
        assert_eq!(at("/volumes/0/hostPath/type"), "");
        assert_eq!(at("/volumes/1/secret/defaultMode"), 0o644);
        assert_eq!(at("/volumes/2/projected/defaultMode"), 0o644);
        assert_eq!(at("/volumes/2/projected/sources/0/serviceAccountToken/expirationSeconds"), 3600);
        assert_eq!(at("/volumes/2/projected/sources/1/downwardAPI/items/0/fieldRef/apiVersion"), "v1");
    }
}
