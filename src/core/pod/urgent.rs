//! Whether an order makes what is being done pointless, so that a pull, a hook, a mount or a stop is given up for it.

use jiff::{SignedDuration, Timestamp};

use super::order::{Directive, Order};
use crate::desired::{Lifecycle, TerminationReason};

pub fn is_urgent(order: &Order, lifecycle: &Lifecycle, now: Timestamp) -> bool {
    let Some(grace) = end_ordered(order) else { return false };
    match lifecycle {
        Lifecycle::Syncing => true,
        // Only if it would really end sooner; orders repeat themselves.
        Lifecycle::Terminating { deadline, reason } => {
            let sooner = now.checked_add(grace);
            *reason != TerminationReason::Orphaned && sooner.is_ok_and(|s| s < *deadline)
        }
        Lifecycle::Terminated { .. } => false,
    }
}

/// The grace within which an order wants the pod to end, if it does.
fn end_ordered(order: &Order) -> Option<SignedDuration> {
    let second = SignedDuration::from_secs(1);
    let Some(desired) = &order.desired else { return Some(second) };
    let meta = &desired.pod.metadata;
    if meta.deletion_timestamp.is_some() {
        let grace = meta.deletion_grace_period_seconds.unwrap_or(30);
        return Some(SignedDuration::from_secs(grace.max(1)));
    }
    match &order.directive {
        Directive::Run(_) => None,
        // Refused before it began: there is nothing to wait for.
        Directive::Refuse(_) => Some(desired.grace()),
        Directive::Evict(eviction) => {
            Some(SignedDuration::try_from(eviction.grace).unwrap_or(SignedDuration::MAX).max(second))
        }
    }
}
