//! From pods to requests to the runtime.

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use keelson_core::ids::{ContainerId, PodUid};
use keelson_core::resources::LinuxResources;
use keelson_core::user_namespaces::UserNamespace;
use keelson_proto::runtime::v1::security_profile::ProfileType;
use keelson_proto::runtime::v1::{
    ContainerConfig, Image, Int64Value, LinuxContainerSecurityContext, LinuxSandboxSecurityContext,
    NamespaceMode, PodSandboxConfig, Protocol, Signal, SupplementalGroupsPolicy,
};
use serde_json::{Value, json};

use super::*;

fn pod(metadata: Value, spec: Value) -> Pod {
    let mut base = json!({"name": "web", "namespace": "shop"});
    merge(&mut base, metadata);
    let mut full = json!({"containers": [{"name": "main", "image": "page:1"}]});
    merge(&mut full, spec);
    serde_json::from_value(json!({"metadata": base, "spec": full})).unwrap()
}

fn merge(into: &mut Value, from: Value) {
    for (key, value) in from.as_object().unwrap() {
        into[key] = value.clone();
    }
}

fn uid() -> PodUid {
    PodUid::try_from("u-1").unwrap()
}

fn sandbox(pod: &Pod, user_namespace: Option<UserNamespace>) -> Result<PodSandboxConfig, ConvertError> {
    sandbox_config(&SandboxInput {
        pod,
        uid: &uid(),
        attempt: 2,
        hostname: "web",
        dns: None,
        cgroup_parent: "/kubepods/podu-1",
        log_directory: "/var/log/pods/shop_web_u-1",
        extra_groups: &[700],
        resources: Some(&LinuxResources { cpu_shares: 512, ..Default::default() }),
        overhead: None,
        user_namespace,
    })
}

#[derive(Default)]
struct Extra {
    image_user: Option<ImageUser>,
    user_namespace: Option<UserNamespace>,
    target: Option<ContainerId>,
    seccomp_default: bool,
}

fn container(pod: &Pod, extra: Extra) -> Result<ContainerConfig, ConvertError> {
    container_config(&ContainerInput {
        pod,
        container: &pod.spec.as_ref().unwrap().containers[0],
        uid: &uid(),
        attempt: 3,
        image_ref: "sha256:1",
        image_user: extra.image_user.unwrap_or(ImageUser::Uid(0)),
        command: vec!["/serve".into()],
        args: vec!["-v".into()],
        envs: vec![("A".into(), "1".into())],
        mounts: vec![
            Mount { container_path: "/data".into(), host_path: "/host".into(), ..Default::default() },
            Mount {
                container_path: "/tools".into(),
                image: Some(MountedImage {
                    id: "sha256:2".into(),
                    reference: "r.io/tools:1".into(),
                    runtime_handler: "runc".into(),
                    sub_path: Some("bin".into()),
                }),
                readonly: true,
                ..Default::default()
            },
        ],
        devices: vec![],
        cdi_devices: vec![],
        log_path: "main/3.log",
        resources: &LinuxResources {
            oom_score_adj: 1000,
            hugepage_limits: vec![("2MB".into(), 4)],
            memory_swap_limit_bytes: 64,
            unified: [("memory.oom.group".into(), "1".into())].into(),
            ..Default::default()
        },
        hash: "1f2e",
        extra_groups: &[700],
        extra_masked_paths: &["/sys/devices/system/cpu/cpu0/thermal_throttle".into()],
        user_namespace: extra.user_namespace,
        target: extra.target.as_ref(),
        seccomp_root: Path::new("/var/lib/kubelet/seccomp"),
        seccomp_default: extra.seccomp_default,
    })
}

fn security(spec: Value) -> LinuxContainerSecurityContext {
    container(&pod(json!({}), spec), Extra::default()).unwrap().linux.unwrap().security_context.unwrap()
}

fn sandbox_security(spec: Value) -> LinuxSandboxSecurityContext {
    sandbox(&pod(json!({}), spec), None).unwrap().linux.unwrap().security_context.unwrap()
}

/// The first container's own security context.
fn own(context: Value) -> Value {
    json!({"containers": [{"name": "main", "image": "page:1", "securityContext": context}]})
}

