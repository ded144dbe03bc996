//! Ends containers: preStop, then the stop signal, then, when the grace period is over, the end.

use std::time::{Duration, Instant};

use futures::future::join_all;
use k8s_openapi::api::core::v1::LifecycleHandler;
use keelson_core::ids::ContainerId;
use keelson_core::plan::Kill;

use super::Worker;
use super::execute::Stop;
use super::hooks::{self, HookFailure};
use crate::context::Context;
use crate::handler::Place;

/// A process gets at least this long after its preStop hook, however long that took.
const LEAST_GRACE: i64 = 2;

impl Worker {
    pub(super) async fn kill_containers(&mut self, kills: Vec<Kill>) -> Result<(), Stop> {
        let mut jobs = vec![];
        for kill in &kills {
            let first = self.pre_stopped.insert(kill.id.clone());
            if first {
                self.event(false, "Killing", &kill.message, Some(&kill.name));
            }
            let handler = if first { self.pre_stop(kill) } else { None };
            let place = self.place(&kill.id, &kill.name);
            jobs.push((kill.clone(), handler, place));
        }
        let ctx = self.ctx.clone();
        let all = join_all(jobs.into_iter().map(|(kill, handler, place)| one(&ctx, kill, handler, place)));
        let done = match self.unless_urgent(all).await {
            Some(done) => done,
            None => return Err(Stop::Interrupted),
        };
        let mut failed = false;
        for outcome in done {
            if let Some(e) = outcome.hook_failure {
                self.event(true, "FailedPreStopHook", &e.to_string(), Some(&outcome.name));
            }
            if let Err(e) = outcome.stopped {
                failed = true;
                self.event(
                    true,
                    "FailedKillPod",
                    &format!("error killing container: {e}"),
                    Some(&outcome.name),
                );
                let _ = self.checked::<(), _>("stop container", Err(e));
            }
        }
        if failed { Err(Stop::Failed) } else { Ok(()) }
    }

    /// From the spec, or for a pod whose object is gone from what was written into the runtime.
    fn pre_stop(&self, kill: &Kill) -> Option<LifecycleHandler> {
        let from_spec =
            self.container_spec(&kill.name).map(|c| c.lifecycle.as_ref().and_then(|l| l.pre_stop.clone()));
        from_spec.unwrap_or_else(|| {
            let written = self.observed.containers.iter().find(|c| c.id == kill.id)?.pre_stop.as_deref()?;
            serde_json::from_str(written).ok()
        })
    }

    pub(super) fn place(&self, id: &ContainerId, name: &str) -> Option<Place> {
        let container = self.container_spec(name)?;
        let host_network = self.spec().is_some_and(|s| s.host_network == Some(true));
        Some(Place {
            runtime: self.ctx.runtime.clone(),
            container: id.clone(),
            pod_ip: self.pod_ip(host_network),
            spec: std::sync::Arc::new(container.clone()),
        })
    }
}

struct Outcome {
    name: String,
    hook_failure: Option<HookFailure>,
    stopped: Result<(), keelson_cri::CriError>,
}

async fn one(ctx: &Context, kill: Kill, handler: Option<LifecycleHandler>, place: Option<Place>) -> Outcome {
    let began = Instant::now();
    let mut hook_failure = None;
    let mut grace = kill.grace_seconds;
    if let (Some(handler), Some(place)) = (handler, place) {
        let limit = Duration::from_secs(u64::try_from(grace).unwrap_or(1));
        hook_failure = hooks::run(&place, &handler, Some(limit)).await.err();
        let spent = i64::try_from(began.elapsed().as_secs()).unwrap_or(grace);
        grace = (grace - spent).max(LEAST_GRACE);
    }
    let stopped = ctx.runtime.stop_container(&kill.id, grace).await;
    Outcome { name: kill.name, hook_failure, stopped }
}
