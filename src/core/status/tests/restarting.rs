//! A pod whose containers all restart because one of them exited with a code that asks for it.

use super::*;

/// `a` asks for it by exiting with 42; `b` and the init container `i` never restart by themselves.
fn asking() -> World {
    let mut w = world();
    let rule = json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}});
    w.restart_policy("Never");
    w.init(json!([{"name": "i", "image": "img"}]));
    let a = json!({"name": "a", "image": "img", "restartPolicy": "Never", "restartPolicyRules": [rule]});
    w.pod("/spec/containers", json!([a, {"name": "b", "image": "img"}]));
    w.exit("i", 0, 0).run("b", 0).remember();
    w.exit("a", 0, 42);
    w
}

fn shown(w: &mut World) -> (PodStatus, String) {
    let status = w.derive();
    let condition =
        status.conditions.iter().flatten().find(|c| c.type_ == "AllContainersRestarting").unwrap();
    let phase = status.phase.clone().unwrap_or_default();
    let all = format!("{phase}, restarting {}", condition.status);
    w.remember();
    (status, all)
}

#[test]
fn nobody_has_ended_for_good_while_all_restart() {
    let mut w = asking();
    assert_eq!(shown(&mut w).1, "Running, restarting True");

    w.exit("b", 0, 143);
    let (status, all) = shown(&mut w);
    assert_eq!(all, "Running, restarting True", "all have ended, and not for good");
    assert_eq!(line(&status, "a"), "ended Error 42; last none; restarts 0; unready");
    let gone = "waiting RestartingAllContainers; last ended RestartingAllContainers";
    assert_eq!(line(&status, "b"), format!("{gone} 143; restarts 0; unready"));
    assert_eq!(line(&status, "i"), format!("{gone} 0; restarts 0; unready"));

    w.observed.containers.retain(|c| c.name == "a");
    assert_eq!(shown(&mut w).1, "Running, restarting True");
    w.nothing_runs();
    let (status, all) = shown(&mut w);
    assert_eq!(all, "Running, restarting False", "the pod starts over from here");
    assert_eq!(line(&status, "a"), "waiting PodInitializing; last ended Error 42; restarts 0; unready");
    assert_eq!(
        line(&status, "b"),
        "waiting PodInitializing; last ended RestartingAllContainers 143; restarts 0; unready"
    );

    w.exit("i", 1, 0).run("a", 1).run("b", 1);
    let (status, all) = shown(&mut w);
    assert_eq!(all, "Running, restarting False");
    assert_eq!(line(&status, "a"), "running; last ended Error 42; restarts 1; ready");
    assert_eq!(line(&status, "b"), "running; last ended RestartingAllContainers 143; restarts 1; ready");
}

#[test]
fn only_a_pod_that_can_restart_all_has_the_condition() {
    let has =
        |w: &World| w.derive().conditions.iter().flatten().any(|c| c.type_ == "AllContainersRestarting");
    assert!(has(&asking()));
    assert!(!has(&world()));
}

#[test]
fn a_pod_that_goes_away_restarts_nothing() {
    let mut w = asking();
    w.exit("b", 0, 143).terminated(TerminationReason::Deleted);
    let (status, all) = shown(&mut w);
    assert_eq!(all, "Failed, restarting False");
    assert_eq!(line(&status, "b"), "ended Error 143; last none; restarts 0; unready");
}
