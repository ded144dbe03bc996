use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use keelson_core::desired::{DesiredPod, PodSource};
use keelson_core::status::view_row;

use super::*;

fn uid(text: &str) -> PodUid {
    PodUid::try_from(text).unwrap()
}

fn pod(name: &str) -> Pod {
    let metadata =
        ObjectMeta { namespace: Some("ns".into()), name: Some(name.into()), ..ObjectMeta::default() };
    Pod { metadata, ..Pod::default() }
}

fn publish(registry: &Registry, of: &str, pod: Pod, phase: &str) -> bool {
    let status = Arc::new(PodStatus { phase: Some(phase.into()), ..PodStatus::default() });
    let pod = Arc::new(pod);
    let desired = DesiredPod { uid: uid(of), source: PodSource::Api, pod: pod.clone() };
    let row = view_row(&desired, &status);
    registry.publish(&uid(of), &pod, status, row)
}

#[test]
fn whoever_follows_rows_wakes_for_them_and_for_nothing_else() {
    let registry = Registry::default();
    let (mut rows, mut running) = (registry.row_changes(), registry.running_changes());
    let mut woken = |case: &str, expected: (bool, bool)| {
        let found = (rows.has_changed().unwrap(), running.has_changed().unwrap());
        assert_eq!(found, expected, "{case}");
        rows.mark_unchanged();
        running.mark_unchanged();
    };
    assert!(publish(&registry, "u1", pod("web"), "Pending"));
    woken("a new pod", (true, false));
    assert!(!publish(&registry, "u1", pod("web"), "Pending"));
    woken("the same once more", (false, false));
    registry.observe(&ObservedPod::empty(uid("u1"), "ns", "web"), QosClass::BestEffort);
    woken("observed for the first time", (false, true));
    registry.observe(&ObservedPod::empty(uid("u1"), "ns", "web"), QosClass::BestEffort);
    woken("observed as before", (false, false));
    assert!(publish(&registry, "u1", pod("web"), "Running"));
    woken("another phase", (true, false));
    registry.remove(&uid("u1"));
    woken("gone", (true, true));
    registry.remove(&uid("u1"));
    woken("gone already", (false, false));
}

#[test]
fn a_pod_that_only_the_runtime_knows_has_no_row_and_no_name_to_ask_for() {
    let registry = Registry::default();
    registry.observe(&ObservedPod::empty(uid("orphan"), "ns", "web"), QosClass::Burstable);
    assert_eq!(registry.running().len(), 1);
    assert!(registry.rows().is_empty());
    assert!(registry.desired().is_empty());
    assert!(registry.named("ns", "web").is_none());
}

#[test]
fn of_two_pods_with_one_name_the_one_that_stays_is_found() {
    let registry = Registry::default();
    let mut leaving = pod("web");
    leaving.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    publish(&registry, "a", leaving, "Running");
    publish(&registry, "b", pod("web"), "Pending");
    assert_eq!(registry.named("ns", "web").unwrap().0, uid("b"));
    registry.remove(&uid("b"));
    assert_eq!(registry.named("ns", "web").unwrap().0, uid("a"), "better than none");
    assert!(registry.named("other", "web").is_none());
}

#[test]
fn a_status_that_did_not_change_is_kept_once() {
    let registry = Registry::default();
    publish(&registry, "u1", pod("web"), "Running");
    let first = registry.get(&uid("u1")).unwrap();
    publish(&registry, "u1", pod("web"), "Running");
    let second = registry.get(&uid("u1")).unwrap();
    assert!(Arc::ptr_eq(first.status.as_ref().unwrap(), second.status.as_ref().unwrap()));
    assert!(Arc::ptr_eq(first.row.as_ref().unwrap(), second.row.as_ref().unwrap()));
}

#[test]
fn rows_are_sorted_by_namespace_and_name() {
    let registry = Registry::default();
    publish(&registry, "1", pod("b"), "Running");
    publish(&registry, "2", pod("a"), "Running");
    let names: Vec<_> = registry.rows().iter().map(|row| row.name.clone()).collect();
    assert_eq!(names, ["a", "b"]);
}