#[test]
fn a_sandbox_carries_the_pods_labels_and_annotations_and_its_identity_wins() {
    let metadata = json!({
        "labels": {"app": "web", "io.kubernetes.pod.uid": "forged"},
        "annotations": {"note": "x"},
        "uid": "uid-of-the-mirror",
    });
    let config = sandbox(&pod(metadata, json!({})), None).unwrap();
    let expected = [
        ("app", "web"),
        ("io.kubernetes.pod.name", "web"),
        ("io.kubernetes.pod.namespace", "shop"),
        ("io.kubernetes.pod.uid", "u-1"),
    ];
    let expected: BTreeMap<String, String> = expected.map(|(k, v)| (k.into(), v.into())).into();
    assert_eq!(config.labels, expected);
    assert_eq!(config.annotations, BTreeMap::from([("note".to_owned(), "x".to_owned())]));
    let metadata = config.metadata.unwrap();
    assert_eq!((metadata.name.as_str(), metadata.namespace.as_str()), ("web", "shop"));
    assert_eq!((metadata.uid.as_str(), metadata.attempt), ("u-1", 2));
    assert_eq!(config.linux.unwrap().resources.unwrap().cpu_shares, 512);
}

#[test]
fn a_container_carries_what_is_needed_to_stop_it_when_its_pod_is_gone() {
    let pod = pod(
        json!({"labels": {"app": "web"}, "deletionGracePeriodSeconds": 5}),
        json!({
            "terminationGracePeriodSeconds": 30,
            "containers": [{
                "name": "main", "image": "page:1",
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                "ports": [{"containerPort": 80}],
                "lifecycle": {"preStop": {"exec": {"command": ["sync"]}}, "stopSignal": "SIGUSR1"},
            }],
        }),
    );
    let config = container(&pod, Extra::default()).unwrap();
    let expected = [
        ("io.kubernetes.container.hash", "1f2e"),
        ("io.kubernetes.container.ports", r#"[{"containerPort":80}]"#),
        ("io.kubernetes.container.preStopHandler", r#"{"exec":{"command":["sync"]}}"#),
        ("io.kubernetes.container.restartCount", "3"),
        ("io.kubernetes.container.terminationMessagePath", "/dev/termination-log"),
        ("io.kubernetes.container.terminationMessagePolicy", "File"),
        ("io.kubernetes.pod.deletionGracePeriod", "5"),
        ("io.kubernetes.pod.terminationGracePeriod", "30"),
    ];
    let expected: BTreeMap<String, String> = expected.map(|(k, v)| (k.into(), v.into())).into();
    assert_eq!(config.annotations, expected);
    assert_eq!(config.labels.get("io.kubernetes.container.name").unwrap(), "main");
    assert_eq!(config.labels.len(), 4, "the pod's own labels are the sandbox's");
    assert_eq!(config.stop_signal(), Signal::Sigusr1);
    let image = config.image.unwrap();
    assert_eq!((image.image.as_str(), image.user_specified_image.as_str()), ("sha256:1", "page:1"));
    let resources = config.linux.unwrap().resources.unwrap();
    assert_eq!((resources.oom_score_adj, resources.hugepage_limits[0].limit), (1000, 4));
    assert_eq!(resources.memory_swap_limit_in_bytes, 64);
    assert_eq!(resources.unified["memory.oom.group"], "1");
    assert_eq!(config.envs[0].value, b"1");
    assert_eq!((config.log_path.as_str(), config.metadata.unwrap().attempt), ("main/3.log", 3));
}

#[test]
fn only_host_ports_are_mapped_once_each_and_sidecars_count() {
    let spec = json!({
        "containers": [{"name": "main", "ports": [
            {"containerPort": 80},
            {"containerPort": 53, "hostPort": 53, "protocol": "UDP", "hostIP": "127.0.0.1"},
            {"containerPort": 53, "hostPort": 53, "protocol": "UDP", "hostIP": "127.0.0.1"},
        ]}],
        "initContainers": [
            {"name": "init", "ports": [{"containerPort": 1, "hostPort": 1}]},
            {"name": "sidecar", "restartPolicy": "Always", "ports": [{"containerPort": 8080, "hostPort": 80}]},
        ],
    });
    let mappings = sandbox(&pod(json!({}), spec), None).unwrap().port_mappings;
    let seen: Vec<_> = mappings.iter().map(|m| (m.protocol(), m.host_port, m.container_port)).collect();
    assert_eq!(seen, [(Protocol::Udp, 53, 53), (Protocol::Tcp, 80, 8080)]);
    assert_eq!(mappings[0].host_ip, "127.0.0.1");
}

#[test]
fn namespaces_follow_the_pod() {
    use NamespaceMode::{Container as Own, Node, Pod};
    let cases = [
        ("by default processes are the container's own", json!({}), (Pod, Own, Pod)),
        ("host network", json!({"hostNetwork": true}), (Node, Own, Pod)),
        ("host processes", json!({"hostPID": true}), (Pod, Node, Pod)),
        ("host ipc", json!({"hostIPC": true}), (Pod, Own, Node)),
        ("shared processes", json!({"shareProcessNamespace": true}), (Pod, Pod, Pod)),
    ];
    for (name, spec, expected) in cases {
        for options in [
            security(spec.clone()).namespace_options.unwrap(),
            sandbox_security(spec).namespace_options.unwrap(),
        ] {
            assert_eq!((options.network(), options.pid(), options.ipc()), expected, "{name}");
            assert_eq!(options.userns_options.unwrap().mode(), Node, "{name}");
        }
    }
    let hosts = sandbox(&pod(json!({}), json!({"hostNetwork": true})), None).unwrap();
    assert_eq!(hosts.hostname, "");
    assert_eq!(sandbox(&pod(json!({}), json!({})), None).unwrap().hostname, "web");
}

#[test]
fn a_debugging_container_sees_its_targets_processes_unless_all_are_shared() {
    let target = || Some(ContainerId::try_from("t-1").unwrap());
    let options = |spec| {
        let config =
            container(&pod(json!({}), spec), Extra { target: target(), ..Default::default() }).unwrap();
        config.linux.unwrap().security_context.unwrap().namespace_options.unwrap()
    };
    let own = options(json!({}));
    assert_eq!((own.pid(), own.target_id.as_str()), (NamespaceMode::Target, "t-1"));
    let shared = options(json!({"shareProcessNamespace": true}));
    assert_eq!((shared.pid(), shared.target_id.as_str()), (NamespaceMode::Pod, ""));
}

#[test]
fn an_image_is_mounted_by_its_id_and_with_the_name_that_the_pod_has_for_it() {
    let pod = pod(json!({"annotations": {"for": "the runtime"}}), json!({}));
    let config = container(&pod, Extra::default()).unwrap();
    let [plain, of_image] = config.mounts.as_slice() else { panic!("{:?}", config.mounts) };
    assert_eq!((plain.image.as_ref(), plain.image_sub_path.as_str()), (None, ""));
    let image = of_image.image.as_ref().unwrap();
    assert_eq!(
        (image.image.as_str(), image.user_specified_image.as_str(), image.runtime_handler.as_str()),
        ("sha256:2", "r.io/tools:1", "runc")
    );
    assert_eq!(image.annotations["for"], "the runtime");
    assert_eq!((of_image.host_path.as_str(), of_image.image_sub_path.as_str()), ("", "bin"));
    assert!(of_image.readonly);
}

#[test]
fn a_user_namespace_maps_processes_and_mounts_alike_and_must_have_been_assigned() {
    let pod = pod(json!({}), json!({"hostUsers": false}));
    let assigned = Some(UserNamespace { first_host_id: 65536, length: 65536 });
    let config = container(&pod, Extra { user_namespace: assigned, ..Default::default() }).unwrap();
    let users =
        config.linux.unwrap().security_context.unwrap().namespace_options.unwrap().userns_options.unwrap();
    assert_eq!(users.mode(), NamespaceMode::Pod);
    assert_eq!((users.uids[0].host_id, users.gids[0].length), (65536, 65536));
    assert_eq!(config.mounts[0].uid_mappings, users.uids);
    assert_eq!(config.mounts[0].gid_mappings, users.gids);
    assert_eq!(config.mounts[1].uid_mappings, users.uids, "the runtime maps an image by them");
    assert!(sandbox(&pod, assigned).is_ok());
    assert_eq!(sandbox(&pod, None), Err(ConvertError::NoUserNamespace));
    assert_eq!(container(&pod, Extra::default()), Err(ConvertError::NoUserNamespace));
}

#[test]
fn who_a_container_runs_as_is_its_own_wish_then_the_pods_then_the_images() {
    let pods = json!({"securityContext": {"runAsUser": 10, "runAsGroup": 20}});
    let mut both = own(json!({"runAsUser": 11}));
    merge(&mut both, pods.clone());
    let cases = [
        ("own", both, ImageUser::Uid(5), (Some(11), "", Some(20))),
        ("pod's", pods, ImageUser::Name("web".into()), (Some(10), "", Some(20))),
        ("image's number", json!({}), ImageUser::Uid(5), (Some(5), "", None)),
        ("image's name", json!({}), ImageUser::Name("web".into()), (None, "web", None)),
    ];
    for (name, spec, image_user, (user, username, group)) in cases {
        let extra = Extra { image_user: Some(image_user), ..Default::default() };
        let seen = container(&pod(json!({}), spec), extra).unwrap().linux.unwrap().security_context.unwrap();
        assert_eq!(seen.run_as_user.map(|u| u.value), user, "{name}");
        assert_eq!(seen.run_as_username, username, "{name}");
        assert_eq!(seen.run_as_group.map(|g| g.value), group, "{name}");
    }
    let image = |uid: Option<i64>, username: &str| Image {
        uid: uid.map(|value| Int64Value { value }),
        username: username.into(),
        ..Default::default()
    };
    assert_eq!(ImageUser::of(&image(None, "")), ImageUser::Uid(0));
    assert_eq!(ImageUser::of(&image(Some(7), "")), ImageUser::Uid(7));
    assert_eq!(ImageUser::of(&image(None, "web")), ImageUser::Name("web".into()));
}

#[test]
fn groups_are_the_volumes_the_pods_and_those_that_volumes_bring() {
    let spec = json!({"securityContext": {
        "fsGroup": 1, "supplementalGroups": [2, 3], "supplementalGroupsPolicy": "Strict", "runAsGroup": 9,
    }});
    let (inner, outer) = (security(spec.clone()), sandbox_security(spec));
    assert_eq!(
        (&inner.supplemental_groups, &outer.supplemental_groups),
        (&vec![1, 2, 3, 700], &vec![1, 2, 3, 700])
    );
    assert_eq!(inner.supplemental_groups_policy(), SupplementalGroupsPolicy::Strict);
    assert_eq!(outer.supplemental_groups_policy(), SupplementalGroupsPolicy::Strict);
    assert_eq!(outer.run_as_group, None, "a group without a user is refused by the runtime");
    let bad = pod(json!({}), json!({"securityContext": {"supplementalGroupsPolicy": "Loose"}}));
    assert!(matches!(sandbox(&bad, None), Err(ConvertError::UnknownValue { .. })));
}

#[test]
fn the_rest_of_a_security_context_is_passed_on() {
    let mut spec = own(json!({
        "privileged": true, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
        "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}, "seLinuxOptions": {"level": "s0:c1"},
    }));
    merge(
        &mut spec,
        json!({"securityContext": {
            "seLinuxOptions": {"type": "pods"}, "sysctls": [
                {"name": "net.core.somaxconn", "value": "9"}, {"name": "net/ipv4/conf/eth0.7/rp_filter", "value": "2"}],
        }}),
    );
    let seen = security(spec.clone());
    assert!(seen.privileged && seen.no_new_privs && seen.readonly_rootfs);
    let capabilities = seen.capabilities.unwrap();
    assert_eq!(
        (capabilities.add_capabilities, capabilities.drop_capabilities),
        (vec!["NET_ADMIN".into()], vec!["ALL".into()])
    );
    let selinux = seen.selinux_options.unwrap();
    assert_eq!(
        (selinux.level.as_str(), selinux.r#type.as_str()),
        ("s0:c1", ""),
        "own options replace the pod's"
    );
    let config = sandbox(&pod(json!({}), spec), None).unwrap().linux.unwrap();
    assert_eq!(config.sysctls["net.core.somaxconn"], "9");
    assert_eq!(config.sysctls["net.ipv4.conf.eth0/7.rp_filter"], "2", "runc knows the form with dots only");
    let outer = config.security_context.unwrap();
    assert!(outer.privileged, "one privileged container makes the sandbox so");
    assert_eq!(outer.selinux_options.unwrap().r#type, "pods");
    assert_eq!(outer.seccomp.unwrap().profile_type(), ProfileType::RuntimeDefault);
}

#[test]
fn proc_is_masked_unless_the_container_asks_otherwise() {
    let masked = security(json!({}));
    assert!(masked.masked_paths.iter().any(|path| path == "/proc/kcore"));
    assert!(masked.masked_paths.iter().any(|path| path.ends_with("thermal_throttle")));
    assert!(masked.readonly_paths.iter().any(|path| path == "/proc/sys"));
    let open = security(own(json!({"procMount": "Unmasked"})));
    assert_eq!((open.masked_paths.len(), open.readonly_paths.len()), (0, 0));
}

#[test]
fn seccomp_is_the_containers_then_the_pods_then_the_nodes_default() {
    use ProfileType::{Localhost, RuntimeDefault, Unconfined};
    let pods = |profile: Value| json!({"securityContext": {"seccompProfile": profile}});
    let mut both = own(json!({"seccompProfile": {"type": "Unconfined"}}));
    merge(&mut both, pods(json!({"type": "RuntimeDefault"})));
    let local = json!({"type": "Localhost", "localhostProfile": "team/web.json"});
    let cases = [
        ("nothing asked for", json!({}), false, (Unconfined, "")),
        ("nothing asked for, but defaulted", json!({}), true, (RuntimeDefault, "")),
        ("privileged is not defaulted", own(json!({"privileged": true})), true, (Unconfined, "")),
        ("own before the pod's", both, true, (Unconfined, "")),
        ("the pod's", pods(json!({"type": "RuntimeDefault"})), false, (RuntimeDefault, "")),
        ("a file of the node", pods(local), false, (Localhost, "/var/lib/kubelet/seccomp/team/web.json")),
    ];
    for (name, spec, seccomp_default, expected) in cases {
        let extra = Extra { seccomp_default, ..Default::default() };
        let seen = container(&pod(json!({}), spec), extra).unwrap().linux.unwrap().security_context.unwrap();
        let profile = seen.seccomp.unwrap();
        assert_eq!((profile.profile_type(), profile.localhost_ref.as_str()), expected, "{name}");
    }
    for bad in ["", "../x.json", "/etc/shadow", "a/../../x", "."] {
        let spec = own(json!({"seccompProfile": {"type": "Localhost", "localhostProfile": bad}}));
        let seen = container(&pod(json!({}), spec), Extra::default());
        assert_eq!(seen, Err(ConvertError::SeccompPath(bad.into())), "{bad:?}");
    }
}

#[test]
#[allow(deprecated)]
fn apparmor_is_the_containers_then_the_annotations_then_the_pods() {
    let key = "container.apparmor.security.beta.kubernetes.io/main";
    let pods = json!({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}});
    let mut both = own(json!({"appArmorProfile": {"type": "RuntimeDefault"}}));
    merge(&mut both, pods.clone());
    let cases = [
        ("nothing", "", json!({}), None),
        ("own", "unconfined", both, Some((ProfileType::RuntimeDefault, "", "runtime/default"))),
        ("annotated", "localhost/web", pods.clone(), Some((ProfileType::Localhost, "web", "localhost/web"))),
        ("an annotation that means nothing", "what", pods, Some((ProfileType::Unconfined, "", "unconfined"))),
    ];
    for (name, annotation, spec, expected) in cases {
        let seen = container(&pod(json!({"annotations": {key: annotation}}), spec), Extra::default());
        let seen = seen.unwrap().linux.unwrap().security_context.unwrap();
        let profile = seen.apparmor.as_ref();
        let sent =
            profile.map(|p| (p.profile_type(), p.localhost_ref.as_str(), seen.apparmor_profile.as_str()));
        assert_eq!(sent, expected, "{name}");
    }
    for bad in [json!({"type": "Localhost"}), json!({"type": "Localhost", "localhostProfile": " "})] {
        let spec = own(json!({"appArmorProfile": bad}));
        assert_eq!(container(&pod(json!({}), spec), Extra::default()), Err(ConvertError::AppArmorName));
    }
}

#[test]
fn a_pod_without_any_spec_still_has_a_sandbox() {
    let bare = Pod {
        spec: Some(PodSpec { containers: vec![Container::default()], ..Default::default() }),
        ..Default::default()
    };
    assert!(sandbox(&bare, None).is_ok());
    assert!(sandbox(&Pod::default(), None).is_ok());
}
