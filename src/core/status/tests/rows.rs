use super::*;
use crate::status::view_row;

type Change = fn(&mut World);

#[test]
fn a_row_says_in_words_why_a_pod_does_not_run() {
    let cases: Vec<(&str, Change, &str)> = vec![
        ("it runs", |_| {}, ""),
        (
            "it completed",
            |w| {
                w.restart_policy("Never").exit("a", 0, 0);
            },
            "",
        ),
        (
            "it is being created",
            |w| {
                w.nothing_runs();
            },
            "a: ContainerCreating",
        ),
        (
            "its image cannot be pulled",
            |w| {
                w.nothing_runs().waits("a", "ImagePullBackOff", "Back-off pulling image \"img\"");
            },
            "a: ImagePullBackOff: Back-off pulling image \"img\"",
        ),
        (
            "it crashes",
            |w| {
                w.exit("a", 2, 1).waits("a", "CrashLoopBackOff", "back-off 20s");
            },
            "a: CrashLoopBackOff: back-off 20s",
        ),
        (
            "it failed",
            |w| {
                w.restart_policy("Never").exit("a", 0, 3);
            },
            "a: Error (exit code 3)",
        ),
        (
            "it is not ready",
            |w| {
                w.verdict("a0", true, false);
            },
            "a: is not ready",
        ),
        (
            "it is starting",
            |w| {
                w.verdict("a0", false, false);
            },
            "a: is starting",
        ),
        (
            "an init container is busy",
            |w| {
                w.init(json!([{"name": "i"}, {"name": "j"}])).nothing_runs().run("i", 0);
            },
            "i: is running before the main containers",
        ),
        (
            "an init container fails",
            |w| {
                w.init(json!([{"name": "i"}])).nothing_runs().exit("i", 0, 1).waits(
                    "i",
                    "CrashLoopBackOff",
                    "back-off",
                );
            },
            "i: CrashLoopBackOff: back-off",
        ),
        (
            "it was evicted",
            |w| {
                w.terminating(evicted()).exit("a", 0, 1);
            },
            "Evicted: The node was low on resource: memory.",
        ),
        (
            "it is being deleted",
            |w| {
                w.pod("/metadata/deletionTimestamp", json!("2024-01-01T00:00:00Z"));
            },
            "being deleted",
        ),
        (
            "a gate is closed",
            |w| {
                w.pod("/spec/readinessGates", json!([{"conditionType": "x/g"}]));
            },
            "corresponding condition of pod readiness gate \"x/g\" does not exist.",
        ),
    ];
    for (what, change, want) in cases {
        let mut w = world();
        change(&mut w);
        assert_eq!(view_row(&w.desired, &w.derive()).reason, want, "{what}");
    }
}

#[test]
fn a_row_counts_what_stays() {
    let mut w = world();
    w.init(json!([{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]))
        .exit("i", 4, 0)
        .run("s", 1)
        .exit("a", 0, 1)
        .run("a", 1);
    w.desired.source = PodSource::Static;
    let row = view_row(&w.desired, &w.derive());
    assert_eq!((row.ready_containers, row.containers, row.restarts, row.ready), (2, 2, 2, true));
    assert_eq!(
        (row.source.as_str(), row.ip.as_deref(), row.phase.as_str()),
        ("file", Some("10.1.0.4"), "Running")
    );
    assert_eq!(row.created_at.as_deref(), Some("2023-11-14T22:15:00Z"));
}
