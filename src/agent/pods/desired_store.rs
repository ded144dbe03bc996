//! What this node is to run, from both sources, one entry a pod uid. Mirrors of static pods are kept apart.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use keelson_core::desired::{DesiredPod, PodSource};
use keelson_core::ids::PodUid;
use keelson_core::manifest::StaticPod;

use crate::pods::mirror;

type FullName = (String, String);

#[derive(Default)]
pub struct DesiredStore {
    api: HashMap<PodUid, Arc<Pod>>,
    statics: BTreeMap<PodUid, Arc<Pod>>,
    mirrors: HashMap<FullName, Arc<Pod>>,
    api_synced: bool,
    statics_read: bool,
}

impl DesiredStore {
    /// `false` until every source has reported once. Before that, a pod that nobody asked for may still be asked for.
    pub fn complete(&self, has_api: bool) -> bool {
        self.statics_read && (self.api_synced || !has_api)
    }

    pub fn get(&self, uid: &PodUid) -> Option<DesiredPod> {
        let of = |pod: &Arc<Pod>, source| DesiredPod { uid: uid.clone(), source, pod: pod.clone() };
        let from_api = self.api.get(uid).map(|p| of(p, PodSource::Api));
        from_api.or_else(|| self.statics.get(uid).map(|p| of(p, PodSource::Static)))
    }

    pub fn all(&self) -> impl Iterator<Item = (&PodUid, &Arc<Pod>)> {
        self.api.iter().chain(self.statics.iter())
    }

    /// The complete list of the apiserver. Returns whose order may have changed.
    pub fn replace_api(&mut self, pods: Vec<Pod>) -> BTreeSet<PodUid> {
        let mut changed: BTreeSet<PodUid> = self.api.keys().cloned().collect();
        changed.extend(self.statics.keys().cloned());
        self.api.clear();
        self.mirrors.clear();
        for pod in pods {
            changed.extend(self.apply_api(pod));
        }
        self.api_synced = true;
        changed
    }

    pub fn apply_api(&mut self, pod: Pod) -> Option<PodUid> {
        if mirror::is_mirror(&pod) {
            let name = full_name(&pod);
            self.mirrors.insert(name.clone(), Arc::new(pod));
            return self.static_named(&name);
        }
        let uid = uid_of(&pod)?;
        self.api.insert(uid.clone(), Arc::new(pod));
        Some(uid)
    }

    pub fn delete_api(&mut self, pod: &Pod) -> Option<PodUid> {
        if mirror::is_mirror(pod) {
            let name = full_name(pod);
            // A late event about an older mirror must not hide the present one.
            if self.mirrors.get(&name).is_some_and(|m| m.metadata.uid == pod.metadata.uid) {
                self.mirrors.remove(&name);
            }
            return self.static_named(&name);
        }
        let uid = uid_of(pod)?;
        self.api.remove(&uid);
        Some(uid)
    }

    pub fn replace_statics(&mut self, pods: Vec<StaticPod>) -> BTreeSet<PodUid> {
        let mut changed: BTreeSet<PodUid> = self.statics.keys().cloned().collect();
        self.statics = pods.into_iter().map(|p| (p.uid, p.pod)).collect();
        changed.extend(self.statics.keys().cloned());
        self.statics_read = true;
        changed
    }

    pub fn mirror_of(&self, pod: &Pod) -> Option<&Arc<Pod>> {
        self.mirrors.get(&full_name(pod))
    }

    pub fn mirrors(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.mirrors.values()
    }

    pub fn statics(&self) -> impl Iterator<Item = (&PodUid, &Arc<Pod>)> {
        self.statics.iter()
    }

    fn static_named(&self, name: &FullName) -> Option<PodUid> {
        self.statics.iter().find(|(_, p)| full_name(p) == *name).map(|(uid, _)| uid.clone())
    }
}

pub fn full_name(pod: &Pod) -> FullName {
    let meta = &pod.metadata;
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

fn uid_of(pod: &Pod) -> Option<PodUid> {
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    PodUid::try_from(uid)
        .inspect_err(|e| tracing::error!(pod = ?full_name(pod), error = %e, "the apiserver sent a pod that cannot be run"))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, uid: &str) -> Pod {
        let mut p = Pod::default();
        p.metadata.namespace = Some("default".into());
        p.metadata.name = Some(name.into());
        p.metadata.uid = Some(uid.into());
        p
    }

    fn mirror(name: &str, uid: &str) -> Pod {
        let mut p = pod(name, uid);
        p.metadata.annotations =
            Some([(keelson_core::manifest::CONFIG_MIRROR.to_owned(), "hash".to_owned())].into());
        p
    }

    fn statics(name: &str, uid: &str) -> StaticPod {
        StaticPod { uid: PodUid::try_from(uid).unwrap(), file: "f".into(), pod: Arc::new(pod(name, uid)) }
    }

    #[test]
    fn a_mirror_is_never_run_it_only_concerns_its_static_pod() {
        let mut store = DesiredStore::default();
        store.replace_statics(vec![statics("web-n1", "s1")]);
        let changed = store.replace_api(vec![mirror("web-n1", "m1"), pod("a", "u1")]);
        assert!(store.get(&PodUid::try_from("m1").unwrap()).is_none());
        assert!(changed.contains(&PodUid::try_from("s1").unwrap()));
        assert_eq!(store.get(&PodUid::try_from("s1").unwrap()).unwrap().source, PodSource::Static);
    }

    #[test]
    fn a_relist_reports_pods_that_vanished_meanwhile() {
        let mut store = DesiredStore::default();
        store.replace_api(vec![pod("a", "u1"), pod("b", "u2")]);
        let changed = store.replace_api(vec![pod("b", "u2")]);
        assert!(changed.contains(&PodUid::try_from("u1").unwrap()));
        assert!(store.get(&PodUid::try_from("u1").unwrap()).is_none());
    }

    #[test]
    fn a_late_event_about_an_older_mirror_does_not_hide_the_new_one() {
        let mut store = DesiredStore::default();
        store.apply_api(mirror("web-n1", "m2"));
        store.delete_api(&mirror("web-n1", "m1"));
        assert!(store.mirror_of(&pod("web-n1", "s1")).is_some());
    }

    #[test]
    fn nothing_is_complete_before_both_sources_have_reported() {
        let mut store = DesiredStore::default();
        assert!(!store.complete(false));
        store.replace_statics(vec![]);
        assert!(store.complete(false) && !store.complete(true));
        store.replace_api(vec![]);
        assert!(store.complete(true));
    }
}
