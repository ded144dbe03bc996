use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use serde_json::{Value, json};

use super::*;
use crate::env::Variables;

fn pod(spec: Value) -> Pod {
    let mut base = json!({"metadata": {"name": "p", "namespace": "ns", "labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}});
    base["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(base).unwrap()
}

const ROOT: &str = "-----BEGIN CERTIFICATE-----\ncm9vdA==\n-----END CERTIFICATE-----\n";

fn vault_token() -> TokenNeed {
    TokenNeed { audience: "vault".into(), expiration_seconds: 600 }
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
        tokens: &[(vault_token(), "tok".to_owned())].into(),
        trust_bundles: &[TrustBundle { name: "roots".into(), pem: ROOT.into(), ..Default::default() }],
        node_allocatable: &BTreeMap::new(),
    };
    let payload = payload(&serde_json::from_value(named).unwrap(), &input).map_err(|e| e.to_string())?;
    let Some(payload) = payload else { return Ok("none".into()) };
    let show = |(path, f): (&String, &PayloadFile)| {
        let owner = f.uid.map(|uid| format!(":{uid}")).unwrap_or_default();
        format!("{path}:{:o}{owner}:{}", f.mode, String::from_utf8_lossy(&f.data))
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
            json!({"projected": {"sources": [{"clusterTrustBundle": {"name": "roots", "path": "t"}}]}}),
            Ok(format!("t:644:{ROOT}")),
        ),
        (
            "no trust bundle",
            json!({"projected": {"sources": [{"clusterTrustBundle": {"name": "nope", "path": "t"}}]}}),
            err("clustertrustbundle \"nope\" not found"),
        ),
        (
            "a trust bundle that may be missing",
            json!({"projected": {"sources": [{"clusterTrustBundle": {"name": "nope", "path": "t", "optional": true}}]}}),
            Ok("t:644:".into()),
        ),
        (
            "a trust bundle outside of its volume",
            json!({"projected": {"sources": [{"clusterTrustBundle": {"name": "roots", "path": "../t"}}]}}),
            err("path \"../t\" must be relative, inside the volume, and must not begin with '..'"),
        ),
        (
            "a certificate of the pod's own",
            json!({"projected": {"sources": [{"podCertificate": {"signerName": "s", "keyType": "ED25519", "keyPath": "k"}}]}}),
            err(
                "podCertificate sources are not supported by this agent; they belong to the feature gate PodCertificateRequest, which is off by default in Kubernetes 1.36",
            ),
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
        ("one user for all containers", json!({"securityContext": {"runAsUser": 7}}), "t:600:7:tok"),
        (
            "one user, and a group that may read too",
            json!({"securityContext": {"runAsUser": 7, "fsGroup": 5}}),
            "t:600:7:tok",
        ),
        (
            "a group, and users that differ",
            json!({"securityContext": {"runAsUser": 7, "fsGroup": 5}, "initContainers": [{"name": "i", "securityContext": {"runAsUser": 8}}]}),
            "t:600:tok",
        ),
        (
            "an ephemeral container of another user",
            json!({"securityContext": {"runAsUser": 7}, "ephemeralContainers": [{"name": "e", "securityContext": {"runAsUser": 8}}]}),
            "t:644:tok",
        ),
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
    let needs = needs(
        json!({"projected": {"sources": [token(json!(null), json!(3607)), token(json!(null), json!(3607)), token(json!("vault"), json!(null))]}}),
    );
    let got: Vec<_> = needs.tokens.into_iter().map(|t| (t.audience, t.expiration_seconds)).collect();
    assert_eq!(got, [(String::new(), 3607), ("vault".into(), 3600)]);
}

fn needs(volume: Value) -> Needs {
    let mut named = volume;
    named["name"] = json!("v");
    Needs::of(&serde_json::from_value(named).unwrap())
}

#[test]
fn a_volume_needs_what_it_shows_and_follows_it() {
    let labels = json!({"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]});
    let everything = [
        Change::ConfigMap("a"),
        Change::Secret("a"),
        Change::PodFields,
        Change::TrustBundles,
        Change::AnyObject,
    ];
    let bundle = json!({"clusterTrustBundle": {"name": "a", "path": "ca"}});
    for (what, volume, follows) in [
        ("a directory", json!({"emptyDir": {}}), vec![]),
        ("a ConfigMap", json!({"configMap": {"name": "a"}}), vec![Change::ConfigMap("a"), Change::AnyObject]),
        ("another ConfigMap", json!({"configMap": {"name": "b"}}), vec![Change::AnyObject]),
        (
            "an optional Secret",
            json!({"secret": {"secretName": "a", "optional": true}}),
            vec![Change::Secret("a"), Change::AnyObject],
        ),
        ("no name", json!({"secret": {}}), vec![]),
        ("fields of the pod", json!({"downwardAPI": labels}), vec![Change::PodFields]),
        ("a trust bundle", json!({"projected": {"sources": [bundle]}}), vec![Change::TrustBundles]),
        (
            "all of it",
            json!({"projected": {"sources": [{"configMap": {"name": "a"}}, {"secret": {"name": "a"}}, {"downwardAPI": labels}, bundle]}}),
            everything.to_vec(),
        ),
    ] {
        let needs = needs(volume);
        let got: Vec<_> = everything.into_iter().filter(|change| needs.include(*change)).collect();
        assert_eq!(got, follows, "{what}");
    }
}

#[test]
fn what_a_volume_holds_is_bounded() {
    let big = "x".repeat(1 << 20);
    let config_map: ConfigMap = serde_json::from_value(json!({"data": {"big": big, "small": "s"}})).unwrap();
    let mut with_notes = pod(json!({}));
    with_notes.metadata.annotations = Some([("note".to_owned(), "y".repeat(200_000))].into());
    let input = VolumeInput {
        pod: &with_notes,
        config_maps: &[("cm".to_owned(), Arc::new(config_map))].into(),
        secrets: &BTreeMap::new(),
        tokens: &BTreeMap::new(),
        trust_bundles: &[],
        node_allocatable: &BTreeMap::new(),
    };
    let many = |count: usize, key: &str, depth: usize| -> Vec<Value> {
        (0..count).map(|n| json!({"key": key, "path": format!("{}{n}", "d/".repeat(depth))})).collect()
    };
    let notes: Vec<Value> = (0..1000)
        .map(|n| json!({"path": n.to_string(), "fieldRef": {"fieldPath": "metadata.annotations"}}))
        .collect();
    let items = |items: Vec<Value>| json!({"name": "v", "configMap": {"name": "cm", "items": items}});
    for (what, volume, fits) in [
        ("some large files", items(many(20, "big", 0)), true),
        ("one key in many files", items(many(20_000, "big", 0)), false),
        ("many small files", items(many(4000, "small", 0)), true),
        ("so many that their blocks fill it", items(many(8000, "small", 0)), false),
        ("few files in very deep directories", items(many(20, "small", 2000)), false),
        (
            "several sources together",
            json!({"name": "v", "projected": {"sources": [
                {"configMap": {"name": "cm", "items": many(20, "big", 0)}},
                {"configMap": {"name": "cm", "items": many(20, "big", 1)}},
            ]}}),
            false,
        ),
        (
            "one source over the other",
            json!({"name": "v", "projected": {"sources": [
                {"configMap": {"name": "cm", "items": many(20, "big", 0)}},
                {"configMap": {"name": "cm", "items": many(20, "big", 0)}},
            ]}}),
            true,
        ),
        ("a long field in many files", json!({"name": "v", "downwardAPI": {"items": notes}}), false),
    ] {
        let said = payload(&serde_json::from_value(volume).unwrap(), &input).map(drop);
        let said = said.map_err(|e| e.to_string());
        assert_eq!(said.is_ok(), fits, "{what}: {said:?}");
        assert!(fits || said.is_err_and(|e| e.contains("\"v\"") && e.contains("33554432 bytes")), "{what}");
    }
}

#[test]
fn secrets_are_not_printed() {
    let file = PayloadFile { data: b"s3cret"[..].into(), mode: 0o600, uid: None };
    assert!(!format!("{file:?}").contains("s3cret"));
}

fn mount(mount: Value, supported: bool) -> Result<ContainerMount, String> {
    let pod = pod(json!({
        "containers": [{"name": "c", "volumeMounts": [mount]}],
        "volumes": [{"name": "data", "emptyDir": {}}, {"name": "cm", "configMap": {"name": "cm"}}, {"name": "late", "emptyDir": {}},
                    {"name": "tools", "image": {"reference": "r.io/tools:1"}}],
    }));
    let image = VolumeImage { reference: "r.io/tools:1".into(), pull_policy: "Always".into() };
    let mut env = Variables::default();
    for (name, value) in
        [("POD", &b"p-0"[..]), ("UP", b".."), ("ABS", b"/etc"), ("RAW", b"\xff"), ("LONG", &[b'x'; 3000])]
    {
        env.set(name, value.to_vec()).unwrap();
    }
    mounts(&MountInput {
        pod: &pod,
        container: &pod.spec.as_ref().unwrap().containers[0],
        env: &env,
        places: &[
            ("data".to_owned(), VolumePlace::Host("/v/data".into())),
            ("cm".to_owned(), VolumePlace::Host("/v/cm".into())),
            ("tools".to_owned(), VolumePlace::Image(image)),
        ]
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
        (plain.container_path.as_str(), plain.source, plain.read_only),
        ("/data", MountSource::Host { path: "/v/data".into(), sub_path: None }, false)
    );
    assert!(
        mount(json!({"name": "cm", "mountPath": "/c"}), false).unwrap().read_only,
        "what the agent writes is read-only"
    );
    let expr =
        mount(json!({"name": "data", "mountPath": "/d", "subPathExpr": "logs/$(POD)"}), false).unwrap();
    assert_eq!(expr.source, MountSource::Host { path: "/v/data".into(), sub_path: Some("logs/p-0".into()) });
    let image =
        mount(json!({"name": "tools", "mountPath": "/t", "subPathExpr": "bin/$(POD)"}), false).unwrap();
    assert_eq!(
        (image.source, image.read_only, image.selinux_relabel),
        (MountSource::Image { sub_path: Some("bin/p-0".into()) }, true, false)
    );
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
            "a subPath out of an image",
            json!({"name": "tools", "mountPath": "/d", "subPath": "../x"}),
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
            "an expression that is no text",
            json!({"name": "data", "mountPath": "/d", "subPathExpr": "$(RAW)"}),
            "subPathExpr of volume \"data\" in container \"c\" refers to a value that is not UTF-8 text",
        ),
        (
            "an expression that becomes long",
            json!({"name": "data", "mountPath": "/d", "subPathExpr": "$(LONG)$(LONG)"}),
            "becomes a path of more than 4096 bytes",
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
            env: &Variables::default(),
            places: &[("data".to_owned(), VolumePlace::Host("/v".into()))].into(),
            recursive_read_only: false,
            etc_hosts: Some("/pods/u/etc-hosts"),
            termination_log: Some("/pods/u/containers/c/log"),
        };
        mounts(&input).unwrap().into_iter().map(|m| m.container_path).collect::<Vec<_>>()
    };
    assert_eq!(run("/data"), ["/data", "/etc/hosts", "/dev/termination-log"]);
    assert_eq!(run("/etc/hosts"), ["/etc/hosts", "/dev/termination-log"]);
}
