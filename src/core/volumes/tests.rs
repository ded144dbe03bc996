use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use serde_json::{Value, json};

use super::*;

fn pod(spec: Value) -> Pod {
    let mut base = json!({"metadata": {"name": "p", "namespace": "ns", "labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}});
    base["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(base).unwrap()
}

/// The files of a volume as `path:mode:content`, beside ConfigMap cm, Secret sec and a token for vault.
fn files(spec: Value, volume: Value) -> Result<String, String> {
    let config_map: ConfigMap =
        serde_json::from_value(json!({"data": {"k": "text"}, "binaryData": {"b": "AP8="}})).unwrap();
    let secret =
        Secret { data: Some([("pw".to_owned(), ByteString(b"s3".to_vec()))].into()), ..Default::default() };
    let mut named = volume;
    named["name"] = json!("v");
    let input = VolumeInput {
        pod: &pod(spec),
        config_maps: &[("cm".to_owned(), Arc::new(config_map))].into(),
        secrets: &[("sec".to_owned(), Arc::new(secret))].into(),
        tokens: &[(("vault".to_owned(), 600), "tok".to_owned())].into(),
        node_allocatable: &BTreeMap::new(),
    };
    let payload = payload(&serde_json::from_value(named).unwrap(), &input).map_err(|e| e.to_string())?;
    let Some(payload) = payload else { return Ok("none".into()) };
    let show = |(path, f): (&String, &PayloadFile)| {
        format!("{path}:{:o}:{}", f.mode, String::from_utf8_lossy(&f.data))
    };
    Ok(payload.files.iter().map(show).collect::<Vec<_>>().join(" "))
}

#[test]
fn volumes_hold_what_their_sources_say() {
    let ok = |s: &str| Ok::<_, String>(s.to_owned());
    let err = |s: &str| Err::<String, _>(format!("MountVolume.SetUp failed for volume \"v\" : {s}"));
    let item = |key: &str, path: &str| json!({"key": key, "path": path});
    for (what, volume, want) in [
        ("another kind", json!({"emptyDir": {}}), ok("none")),
        ("a whole ConfigMap", json!({"configMap": {"name": "cm"}}), ok("b:644:\u{0}\u{fffd} k:644:text")),
        (
            "chosen keys, chosen paths",
            json!({"configMap": {"name": "cm", "items": [item("k", "dir/./x")]}}),
            ok("dir/x:644:text"),
        ),
        (
            "a default mode and an own one",
            json!({"configMap": {"name": "cm", "defaultMode": 0o400, "items": [item("k", "a"), {"key": "b", "path": "b", "mode": 0o755}]}}),
            ok("a:400:text b:755:\u{0}\u{fffd}"),
        ),
        ("a secret", json!({"secret": {"secretName": "sec"}}), ok("pw:644:s3")),
        (
            "an absent optional one is empty",
            json!({"secret": {"secretName": "nope", "optional": true}}),
            ok(""),
        ),
        (
            "an absent optional key is left out",
            json!({"secret": {"secretName": "sec", "optional": true, "items": [item("x", "x"), item("pw", "p")]}}),
            ok("p:644:s3"),
        ),
        (
            "fields of the pod",
            json!({"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}),
            ok("labels:644:a=\"b\""),
        ),
        (
            "several sources",
            json!({"projected": {"sources": [{"secret": {"name": "sec"}}, {"configMap": {"name": "cm", "items": [item("k", "k")]}}, {"serviceAccountToken": {"path": "t", "audience": "vault", "expirationSeconds": 600}}]}}),
            ok("k:644:text pw:644:s3 t:644:tok"),
        ),
        (
            "a later source wins",
            json!({"projected": {"sources": [{"secret": {"name": "sec", "items": [item("pw", "x")]}}, {"configMap": {"name": "cm", "items": [item("k", "x")]}}]}}),
            ok("x:644:text"),
        ),
        ("no ConfigMap", json!({"configMap": {"name": "nope"}}), err("configmap \"nope\" not found")),
        ("no Secret", json!({"secret": {"secretName": "nope"}}), err("secret \"nope\" not found")),
        (
            "no key",
            json!({"configMap": {"name": "cm", "items": [item("x", "x")]}}),
            err("configmap references non-existent config key: x"),
        ),
        (
            "no key in the Secret",
            json!({"secret": {"secretName": "sec", "items": [item("x", "x")]}}),
            err("references non-existent secret key: x"),
        ),
        (
            "no token yet",
            json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}),
            err("no service account token for audience \"\" yet"),
        ),
        (
            "a trust bundle",
            json!({"projected": {"sources": [{"clusterTrustBundle": {"path": "t"}}]}}),
            err("clusterTrustBundle sources are not supported by this agent"),
        ),
        (
            "an address as a file",
            json!({"downwardAPI": {"items": [{"path": "ip", "fieldRef": {"fieldPath": "status.podIP"}}]}}),
            err("field label not supported: status.podIP"),
        ),
        (
            "a file that is also a directory",
            json!({"configMap": {"name": "cm", "items": [item("k", "a"), item("b", "a/b")]}}),
            err("path \"a\" is both a file and a directory of another file"),
        ),
    ] {
        assert_eq!(files(json!({}), volume), want, "{what}");
    }
}

#[test]
fn no_path_leaves_the_volume() {
    for path in ["/etc/passwd", "../x", "a/../../x", "..data", "..2024/x", "", ".", "a/..", "a\u{0}b"] {
        let volume = json!({"configMap": {"name": "cm", "items": [{"key": "k", "path": path}]}});
        assert!(
            files(json!({}), volume).is_err_and(|e| e.contains("must be relative")),
            "{path:?} was accepted"
        );
    }
    let long = "x".repeat(256);
    assert!(
        files(json!({}), json!({"configMap": {"name": "cm", "items": [{"key": "k", "path": long}]}}))
            .is_err()
    );
}

#[test]
fn a_token_is_for_its_reader_only() {
    let token = json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "vault", "expirationSeconds": 600}}]}});
    for (what, spec, want) in [
        (
            "a group may read by the volume's ownership",
            json!({"securityContext": {"fsGroup": 5}}),
            "t:600:tok",
        ),
        ("one user for all containers", json!({"securityContext": {"runAsUser": 7}}), "t:600:tok"),
        (
            "users that differ",
            json!({"securityContext": {"runAsUser": 7}, "initContainers": [{"name": "i", "securityContext": {"runAsUser": 8}}]}),
            "t:644:tok",
        ),
        ("a user that only the image knows", json!({}), "t:644:tok"),
    ] {
        assert_eq!(files(spec, token.clone()).as_deref(), Ok(want), "{what}");
    }
}

