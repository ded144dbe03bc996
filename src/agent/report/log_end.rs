//! Whether a container whose log is followed still writes.

use std::time::Duration;

use keelson_core::ids::{ContainerId, PodUid};
use keelson_core::observed::ContainerState;
use keelson_cri::Runtime;
use keelson_cri::proto;

use crate::registry::Registry;

/// After the runtime could not be asked, or has said something else than what the worker saw.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// However quiet it is, now and then the runtime is asked anyway.
const ASK_ANYWAY: Duration = Duration::from_secs(300);

/// Returns when this instance does not run any more. Waits for what the pod's worker sees; only when that says so, the
/// runtime is asked, because it has the last word: once it calls a container exited, all of its output is in the log.
pub async fn until_ended(registry: Registry, runtime: Runtime, pod: PodUid, id: ContainerId) {
    let mut changes = registry.running_changes();
    let mut suspicious = false;
    loop {
        changes.mark_unchanged();
        let running = registry
            .get(&pod)
            .and_then(|record| record.running)
            .and_then(|pod| pod.container(&id).map(|c| c.state == ContainerState::Running))
            .unwrap_or(false);
        let mut pause = ASK_ANYWAY;
        if !running || suspicious {
            match runtime.container_status(&id).await {
                Ok(status) if status.state == proto::ContainerState::ContainerRunning as i32 => {
                    pause = if running { ASK_ANYWAY } else { ASK_AGAIN };
                }
                Ok(_) => return,
                Err(e) if e.is_not_found() => return,
                // A runtime that is away says nothing about its containers.
                Err(_) => pause = ASK_AGAIN,
            }
        }
        suspicious = false;
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(pause) => suspicious = true,
        }
    }
}
