//! Mirrors: API objects that show the static pods of this node to everybody else. They order nothing.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use keelson_core::ids::PodUid;
use keelson_core::manifest::CONFIG_MIRROR;

pub fn is_mirror(pod: &Pod) -> bool {
    pod.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(CONFIG_MIRROR))
}

/// What is to be done about the mirror of one static pod.
#[derive(Debug, PartialEq)]
pub enum Step {
    Keep,
    Create(Box<Pod>),
    /// It shows another revision, or somebody has deleted it: it goes, and a new one comes.
    Delete {
        uid: String,
    },
}

pub fn step(static_pod: &Pod, uid: &PodUid, mirror: Option<&Pod>, node: &NodeIdentity) -> Step {
    match mirror {
        None => Step::Create(Box::new(mirror_for(static_pod, uid, node))),
        Some(m) => {
            let shows = m.metadata.annotations.as_ref().and_then(|a| a.get(CONFIG_MIRROR));
            let stale =
                shows.map(String::as_str) != Some(uid.as_str()) || m.metadata.deletion_timestamp.is_some();
            if stale { Step::Delete { uid: m.metadata.uid.clone().unwrap_or_default() } } else { Step::Keep }
        }
    }
}

#[derive(Debug, Clone)]
pub struct NodeIdentity {
    pub name: String,
    pub uid: String,
}

fn mirror_for(pod: &Pod, uid: &PodUid, node: &NodeIdentity) -> Pod {
    let mut annotations = pod.metadata.annotations.clone().unwrap_or_default();
    annotations.insert(CONFIG_MIRROR.into(), uid.to_string());
    Pod {
        metadata: ObjectMeta {
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            labels: pod.metadata.labels.clone(),
            annotations: Some(annotations),
            // The node authoriser lets a node create pods that it owns, and no others.
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".into(),
                kind: "Node".into(),
                name: node.name.clone(),
                uid: node.uid.clone(),
                controller: Some(true),
                ..Default::default()
            }]),
            ..Default::default()
        },
        spec: pod.spec.clone(),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_follows_the_revision_of_its_static_pod() {
        let node = NodeIdentity { name: "n1".into(), uid: "nu".into() };
        let uid = PodUid::try_from("rev2").unwrap();
        let mut pod = Pod::default();
        pod.metadata.name = Some("web-n1".into());
        pod.metadata.uid = Some("rev2".into());
        let Step::Create(mut made) = step(&pod, &uid, None, &node) else { panic!("no mirror was made") };
        assert_eq!(made.metadata.uid, None);
        assert_eq!(made.metadata.owner_references.as_ref().unwrap()[0].name, "n1");
        assert_eq!(step(&pod, &uid, Some(&made), &node), Step::Keep);
        made.metadata.uid = Some("m1".into());
        let older = PodUid::try_from("rev1").unwrap();
        assert_eq!(step(&pod, &older, Some(&made), &node), Step::Delete { uid: "m1".into() });
    }
}