#[test]
fn tokens_are_asked_for_once() {
    let token = |audience: Value, seconds: Value| json!({"serviceAccountToken": {"path": "t", "audience": audience, "expirationSeconds": seconds}});
    let pod = pod(json!({"volumes": [
        {"name": "a", "projected": {"sources": [token(json!(null), json!(3607)), token(json!(null), json!(3607)), token(json!("vault"), json!(null))]}},
        {"name": "b", "emptyDir": {}},
    ]}));
    let got: Vec<_> =
        token_requests(&pod).into_iter().map(|r| (r.volume, r.audience, r.expiration_seconds)).collect();
    assert_eq!(got, [("a".into(), String::new(), 3607), ("a".into(), "vault".into(), 3600)]);
}

#[test]
fn secrets_are_not_printed() {
    let file = PayloadFile { data: b"s3cret".to_vec(), mode: 0o600, uid: None };
    assert!(!format!("{file:?}").contains("s3cret"));
}

fn mount(mount: Value, supported: bool) -> Result<ContainerMount, String> {
    let pod = pod(json!({
        "containers": [{"name": "c", "volumeMounts": [mount]}],
        "volumes": [{"name": "data", "emptyDir": {}}, {"name": "cm", "configMap": {"name": "cm"}}, {"name": "late", "emptyDir": {}}],
    }));
    let env = vec![
        ("POD".to_owned(), "p-0".to_owned()),
        ("UP".to_owned(), "..".to_owned()),
        ("ABS".to_owned(), "/etc".to_owned()),
    ];
    mounts(&MountInput {
        pod: &pod,
        container: &pod.spec.as_ref().unwrap().containers[0],
        env: &env,
        volume_paths: &[("data".to_owned(), "/v/data".to_owned()), ("cm".to_owned(), "/v/cm".to_owned())]
            .into(),
        recursive_read_only: supported,
        etc_hosts: None,
        termination_log: None,
    })
    .map(|mut all| all.remove(0))
    .map_err(|e| e.to_string())
}

