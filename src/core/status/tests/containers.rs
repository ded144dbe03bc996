use super::*;

type Change = fn(&mut World);

#[test]
fn a_container_shows_what_became_of_it() {
    let cases: Vec<(&str, Change, &str)> = vec![
        ("it runs", |_| {}, "running; last none; restarts 0; ready"),
        (
            "it waits for its turn",
            |w| {
                w.nothing_runs();
            },
            "waiting ContainerCreating; last none; restarts 0; unready",
        ),
        (
            "it waits for init containers",
            |w| {
                w.init(json!([{"name": "i"}])).nothing_runs();
            },
            "waiting PodInitializing; last none; restarts 0; unready",
        ),
        (
            "its image cannot be pulled",
            |w| {
                w.nothing_runs().waits("a", "ErrImagePull", "no such host");
            },
            "waiting ErrImagePull; last none; restarts 0; unready",
        ),
        (
            "it is created and not started",
            |w| {
                w.instance("a", 0, ContainerState::Created, 0);
            },
            "waiting ContainerCreating; last none; restarts 0; unready",
        ),
        (
            "it could not be started",
            |w| {
                w.instance("a", 0, ContainerState::Created, 0).waits("a", "RunContainerError", "boom");
            },
            "waiting RunContainerError; last none; restarts 0; unready",
        ),
        (
            "it ended well",
            |w| {
                w.exit("a", 0, 0);
            },
            "ended Completed 0; last none; restarts 0; unready",
        ),
        (
            "it failed",
            |w| {
                w.exit("a", 0, 2);
            },
            "ended Error 2; last none; restarts 0; unready",
        ),
        (
            "the runtime's reason counts",
            |w| {
                w.exit("a", 0, 137);
                w.observed.containers[0].reason = "OOMKilled".into();
            },
            "ended OOMKilled 137; last none; restarts 0; unready",
        ),
        (
            "it is held back",
            |w| {
                w.exit("a", 3, 1).waits("a", "CrashLoopBackOff", "back-off 40s");
            },
            "waiting CrashLoopBackOff; last ended Error 1; restarts 3; unready",
        ),
        (
            "it was restarted",
            |w| {
                w.exit("a", 0, 1).run("a", 1);
            },
            "running; last ended Error 1; restarts 1; ready",
        ),
        (
            "what it waited for is past",
            |w| {
                w.waits("a", "CrashLoopBackOff", "old");
            },
            "running; last none; restarts 0; ready",
        ),
        (
            "it will not run again",
            |w| {
                w.restart_policy("Never").exit("a", 0, 1).waits("a", "CrashLoopBackOff", "x");
            },
            "ended Error 1; last none; restarts 0; unready",
        ),
        (
            "it succeeded and will not run again",
            |w| {
                w.restart_policy("OnFailure").exit("a", 0, 0).waits("a", "CrashLoopBackOff", "x");
            },
            "ended Completed 0; last none; restarts 0; unready",
        ),
        (
            "its own policy speaks before the pod's",
            |w| {
                w.pod("/spec/containers/0/restartPolicy", json!("Never")).exit("a", 0, 1).waits(
                    "a",
                    "CrashLoopBackOff",
                    "x",
                );
            },
            "ended Error 1; last none; restarts 0; unready",
        ),
        (
            "a deleted pod starts nothing",
            |w| {
                w.terminating(TerminationReason::Deleted).exit("a", 0, 1).waits("a", "CrashLoopBackOff", "x");
            },
            "ended Error 1; last none; restarts 0; unready",
        ),
        (
            "the runtime forgot one that ran",
            |w| {
                w.remember().nothing_runs();
            },
            "waiting ContainerCreating; last ended ContainerStatusUnknown 137; restarts 1; unready",
        ),
        (
            "the runtime forgot one of a deleted pod",
            |w| {
                w.remember().nothing_runs().terminating(TerminationReason::Deleted);
            },
            "waiting ContainerCreating; last ended ContainerStatusUnknown 137; restarts 0; unready",
        ),
        (
            "the runtime forgot one that had ended",
            |w| {
                w.exit("a", 2, 5).remember().nothing_runs();
            },
            "ended Error 5; last none; restarts 2; unready",
        ),
        (
            "it ran and its state is unreadable",
            |w| {
                w.remember().instance("a", 0, ContainerState::Unknown, 0);
            },
            "ended ContainerStatusUnknown 137; last none; restarts 0; unready",
        ),
        (
            "it never ran and its state is unreadable",
            |w| {
                w.instance("a", 0, ContainerState::Unknown, 0);
            },
            "waiting ContainerCreating; last none; restarts 0; unready",
        ),
        (
            "an old picture shows it alive after it ended",
            |w| {
                w.exit("a", 0, 1).remember().run("a", 0);
            },
            "ended Error 1; last none; restarts 0; unready",
        ),
        (
            "the runtime forgot it and found it again",
            |w| {
                let seen = w.observed.containers.clone();
                w.remember().nothing_runs().remember();
                w.observed.containers = seen;
            },
            "running; last ended ContainerStatusUnknown 137; restarts 1; ready",
        ),
        (
            "its state was unreadable and is not any more",
            |w| {
                w.remember().instance("a", 0, ContainerState::Unknown, 0).remember().run("a", 0);
            },
            "running; last none; restarts 0; ready",
        ),
        (
            "the runtime forgot how often it restarted",
            |w| {
                w.exit("a", 4, 1).remember().nothing_runs().run("a", 0);
            },
            "running; last ended Error 1; restarts 5; ready",
        ),
        (
            "the runtime forgot the run before",
            |w| {
                w.exit("a", 0, 1).remember().nothing_runs().run("a", 1);
            },
            "running; last ended Error 1; restarts 1; ready",
        ),
        (
            "its hook has not returned",
            |w| {
                let id = ContainerId::try_from("a0").unwrap();
                w.state.instances.entry(id).or_default().hook_running = true;
            },
            "running; last none; restarts 0; unready",
        ),
        (
            "its probe has not spoken",
            |w| {
                w.pod("/spec/containers/0/readinessProbe", json!({}));
            },
            "running; last none; restarts 0; unready",
        ),
        (
            "its probe says no",
            |w| {
                w.verdict("a0", true, false);
            },
            "running; last none; restarts 0; unready",
        ),
        (
            "it is still starting",
            |w| {
                w.pod("/spec/containers/0/startupProbe", json!({})).verdict("a0", false, true);
            },
            "running; last none; restarts 0; unready",
        ),
        (
            "a verdict about another instance does not count",
            |w| {
                w.pod("/spec/containers/0/readinessProbe", json!({}))
                    .exit("a", 0, 1)
                    .verdict("a0", true, true)
                    .run("a", 1);
            },
            "running; last ended Error 1; restarts 1; unready",
        ),
        (
            "the agent restarted and has not probed yet",
            |w| {
                w.pod("/spec/containers/0/readinessProbe", json!({})).verdict("a0", true, true).remember();
                w.facts.probes.clear();
            },
            "running; last none; restarts 0; ready",
        ),
    ];
    for (what, change, want) in cases {
        let mut w = world();
        change(&mut w);
        assert_eq!(line(&w.derive(), "a"), want, "{what}");
    }
}

