//! Keeps a pod's status true while an action goes on that takes its time: a pull, a hook, a mount, a stop.

use keelson_core::observed::ObservedPod;
use keelson_core::pod::PodState;
use keelson_core::status::{self, StatusInput};
use keelson_cri::{PodHint, observe_pod};
use tokio::time::Instant;

use super::Worker;
use super::act::PATIENCE;
use super::inbox::News;
use super::report::termination_messages;

impl Worker {
    /// Reports what the probes and the runtime say of the pod, for as long as it is let. What it learns beside that is learned
    /// again by the worker: nothing is decided from it.
    pub(super) async fn keep_reporting(&self) {
        let mut listening = self.inbox.listen();
        // Steps of this plan have changed the pod, or something else has. Mostly that is the echo of the step itself, and most
        // steps are over before it is worth a look of its own: the worker looks when it is through.
        let mut behind_since = self.stale.then(Instant::now);
        let mut seen: Option<(PodState, ObservedPod)> = None;
        loop {
            let look_at = behind_since.map(|since| since + PATIENCE);
            let look = tokio::select! {
                news = listening.next() => match news {
                    News::Runtime => {
                        behind_since.get_or_insert_with(Instant::now);
                        continue;
                    }
                    News::Probes => false,
                },
                () = tokio::time::sleep_until(look_at.unwrap_or_else(Instant::now)), if look_at.is_some() => true,
            };
            let (state, observed) = seen.get_or_insert_with(|| (self.state.clone(), self.observed.clone()));
            if look {
                let hint = PodHint { namespace: &self.observed.namespace, name: &self.observed.name };
                behind_since = None;
                match observe_pod(&self.node.runtime, &self.uid, hint).await {
                    Ok(now) => *observed = now,
                    // The worker asks again when it is through.
                    Err(error) => {
                        tracing::debug!(%error, "the pod cannot be observed meanwhile");
                        behind_since = Some(Instant::now());
                        continue;
                    }
                }
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
