//! Ends containers: all preStop hooks at once, then the stop signal, each in its turn, then, when the grace period is over,
//! the end.

use std::collections::BTreeMap;
use std::time::Instant;

use futures::future::join_all;
use k8s_openapi::api::core::v1::LifecycleHandler;
use keelson_core::ids::ContainerId;
use keelson_core::plan::Kill;
use keelson_core::pod::{ActionOutcome, Stopped};
use keelson_core::timeline::{Place as TimedPlace, Step};
use tokio::sync::watch;

use super::{Stop, hooks};
use crate::node::Node;
use crate::probe::handler::Place;
use crate::registry::timelines::Recorder;
use crate::worker::Worker;

/// How far each of those that are stopped together is; `None` while it may run.
type Ends = BTreeMap<ContainerId, watch::Sender<Option<End>>>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Stopped,
    /// It may run on, so those that wait for it are not stopped either.
    Failed,
}

impl Worker {
    pub(super) async fn kill_containers(&mut self, kills: Vec<Kill>) -> Result<(), Stop> {
        let mut jobs = vec![];
        for kill in kills {
            let first = self.state.begin_stop(&kill);
            self.report_events(first.as_slice());
            let hook = first.and_then(|_| Some((self.pre_stop(&kill)?, self.place(&kill.id, &kill.name)?)));
            jobs.push((kill, hook));
        }
        let ends: Ends = jobs.iter().map(|(kill, _)| (kill.id.clone(), watch::Sender::new(None))).collect();
        let node = self.node.clone();
        let all =
            join_all(jobs.into_iter().map(|(kill, hook)| one(&node, &self.recorder, &ends, kill, hook)));
        match self.unless_urgent(all).await {
            Some(stopped) => self.settle(ActionOutcome::ContainersStopped(stopped)),
            None => Err(Stop),
        }
    }

    /// From the spec, or for a pod whose object is gone from what was written into the runtime.
    fn pre_stop(&self, kill: &Kill) -> Option<LifecycleHandler> {
        let spec = self.state.desired.as_ref().and_then(|d| d.container(&kill.name));
        let from_spec = spec.map(|c| c.lifecycle.as_ref().and_then(|l| l.pre_stop.clone()));
        from_spec.unwrap_or_else(|| {
            let written = self.observed.containers.iter().find(|c| c.id == kill.id)?.pre_stop.as_deref()?;
            serde_json::from_str(written).ok()
        })
    }
}

async fn one(
    node: &Node,
    recorder: &Recorder,
    ends: &Ends,
    kill: Kill,
    hook: Option<(LifecycleHandler, Place)>,
) -> Stopped {
    let began = Instant::now();
    let mut pre_stop = Ok(());
    let limit = kill.patience(began.elapsed());
    if let Some((handler, place)) = hook.filter(|_| !limit.is_zero()) {
        let timing = recorder.begin(Step::PreStop, Some(&kill.name), TimedPlace::Hook);
        pre_stop = hooks::run(&place, &handler, Some(limit)).await.map_err(|e| e.to_string());
        timing.ended(&pre_stop);
    }
    let turn = tokio::time::timeout(kill.patience(began.elapsed()), turn(ends, &kill.after)).await;
    let stop = match turn {
        // It is stopped together with what failed, the next time.
        Ok(End::Failed) => {
            end(ends, &kill.id, End::Failed);
            return Stopped { name: kill.name, pre_stop, stop: Ok(()) };
        }
        Ok(End::Stopped) | Err(_) => {
            let timing = recorder.begin(Step::Stopped, Some(&kill.name), TimedPlace::Container);
            let stop = node.runtime.stop_container(&kill.id, kill.signal_window(began.elapsed())).await;
            timing.ended(&stop);
            stop
        }
    };
    end(ends, &kill.id, if stop.is_ok() { End::Stopped } else { End::Failed });
    Stopped { name: kill.name, pre_stop, stop: stop.map_err(|e| e.to_string()) }
}

/// Until all of those before have ended, or one of them could not be stopped.
async fn turn(ends: &Ends, after: &[ContainerId]) -> End {
    for id in after {
        let Some(end) = ends.get(id) else { continue };
        let mut end = end.subscribe();
        // The senders live as long as whoever waits for them.
        let reached = end.wait_for(Option::is_some).await.map(|end| *end);
        if let Ok(Some(End::Failed)) = reached {
            return End::Failed;
        }
    }
    End::Stopped
}

fn end(ends: &Ends, id: &ContainerId, how: End) {
    if let Some(sender) = ends.get(id) {
        sender.send_replace(Some(how));
    }
}