#[test]
fn an_init_container_shows_what_became_of_it() {
    let cases: Vec<(&str, Change, &str)> = vec![
        (
            "it runs",
            |w| {
                w.nothing_runs().run("i", 0);
            },
            "running; last none; restarts 0; unready",
        ),
        (
            "it ended well",
            |w| {
                w.nothing_runs().exit("i", 0, 0);
            },
            "ended Completed 0; last none; restarts 0; ready",
        ),
        (
            "it ended well and nothing is waited for",
            |w| {
                w.nothing_runs().exit("i", 0, 0).waits("i", "CrashLoopBackOff", "x");
            },
            "ended Completed 0; last none; restarts 0; ready",
        ),
        (
            "it failed and is held back",
            |w| {
                w.nothing_runs().exit("i", 0, 1).waits("i", "CrashLoopBackOff", "x");
            },
            "waiting CrashLoopBackOff; last ended Error 1; restarts 0; unready",
        ),
        (
            "the runtime forgot it and main containers run",
            |_| {},
            "ended Completed 0; last none; restarts 0; ready",
        ),
        (
            "a sidecar that is up",
            |w| {
                w.init(json!([{"name": "i", "restartPolicy": "Always"}])).run("i", 0);
            },
            "running; last none; restarts 0; ready",
        ),
        (
            "a sidecar that nobody knows is not taken for completed",
            |w| {
                w.init(json!([{"name": "i", "restartPolicy": "Always"}]));
            },
            "waiting PodInitializing; last none; restarts 0; unready",
        ),
        (
            "a sidecar restarts whatever the pod's policy",
            |w| {
                w.restart_policy("Never")
                    .init(json!([{"name": "i", "restartPolicy": "Always"}]))
                    .exit("i", 0, 0)
                    .waits("i", "CrashLoopBackOff", "x");
            },
            "waiting CrashLoopBackOff; last ended Completed 0; restarts 0; unready",
        ),
    ];
    for (what, change, want) in cases {
        let mut w = world();
        w.init(json!([{"name": "i"}]));
        change(&mut w);
        assert_eq!(line(&w.derive(), "i"), want, "{what}");
    }
}

