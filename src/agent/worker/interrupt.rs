//! Gives up what is being done for an order that makes it pointless.

use std::future::Future;

use jiff::Timestamp;
use keelson_core::pod::is_urgent;

use super::Worker;

impl Worker {
    /// Runs `work` unless an order comes in that is more urgent: the pod is deleted or evicted, or its grace cut short.
    /// `None` if it was given up. Meanwhile the status follows the pod.
    pub(super) async fn unless_urgent<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut orders = self.inbox.orders();
        let lifecycle = self.state.lifecycle.clone();
        let urgent = async move {
            loop {
                if is_urgent(&orders.borrow_and_update(), &lifecycle, Timestamp::now()) {
                    return;
                }
                if orders.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            done = work => Some(done),
            () = urgent => None,
            () = self.keep_reporting() => None,
        }
    }
}
