//! Brings the mirrors of static pods at the apiserver in line with the manifests: what `mirror` decides for each is carried out
//! beside the pod loop, and what fails is tried again with the next review.

use std::collections::BTreeSet;

use keelson_apiserver::Api;

use super::desired_store::{DesiredStore, full_name};
use super::mirror::{self, NodeIdentity, Step};
use super::supervisor::Supervisor;
use crate::node::Node;

pub fn reconcile(node: &Node, store: &DesiredStore, supervisor: &Supervisor, identity: &NodeIdentity) {
    let Some(api) = node.api.as_ref().map(|a| &a.api) else { return };
    // Before the manifests were read, every mirror would be one too many.
    if !store.complete(true) {
        return;
    }
    let mut named = BTreeSet::new();
    for (uid, pod) in store.statics() {
        named.insert(full_name(pod));
        if !supervisor.has(uid) {
            continue; // the old revision is still stopping; its mirror shows that
        }
        let (namespace, name) = full_name(pod);
        match mirror::step(pod, uid, store.mirror_of(pod).map(|m| &**m), identity) {
            Step::Keep => {}
            Step::Create(mirror) => {
                let api = api.clone();
                tokio::spawn(async move {
                    if let Err(e) = api.create_mirror(&mirror).await {
                        tracing::warn!(namespace, pod = name, error = %e, "mirror not created, will try again");
                    }
                });
            }
            Step::Delete { uid } => delete(api.clone(), namespace, name, uid),
        }
    }
    for mirror in store.mirrors() {
        let (namespace, name) = full_name(mirror);
        let running = supervisor.runs_static(&namespace, &name);
        if !named.contains(&(namespace.clone(), name.clone())) && !running {
            delete(api.clone(), namespace, name, mirror.metadata.uid.clone().unwrap_or_default());
        }
    }
}

fn delete(api: Api, namespace: String, name: String, uid: String) {
    tokio::spawn(async move {
        match api.delete_pod(&namespace, &name, &uid).await {
            Err(e) if !e.is_not_found() => {
                tracing::warn!(namespace, pod = name, error = %e, "mirror not deleted, will try again");
            }
            _ => {}
        }
    });
}