#[test]
fn statuses_are_by_name_but_init_containers_in_their_order_and_carry_the_details() {
    let mut w = world();
    w.init(json!([{"name": "z"}, {"name": "b"}]))
        .pod("/spec/containers", json!([
            {"name": "m", "image": "img", "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": true}, {"name": "w", "mountPath": "/w"}],
             "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "200m", "memory": "64Mi"}}},
            {"name": "a", "image": "img"},
        ]))
        .pod("/spec/ephemeralContainers", json!([{"name": "dbg", "image": "tools"}, {"name": "d"}]))
        .run("m", 0)
        .run("dbg", 0);
    let m = w.observed.containers.iter_mut().find(|c| c.name == "m").unwrap();
    m.user = Some(crate::observed::ObservedUser { uid: 7, gid: 8, supplemental_groups: vec![9] });
    m.resources = Some(crate::observed::ObservedResources {
        cpu_shares: 102,
        cpu_quota: 30_000,
        cpu_period: 100_000,
        memory_limit_bytes: 64 << 20,
        ..Default::default()
    });
    let status = w.derive();
    let names = |list: &Option<Vec<ContainerStatus>>| {
        list.iter().flatten().map(|c| c.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&status.init_container_statuses), ["z", "b"]);
    assert_eq!(names(&status.container_statuses), ["a", "m"]);
    assert_eq!(names(&status.ephemeral_container_statuses), ["d", "dbg"]);

    let got = serde_json::to_value(container(&status, "m")).unwrap();
    assert_eq!(
        got,
        json!({
            "name": "m", "image": "img", "imageID": "sha256:1", "containerID": "containerd://m0", "restartCount": 0,
            "ready": true, "started": true,
            "state": {"running": {"startedAt": "2023-11-14T22:13:23Z"}},
            "allocatedResources": {"cpu": "100m"},
            // The runtime's quota differs from the spec's limit; its shares are what 100m come to.
            "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "300m", "memory": "64Mi"}},
            "user": {"linux": {"uid": 7, "gid": 8, "supplementalGroups": [9]}},
            "volumeMounts": [
                {"name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": "Disabled"},
                {"name": "w", "mountPath": "/w"},
            ],
        })
    );
    assert_eq!(container(&status, "dbg").started, None, "nobody probes a guest");
}

#[test]
fn last_words_are_kept_and_bounded() {
    let mut w = world();
    w.exit("a", 0, 1);
    w.observed.containers[0].message = "runtime".into();
    w.state.message_read(ContainerId::try_from("a0").unwrap(), "goodbye".into());
    let ended = |w: &World| container(&w.derive(), "a").state.clone().unwrap().terminated.unwrap();
    let first = ended(&w);
    assert_eq!(first.message.as_deref(), Some("runtime: goodbye"));
    assert_eq!(first.container_id.as_deref(), Some("containerd://a0"));
    assert_eq!((first.started_at.unwrap().0, first.finished_at.unwrap().0), (at(3), at(4)));

    w.remember();
    w.state.instances.clear();
    w.observed.containers[0].message.clear();
    assert_eq!(ended(&w).message.as_deref(), Some("runtime: goodbye"), "read once, kept");

    w.state.previous_status = Arc::default();
    w.state.message_read(ContainerId::try_from("a0").unwrap(), "é".repeat(10_000));
    assert_eq!(ended(&w).message.unwrap().len(), 12 * 1024);
}

#[test]
fn a_pod_that_cannot_start_says_what_it_waits_for() {
    let message = |w: &World| container(&w.derive(), "a").state.clone().unwrap().waiting.unwrap().message;
    let mut w = world();
    w.nothing_runs();
    assert_eq!(message(&w), None);
    w.state.sandbox.failure =
        Some(Waiting { reason: "x".into(), message: "no network".into(), retry_at: None });
    assert_eq!(message(&w).as_deref(), Some("no network"));
    w.state.volumes.state = VolumesState::Failed("MountVolume.SetUp failed".into());
    assert_eq!(message(&w).as_deref(), Some("MountVolume.SetUp failed"), "volumes come before the sandbox");
    w.waits("a", "ErrImagePull", "no such image");
    assert_eq!(message(&w).as_deref(), Some("no such image"));
}
