use super::*;
use crate::admission::Rejection;

fn deleted(grace: i64) -> Order {
    let mut desired = desired();
    let meta = &mut Arc::make_mut(&mut desired.pod).metadata;
    meta.deletion_timestamp = Some(Time(at(0)));
    meta.deletion_grace_period_seconds = Some(grace);
    Order { desired: Some(desired), directive: Directive::default(), resize: ResizeOrder::default() }
}

fn decided(directive: Directive) -> Order {
    Order { desired: Some(desired()), directive, resize: ResizeOrder::default() }
}

fn evicted(grace: u64) -> Order {
    let grace = Duration::from_secs(grace);
    decided(Directive::Evict(Eviction { reason: "Evicted".into(), message: "m".into(), grace }))
}

#[test]
fn only_an_order_that_ends_the_pod_sooner_is_worth_an_interruption() {
    // Ten seconds are left to a pod that is being stopped.
    let stopping = |reason| Lifecycle::Terminating { reason, deadline: at(10_000) };
    let deleting = stopping(TerminationReason::Deleted);
    let orphaned = stopping(TerminationReason::Orphaned);
    let over = Lifecycle::Terminated { reason: TerminationReason::Completed };
    let refused = decided(Directive::Refuse(Rejection { reason: "r".into(), message: "m".into() }));
    let cases = [
        ("it runs and goes on", decided(Directive::default()), &Lifecycle::Syncing, false),
        ("it is deleted", deleted(30), &Lifecycle::Syncing, true),
        ("it is gone", Order::vanished(), &Lifecycle::Syncing, true),
        ("it is evicted", evicted(60), &Lifecycle::Syncing, true),
        ("it is refused", refused.clone(), &Lifecycle::Syncing, true),
        ("the deletion is repeated", deleted(30), &deleting, false),
        ("the grace is cut short", deleted(5), &deleting, true),
        ("a grace of nothing is a second", deleted(0), &deleting, true),
        ("it is gone while it is being stopped", Order::vanished(), &deleting, true),
        ("that is known already", Order::vanished(), &orphaned, false),
        ("an eviction that has more patience", evicted(30), &deleting, false),
        ("an eviction that has less", evicted(3), &deleting, true),
        ("a refusal is repeated", refused, &deleting, false),
        ("nothing runs any more", deleted(0), &over, false),
    ];
    for (name, order, lifecycle, expected) in cases {
        assert_eq!(is_urgent(&order, lifecycle, at(0)), expected, "{name}");
    }
}
