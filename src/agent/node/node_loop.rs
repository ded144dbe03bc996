//! Observes the runtime and has the Node reported: at once when something changed that it shows, when its object was made or
//! deleted, and by the clock.

use std::sync::Arc;
use std::time::Duration;

use keelson_core::node::{NodeFacts, NodeRuntime, NodeSignals, Registration, Reserved, agent_port};
use tokio::time::Instant;

use crate::node::Node;
use crate::node::reporter::Reporter;
use crate::node::runtime_monitor::RuntimeMonitor;

/// After a report that failed.
const RETRY: Duration = Duration::from_secs(5);
/// Pulls come in bursts; the images are read once for all of them.
const PULLS_SETTLE: Duration = Duration::from_secs(2);

pub async fn run(node: Arc<Node>) {
    let every = node.settings.kubelet.node_status_update_frequency.get();
    let mut runtime = RuntimeMonitor::new(node.clone());
    let mut images = node.images.subscribe();
    let mut signals = node.state.signals.subscribe();
    let mut uid = node.state.uid();
    let mut reporter = Reporter::new(node.clone());
    let mut due = Instant::now();
    loop {
        let mut changed = runtime.observe().await;
        changed |= signals.has_changed().unwrap_or(false) || uid.has_changed().unwrap_or(false);
        if changed || Instant::now() >= due {
            uid.mark_unchanged();
            let latest = signals.borrow_and_update().clone();
            let done = reporter.report(&facts(&node, runtime.latest(), latest)).await;
            let pause = if done { every } else { every.min(RETRY) };
            due = Instant::now() + pause;
        }
        tokio::select! {
            () = tokio::time::sleep(runtime.heartbeat()) => {}
            () = tokio::time::sleep_until(due) => {}
            Ok(()) = signals.changed() => signals.mark_changed(),
            Ok(()) = uid.changed() => uid.mark_changed(),
            Ok(()) = images.changed() => {
                runtime.images_changed();
                tokio::time::sleep(PULLS_SETTLE).await;
                images.mark_unchanged();
            }
        }
    }
}

fn facts(node: &Node, runtime: &NodeRuntime, signals: NodeSignals) -> NodeFacts {
    let (settings, machine) = (&node.settings, &node.machine);
    NodeFacts {
        name: settings.node_name.clone(),
        hostname: settings.node_name.clone(),
        machine: machine.machine.clone(),
        agent_version: agent_version(),
        agent_port: agent_port(settings),
        capacity: machine.capacity.clone(),
        reserved: Reserved::of(&settings.kubelet, &machine.capacity),
        runtime: runtime.clone(),
        signals,
        registration: Registration::of(settings),
    }
}

/// Shown as the kubelet's version, which the version skew policy and the scheduler read; the suffix says who we are.
fn agent_version() -> String {
    format!("v1.36.0-keelson.{}", env!("CARGO_PKG_VERSION"))
}
