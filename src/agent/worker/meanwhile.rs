//! Keeps a pod's status true while an action goes on that takes its time: a pull, a hook, a mount, a stop.

use keelson_core::observed::ObservedPod;
use keelson_core::pod::PodState;
use keelson_core::status::{self, StatusInput};
use keelson_cri::{PodHint, observe_pod};

use super::Worker;
use super::act::PATIENCE;
use super::inbox::News;
use super::report::termination_messages;

impl Worker {
    /// Reports what the probes and the runtime say of the pod, for as long as it is let. What it learns beside that is learned
    /// again by the worker: nothing is decided from it.
    pub(super) async fn keep_reporting(&self) {
        let mut listening = self.inbox.listen();
        // Earlier steps of the same plan have changed the pod. Most actions are over before anybody asks.
        let mut behind = self.stale;
        let mut seen: Option<(PodState, ObservedPod)> = None;
        loop {
            let runtime = tokio::select! {
                news = listening.next() => news == News::Runtime,
                () = tokio::time::sleep(PATIENCE), if behind => true,
            };
            let (state, observed) = seen.get_or_insert_with(|| (self.state.clone(), self.observed.clone()));
            if runtime || behind {
                let hint = PodHint { namespace: &self.observed.namespace, name: &self.observed.name };
                match observe_pod(&self.node.runtime, &self.uid, hint).await {
                    Ok(now) => *observed = now,
                    // The worker asks again when it is through.
                    Err(error) => {
                        tracing::debug!(%error, "the pod cannot be observed meanwhile");
                        continue;
                    }
                }
                behind = false;
                self.take_stock(observed);
                state.observed(observed);
                for (id, message) in termination_messages(state, observed).await {
                    state.message_read(id, message);
                }
            }
            self.report_meanwhile(state, observed);
        }
    }

    fn report_meanwhile(&self, state: &mut PodState, observed: &ObservedPod) {
        let Some(desired) = state.desired.clone().filter(|_| state.is_reported()) else { return };
        state.previous_status = self.published().unwrap_or_else(|| state.previous_status.clone());
        let facts = self.facts();
        // As it was planned: what is being started now is not held back by the back-off that its start has begun.
        let held_back = &self.held_back;
        let input = StatusInput { desired: &desired, observed, state, facts: &facts, held_back };
        if let Some(status) = status::derive_meanwhile(&input) {
            self.hand_on(&desired, state, status);
        }
    }
}