#[test]
fn mounts_say_what_is_seen_where() {
    let plain = mount(json!({"name": "data", "mountPath": "data"}), false).unwrap();
    assert_eq!(
        (plain.container_path.as_str(), plain.host_path.as_str(), plain.read_only),
        ("/data", "/v/data", false)
    );
    assert!(
        mount(json!({"name": "cm", "mountPath": "/c"}), false).unwrap().read_only,
        "what the agent writes is read-only"
    );
    let expr =
        mount(json!({"name": "data", "mountPath": "/d", "subPathExpr": "logs/$(POD)"}), false).unwrap();
    assert_eq!(expr.sub_path.as_deref(), Some("logs/p-0"));
    let shared =
        mount(json!({"name": "data", "mountPath": "/d", "mountPropagation": "HostToContainer"}), false)
            .unwrap();
    assert_eq!(shared.propagation, Propagation::HostToContainer);
    let rro = json!({"name": "data", "mountPath": "/d", "readOnly": true, "recursiveReadOnly": "IfPossible"});
    assert!(mount(rro.clone(), true).unwrap().recursive_read_only);
    assert!(!mount(rro, false).unwrap().recursive_read_only);
}

#[test]
fn mounts_that_cannot_be_are_refused_in_words() {
    for (what, given, want) in [
        (
            "a volume that is not there",
            json!({"name": "nope", "mountPath": "/d"}),
            "cannot find volume \"nope\" to mount into container \"c\"",
        ),
        (
            "a volume that is not ready",
            json!({"name": "late", "mountPath": "/d"}),
            "cannot find volume \"late\"",
        ),
        (
            "an absolute subPath",
            json!({"name": "data", "mountPath": "/d", "subPath": "/etc"}),
            "`/etc` must not be an absolute path",
        ),
        (
            "a subPath out of the volume",
            json!({"name": "data", "mountPath": "/d", "subPath": "a/../.."}),
            "must not contain '..'",
        ),
        (
            "an expression out of the volume",
            json!({"name": "data", "mountPath": "/d", "subPathExpr": "$(UP)/x"}),
            "must not contain '..'",
        ),
        (
            "an absolute expression",
            json!({"name": "data", "mountPath": "/d", "subPathExpr": "$(ABS)"}),
            "must not be an absolute path",
        ),
        (
            "an expression without a value",
            json!({"name": "data", "mountPath": "/d", "subPathExpr": "$(WHO)"}),
            "missing value for [\"WHO\"]",
        ),
        (
            "an unknown propagation",
            json!({"name": "data", "mountPath": "/d", "mountPropagation": "Sideways"}),
            "\"Sideways\"",
        ),
        (
            "recursive read-only without support",
            json!({"name": "data", "mountPath": "/d", "readOnly": true, "recursiveReadOnly": "Enabled"}),
            "not supported by the runtime",
        ),
        (
            "recursive read-only but writable",
            json!({"name": "data", "mountPath": "/d", "recursiveReadOnly": "Enabled"}),
            "it is not read-only",
        ),
    ] {
        let got = mount(given, false);
        assert!(got.clone().is_err_and(|e| e.contains(want)), "{what}: {got:?}");
    }
}

#[test]
fn a_container_may_bring_its_own_hosts_file() {
    let run = |path: &str| {
        let pod = pod(
            json!({"containers": [{"name": "c", "volumeMounts": [{"name": "data", "mountPath": path}]}], "volumes": [{"name": "data", "emptyDir": {}}]}),
        );
        let input = MountInput {
            pod: &pod,
            container: &pod.spec.as_ref().unwrap().containers[0],
            env: &[],
            volume_paths: &[("data".to_owned(), "/v".to_owned())].into(),
            recursive_read_only: false,
            etc_hosts: Some("/pods/u/etc-hosts"),
            termination_log: Some("/pods/u/containers/c/log"),
        };
        mounts(&input).unwrap().into_iter().map(|m| m.container_path).collect::<Vec<_>>()
    };
    assert_eq!(run("/data"), ["/data", "/etc/hosts", "/dev/termination-log"]);
    assert_eq!(run("/etc/hosts"), ["/etc/hosts", "/dev/termination-log"]);
}
