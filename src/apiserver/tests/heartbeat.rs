use keelson_fakes::api::Fault;
use tokio::sync::watch;

use super::*;
use crate::{LeaseKeeper, LeaseSettings, Timings};

fn at(second: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_second(second).unwrap()
}

#[tokio::test]
async fn in_the_steady_state_a_renewal_is_one_request() {
    let rig = rig().await;
    let (uid, receiver) = watch::channel(None);
    let mut keeper = LeaseKeeper::new(rig.api.clone(), LeaseSettings::default(), receiver);
    soon(keeper.renew(at(0))).await.unwrap();
    let before = rig.fake.all_requests();
    uid.send_replace(Some("node-uid".to_owned()));
    for second in 1..=3 {
        soon(keeper.renew(at(second * 10))).await.unwrap();
    }
    assert_eq!(rig.fake.all_requests() - before, 3);
    let lease = rig.fake.get("leases", "kube-node-lease", "n1").unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], "n1");
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 40);
    assert_eq!(lease["spec"]["renewTime"], "1970-01-01T00:00:30.000000Z");
    assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], "node-uid");
}

#[tokio::test]
async fn a_lease_that_someone_touched_or_deleted_is_won_back() {
    let rig = rig().await;
    let (_uid, receiver) = watch::channel(None);
    let mut keeper = LeaseKeeper::new(rig.api.clone(), LeaseSettings::default(), receiver);
    soon(keeper.renew(at(0))).await.unwrap();
    let mut touched = rig.fake.get("leases", "kube-node-lease", "n1").unwrap();
    touched["spec"]["holderIdentity"] = json!("someone");
    rig.fake.put("leases", &touched);
    soon(keeper.renew(at(10))).await.unwrap();
    assert_eq!(rig.fake.get("leases", "kube-node-lease", "n1").unwrap()["spec"]["holderIdentity"], "n1");
    rig.fake.remove("leases", "kube-node-lease", "n1");
    soon(keeper.renew(at(20))).await.unwrap();
    assert!(rig.fake.get("leases", "kube-node-lease", "n1").is_some());
}

#[tokio::test]
async fn a_renewal_whose_answer_got_lost_is_no_conflict_for_long() {
    let rig = rig().await;
    let (_uid, receiver) = watch::channel(None);
    let mut keeper = LeaseKeeper::new(rig.api.clone(), LeaseSettings::default(), receiver);
    soon(keeper.renew(at(0))).await.unwrap();
    rig.fake.fault("update", "leases", 1, Fault::LostAnswer);
    soon(keeper.renew(at(10))).await.unwrap();
    rig.fake.fault("update", "leases", 1, Fault::Status(500));
    assert!(soon(keeper.renew(at(20))).await.unwrap_err().is_transient());
    soon(keeper.renew(at(30))).await.unwrap();
}

#[tokio::test]
async fn the_keeper_goes_on_by_itself_after_an_outage() {
    let mut rig = rig().await;
    let (_uid, receiver) = watch::channel(None);
    let settings = LeaseSettings { renew_every: Duration::from_millis(5), ..LeaseSettings::default() };
    let keeper = tokio::spawn(LeaseKeeper::new(rig.api.clone(), settings, receiver).run());
    soon(rig.fake.until(|fake| fake.requests("update", "leases") >= 2)).await;
    rig.fake.stop().await;
    rig.fake.start_again().await;
    let before = rig.fake.requests("update", "leases");
    soon(rig.fake.until(|fake| fake.requests("update", "leases") > before)).await;
    keeper.abort();
}

#[tokio::test]
async fn a_renewal_that_gets_no_answer_is_given_up_for_the_next() {
    // As patient as can be with everything else.
    let rig = rig_with(Timings { request: Duration::from_secs(3600), ..impatient() }).await;
    let (_uid, receiver) = watch::channel(None);
    let settings = LeaseSettings { renew_every: Duration::from_millis(50), ..LeaseSettings::default() };
    rig.fake.fault("update", "leases", 2, Fault::NoAnswer);
    let keeper = tokio::spawn(LeaseKeeper::new(rig.api.clone(), settings, receiver).run());
    soon(rig.fake.until(|fake| fake.requests("update", "leases") >= 4)).await;
    keeper.abort();
}
