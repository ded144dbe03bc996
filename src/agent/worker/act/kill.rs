//! Ends containers: preStop, then the stop signal, then, when the grace period is over, the end.

use std::time::{Duration, Instant};

use futures::future::join_all;
use k8s_openapi::api::core::v1::LifecycleHandler;
use keelson_core::plan::Kill;
use keelson_core::pod::{ActionOutcome, Stopped};

use super::{Stop, hooks};
use crate::node::Node;
use crate::probe::handler::Place;
use crate::worker::Worker;

/// A process gets at least this long after its preStop hook, however long that took.
const LEAST_GRACE: i64 = 2;

impl Worker {
    pub(super) async fn kill_containers(&mut self, kills: Vec<Kill>) -> Result<(), Stop> {
        let mut jobs = vec![];
        for kill in kills {
            let first = self.state.begin_stop(&kill);
            self.report_events(first.as_slice());
            let hook = first.and_then(|_| Some((self.pre_stop(&kill)?, self.place(&kill.id, &kill.name)?)));
            jobs.push((kill, hook));
        }
        let node = self.node.clone();
        let all = join_all(jobs.into_iter().map(|(kill, hook)| one(&node, kill, hook)));
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

async fn one(node: &Node, kill: Kill, hook: Option<(LifecycleHandler, Place)>) -> Stopped {
    let began = Instant::now();
    let mut pre_stop = Ok(());
    let mut grace = kill.grace_seconds;
    if let Some((handler, place)) = hook {
        let limit = Duration::from_secs(u64::try_from(grace).unwrap_or(1));
        pre_stop = hooks::run(&place, &handler, Some(limit)).await.map_err(|e| e.to_string());
        let spent = i64::try_from(began.elapsed().as_secs()).unwrap_or(grace);
        grace = (grace - spent).max(LEAST_GRACE);
    }
    let stop = node.runtime.stop_container(&kill.id, grace).await.map_err(|e| e.to_string());
    Stopped { name: kill.name, pre_stop, stop }
}
