//! What containers show while all of them restart in place: none has ended for good, whatever it ended with.

use k8s_openapi::api::core::v1::{Container, ContainerState, ContainerStateWaiting, ContainerStatus};

use super::Derivation;
use crate::observed::ObservedContainer;
use crate::plan::{askers, restarts_all_after};

/// Why a container waits, and why it ended, seen on the wire.
pub(super) const RESTARTING_ALL: &str = "RestartingAllContainers";
const MESSAGE: &str = "The container is removed because RestartAllContainers in place";

/// The one who asked for the restart shows how it ended for as long as the restart goes on.
pub(super) fn wait_for_all(
    d: &Derivation<'_>,
    container: &Container,
    newest: Option<&ObservedContainer>,
    status: &mut ContainerStatus,
) {
    let Some(mut end) = status.state.as_ref().and_then(|s| s.terminated.clone()) else { return };
    let asked = restarts_all_after(container, end.exit_code);
    let (reason, message) = match asked {
        true if newest.is_some() => return,
        true => (d.default_reason(), None),
        false if d.restarting_all() => (RESTARTING_ALL, Some(MESSAGE.to_owned())),
        false => return,
    };
    if !asked {
        end.reason = Some(RESTARTING_ALL.into());
    }
    let waiting = ContainerStateWaiting { reason: Some(reason.into()), message };
    status.last_state = Some(ContainerState { terminated: Some(end), ..Default::default() });
    status.state = Some(ContainerState { waiting: Some(waiting), ..Default::default() });
}

impl Derivation<'_> {
    /// A restart of all goes on.
    pub(super) fn restarting_all(&self) -> bool {
        !askers(self.spec, self.state, self.observed).is_empty()
    }
}
