use super::*;

type Change = fn(&mut World);

fn shown(status: &PodStatus, kind: &str) -> String {
    let Some(c) = status.conditions.iter().flatten().find(|c| c.type_ == kind) else {
        return "absent".into();
    };
    let or = |t: &Option<String>| t.clone().unwrap_or_default();
    format!("{} {} {}", c.status, or(&c.reason), or(&c.message)).trim().to_owned()
}

#[test]
fn conditions_say_how_far_a_pod_is() {
    let cases: Vec<(&str, Change, &str, &str)> = vec![
        ("all is well", |_| {}, "Ready", "True"),
        ("all is well", |_| {}, "ContainersReady", "True"),
        ("all is well", |_| {}, "Initialized", "True"),
        ("all is well", |_| {}, "PodReadyToStartContainers", "True"),
        ("all is well", |_| {}, "PodScheduled", "True"),
        (
            "two are not ready",
            |w| {
                w.pod("/spec/containers", json!([{"name": "a"}, {"name": "b"}, {"name": "c"}]))
                    .run("b", 0)
                    .verdict("b0", true, false);
            },
            "ContainersReady",
            "False ContainersNotReady containers with unready status: [b c]",
        ),
        (
            "two are not ready",
            |w| {
                w.pod("/spec/containers", json!([{"name": "a"}, {"name": "b"}, {"name": "c"}]))
                    .run("b", 0)
                    .verdict("b0", true, false);
            },
            "Ready",
            "False ContainersNotReady containers with unready status: [b c]",
        ),
        (
            "a sidecar counts",
            |w| {
                w.init(json!([{"name": "s", "restartPolicy": "Always"}]))
                    .run("s", 0)
                    .verdict("s0", true, false);
            },
            "Ready",
            "False ContainersNotReady containers with unready status: [s]",
        ),
        (
            "init containers are busy",
            |w| {
                w.init(json!([{"name": "i"}, {"name": "j"}])).nothing_runs().exit("i", 0, 0).run("j", 0);
            },
            "Initialized",
            "False ContainersNotInitialized containers with incomplete status: [j]",
        ),
        (
            "init containers are done",
            |w| {
                w.init(json!([{"name": "i"}])).nothing_runs().exit("i", 0, 0);
            },
            "Initialized",
            "True",
        ),
        (
            "a sidecar that restarts undoes nothing",
            |w| {
                w.init(json!([{"name": "s", "restartPolicy": "Always"}])).exit("s", 0, 1);
            },
            "Initialized",
            "True",
        ),
        (
            "what was initialized stays so",
            |w| {
                w.init(json!([{"name": "i"}]))
                    .nothing_runs()
                    .exit("i", 0, 0)
                    .remember()
                    .nothing_runs()
                    .run("i", 1);
            },
            "Initialized",
            "True",
        ),
        (
            "no sandbox",
            |w| {
                w.observed.sandboxes.clear();
            },
            "PodReadyToStartContainers",
            "False",
        ),
        (
            "a dead sandbox",
            |w| {
                w.observed.sandboxes[0].state = SandboxState::NotReady;
            },
            "PodReadyToStartContainers",
            "False",
        ),
        (
            "a sandbox without an address",
            |w| {
                w.observed.sandboxes[0].ips.clear();
            },
            "PodReadyToStartContainers",
            "False",
        ),
        (
            "a sandbox of the other network",
            |w| {
                w.pod("/spec/hostNetwork", json!(true));
            },
            "PodReadyToStartContainers",
            "False",
        ),
        (
            "completed",
            |w| {
                w.restart_policy("Never").exit("a", 0, 0);
            },
            "Ready",
            "False PodCompleted",
        ),
        (
            "completed",
            |w| {
                w.restart_policy("Never").exit("a", 0, 0);
            },
            "ContainersReady",
            "False PodCompleted",
        ),
        (
            "completed",
            |w| {
                w.restart_policy("Never").exit("a", 0, 0);
            },
            "Initialized",
            "True PodCompleted",
        ),
        (
            "failed",
            |w| {
                w.restart_policy("Never").exit("a", 0, 1);
            },
            "Ready",
            "False PodFailed",
        ),
        (
            "a gate that nobody opened",
            |w| {
                w.pod("/spec/readinessGates", json!([{"conditionType": "x/g"}]));
            },
            "Ready",
            "False ReadinessGatesNotReady corresponding condition of pod readiness gate \"x/g\" does not exist.",
        ),
        (
            "a closed gate",
            |w| {
                w.pod("/spec/readinessGates", json!([{"conditionType": "x/g"}]))
                    .pod("/status", json!({"conditions": [{"type": "x/g", "status": "False"}]}));
            },
            "Ready",
            "False ReadinessGatesNotReady the status of pod readiness gate \"x/g\" is not \"True\", but False",
        ),
        (
            "an open gate",
            |w| {
                w.pod("/spec/readinessGates", json!([{"conditionType": "x/g"}]))
                    .pod("/status", json!({"conditions": [{"type": "x/g", "status": "True"}]}));
            },
            "Ready",
            "True",
        ),
        (
            "a gate does not touch the containers",
            |w| {
                w.pod("/spec/readinessGates", json!([{"conditionType": "x/g"}]));
            },
            "ContainersReady",
            "True",
        ),
        (
            "somebody else's condition",
            |w| {
                w.pod(
                    "/status",
                    json!({"conditions": [{"type": "x/other", "status": "Unknown", "reason": "R"}]}),
                );
            },
            "x/other",
            "Unknown R",
        ),
        (
            "an eviction that is over",
            |w| {
                w.terminating(evicted()).exit("a", 0, 1);
            },
            "DisruptionTarget",
            "True TerminationByKubelet The node was low on resource: memory.",
        ),
        (
            "an eviction that is not",
            |w| {
                w.terminating(evicted());
            },
            "DisruptionTarget",
            "absent",
        ),
        (
            "a disruption that was told before",
            |w| {
                w.state.previous_status = Arc::new(serde_json::from_value(json!({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]})).unwrap());
            },
            "DisruptionTarget",
            "True EvictionByEvictionAPI",
        ),
        (
            "a deadline is no disruption",
            |w| {
                w.terminating(TerminationReason::Evicted {
                    reason: "DeadlineExceeded".into(),
                    message: "m".into(),
                })
                .exit("a", 0, 1);
            },
            "DisruptionTarget",
            "absent",
        ),
    ];
    for (what, change, kind, want) in cases {
        let mut w = world();
        change(&mut w);
        assert_eq!(shown(&w.derive(), kind), want, "{what}: {kind}");
    }
}

