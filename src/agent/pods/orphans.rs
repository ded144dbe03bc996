//! What pods that nobody knows any more have left on this machine besides processes.

use std::collections::BTreeMap;

use keelson_core::ids::PodUid;
use keelson_core::observed::ObservedPod;

use crate::node::Node;

/// Adds pods that are gone from the runtime but not from the disk or the cgroup tree to `left`, and removes logs that
/// belong to nobody.
pub fn on_disk(node: &Node, left: &mut BTreeMap<PodUid, ObservedPod>, known: impl Fn(&PodUid) -> bool) {
    let mut add = |uid: PodUid| {
        if !known(&uid) && !left.contains_key(&uid) {
            let nameless = ObservedPod::empty(uid.clone(), "", "");
            left.insert(uid, nameless);
        }
    };
    match node.dirs.list_pods() {
        Ok(uids) => uids.into_iter().for_each(&mut add),
        Err(e) => tracing::warn!(error = %e, "pod directories cannot be listed; leftovers stay"),
    }
    match node.cgroups.list_pods() {
        Ok(uids) => uids.into_iter().for_each(&mut add),
        Err(e) => tracing::warn!(error = %e, "pod cgroups cannot be listed; leftovers stay"),
    }
    match node.logs.list_pods() {
        Ok(owners) => {
            for owner in owners {
                if known(&owner.uid) || left.get(&owner.uid).is_some_and(|o| !o.name.is_empty()) {
                    continue;
                }
                if let Err(e) = node.logs.remove_pod(&owner.namespace, &owner.name, &owner.uid) {
                    tracing::warn!(uid = %owner.uid, error = %e, "logs of a pod that is gone cannot be removed");
                }
            }
        }
        Err(e) => tracing::warn!(error = %e, "pod logs cannot be listed; leftovers stay"),
    }
    if let Err(e) = node.logs.remove_dead_links() {
        tracing::warn!(error = %e, "dead log links stay");
    }
}
