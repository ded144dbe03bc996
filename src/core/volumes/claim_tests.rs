use serde_json::json;

use super::*;

fn pod(container: Value) -> Pod {
    let mut c = json!({"name": "c"});
    c.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u1"}, "spec": {"containers": [c]},
    }))
    .unwrap()
}

fn volume(source: Value) -> Volume {
    let mut volume = json!({"name": "data"});
    volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    serde_json::from_value(volume).unwrap()
}

fn claim(change: impl FnOnce(&mut Value)) -> PersistentVolumeClaim {
    let mut claim = json!({
        "metadata": {"name": "c", "namespace": "ns", "uid": "c1"},
        "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"},
    });
    change(&mut claim);
    serde_json::from_value(claim).unwrap()
}

fn persistent(change: impl FnOnce(&mut Value)) -> PersistentVolume {
    let mut volume = json!({
        "metadata": {"name": "pv"},
        "spec": {"claimRef": {"uid": "c1", "namespace": "ns", "name": "c"}, "local": {"path": "/srv/disk"}},
    });
    change(&mut volume);
    serde_json::from_value(volume).unwrap()
}

#[test]
fn a_volume_names_its_claim_or_has_one_made_for_the_pod() {
    let pod = pod(json!({}));
    let named = volume(json!({"persistentVolumeClaim": {"claimName": "c"}}));
    assert_eq!(ClaimRef::of(&pod, &named), Some(ClaimRef { claim: "c".into(), made_for_pod: false }));
    let made = volume(json!({"ephemeral": {}}));
    assert_eq!(ClaimRef::of(&pod, &made), Some(ClaimRef { claim: "p-data".into(), made_for_pod: true }));
    assert_eq!(ClaimRef::of(&pod, &volume(json!({"emptyDir": {}}))), None);
}

#[test]
fn a_claim_is_used_once_it_is_bound_and_while_it_stays() {
    let pod = pod(json!({}));
    let named = ClaimRef { claim: "c".into(), made_for_pod: false };
    let own = ClaimRef { claim: "c".into(), made_for_pod: true };
    let owned_by = |uid: &str| {
        let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true}]);
        claim(|c| c["metadata"]["ownerReferences"] = owner)
    };
    let deleted = json!("2026-01-01T00:00:00Z");
    let cases = [
        ("bound", &named, Some(claim(|_| {})), ""),
        ("missing", &named, None, "persistentvolumeclaim \"c\" not found"),
        (
            "not bound",
            &named,
            Some(claim(|c| c["status"]["phase"] = json!("Pending"))),
            "is not bound to a volume yet; it is Pending",
        ),
        ("lost", &named, Some(claim(|c| c["status"]["phase"] = json!("Lost"))), "it is Lost"),
        ("bound to nothing", &named, Some(claim(|c| c["spec"] = json!({}))), "is not bound"),
        (
            "deleted",
            &named,
            Some(claim(|c| c["metadata"]["deletionTimestamp"] = deleted.clone())),
            "is being deleted",
        ),
        (
            "deleted and still in use",
            &named,
            Some(claim(|c| {
                c["metadata"]["deletionTimestamp"] = deleted.clone();
                c["metadata"]["finalizers"] = json!([IN_USE]);
            })),
            "",
        ),
        ("made for the pod", &own, Some(owned_by("u1")), ""),
        (
            "made for one that had its name",
            &own,
            Some(owned_by("u0")),
            "PVC ns/c was not created for pod ns/p (pod is not owner)",
        ),
        ("nobody's", &own, Some(claim(|_| {})), "pod is not owner"),
    ];
    for (name, reference, claim, expected) in cases {
        let said = reference.bound_to(&pod, claim.as_ref());
        match said {
            Ok(volume) => assert!(expected.is_empty() && volume == "pv", "{name}"),
            Err(said) => assert!(!expected.is_empty() && said.contains(expected), "{name}: {said}"),
        }
    }
}

#[test]
fn a_persistent_volume_is_given_to_the_pod_whose_claim_it_is_bound_to_on_its_node() {
    let labels: BTreeMap<String, String> = [("disk".to_owned(), "fast".to_owned())].into();
    let on = |value: &str| {
        let term = json!({"matchExpressions": [{"key": "disk", "operator": "In", "values": [value]}]});
        persistent(|v| v["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [term]}}))
    };
    let mounts = json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
    let devices = json!({"volumeDevices": [{"name": "data", "devicePath": "/dev/x"}]});
    let block = || persistent(|v| v["spec"]["volumeMode"] = json!("Block"));
    let of = |source: Value| {
        persistent(|v| {
            v["spec"].as_object_mut().unwrap().remove("local");
            v["spec"].as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        })
    };
    let cases = [
        ("a local one", &mounts, Some(persistent(|_| {})), ""),
        ("on this node", &mounts, Some(on("fast")), ""),
        ("on another", &mounts, Some(on("slow")), "its node affinity does not match"),
        ("missing", &mounts, None, "persistentvolume \"pv\" not found"),
        (
            "another's",
            &mounts,
            Some(persistent(|v| v["spec"]["claimRef"]["uid"] = json!("c2"))),
            "not bound to this claim but to ns/c",
        ),
        ("nobody's", &mounts, Some(persistent(|v| v["spec"]["claimRef"] = json!(null))), "but to none"),
        (
            "raw, and mounted",
            &mounts,
            Some(block()),
            "its volumeMode is Block, but container \"c\" names it in volumeMounts",
        ),
        (
            "with files, and a device",
            &devices,
            Some(persistent(|_| {})),
            "its volumeMode is Filesystem, but container \"c\" names it in volumeDevices",
        ),
        ("raw", &devices, Some(block()), "volumeMode is Block, which this agent does not support"),
        (
            "out of its place",
            &mounts,
            Some(of(json!({"local": {"path": "/srv/../etc"}}))),
            "must be absolute and without '..'",
        ),
        ("relative", &mounts, Some(of(json!({"local": {"path": "srv"}}))), "must be absolute"),
        ("of the host", &mounts, Some(of(json!({"hostPath": {"path": "/srv"}}))), ""),
        (
            "of another kind",
            &mounts,
            Some(of(json!({"fc": {"lun": 1}}))),
            "is of kind fc, which this agent does not support",
        ),
        ("of no kind", &mounts, Some(of(json!({}))), "is of kind none"),
        (
            "with a name that leads elsewhere",
            &mounts,
            Some(persistent(|v| v["metadata"]["name"] = json!("../x"))),
            "is no name of a directory",
        ),
    ];
    let used_as = volume(json!({"persistentVolumeClaim": {"claimName": "c", "readOnly": true}}));
    for (name, container, volume, expected) in cases {
        let pod = pod(container.clone());
        match claimed_volume(&pod, &used_as, &claim(|_| {}), volume.as_ref(), ("node", &labels)) {
            Ok(given) => {
                assert!(expected.is_empty() && given.name == "pv" && given.read_only, "{name}: {given:?}")
            }
            Err(said) => assert!(!expected.is_empty() && said.contains(expected), "{name}: {said}"),
        }
    }
}