#[test]
fn a_condition_changes_its_time_only_when_it_changes() {
    let time = |s: &PodStatus, kind: &str| {
        let c = s.conditions.iter().flatten().find(|c| c.type_ == kind).unwrap();
        (c.last_transition_time.as_ref().unwrap().0, c.observed_generation)
    };
    let mut w = world();
    w.remember();
    w.facts.now = at(200);
    w.pod("/metadata/generation", json!(4));
    let same = w.derive();
    assert_eq!(time(&same, "Ready"), (at(100), Some(4)));
    w.verdict("a0", true, false);
    let changed = w.derive();
    assert_eq!(time(&changed, "Ready").0, at(200));
    assert_eq!(time(&changed, "Initialized").0, at(100));
}

#[test]
fn no_condition_is_there_twice() {
    let mut w = world();
    w.remember();
    let json = serde_json::to_value(&*w.state.previous_status).unwrap();
    w.pod("/status", json);
    let status = w.terminating(evicted()).exit("a", 0, 1).remember().derive();
    let mut kinds: Vec<_> = status.conditions.iter().flatten().map(|c| c.type_.clone()).collect();
    kinds.sort();
    let all = kinds.len();
    kinds.dedup();
    assert_eq!(kinds.len(), all, "{kinds:?}");
}
