//! Holds every container to the CPUs that it is to run on: when somebody was given CPUs, or gave them back, those of all
//! others change.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use keelson_core::cpuset::CpuSet;
use keelson_core::ids::{ContainerId, PodUid};
use keelson_cri::proto::LinuxContainerResources;
use keelson_host::machine::{Roots, online_cpus};

use crate::node::Node;

/// CPUs of a container that are offline.
type Missing = (PodUid, String, CpuSet);

pub async fn run(node: Arc<Node>) {
    if !node.managers.binds_cpus() {
        return std::future::pending().await;
    }
    let every = node.settings.kubelet.cpu_manager_reconcile_period.get();
    let (mut given, mut running) = (node.managers.changes(), node.registry.running_changes());
    // What a container was last told, for runtimes that do not say what they hold it to.
    let mut told: HashMap<ContainerId, String> = HashMap::new();
    let mut missing = BTreeSet::new();
    loop {
        given.mark_unchanged();
        running.mark_unchanged();
        release_ended(&node);
        let online = online_cpus(&Roots::default());
        missing = say_missing(&node, online.as_ref(), missing);
        hold(&node, online.as_ref(), &mut told).await;
        tokio::select! {
            _ = given.changed() => {}
            _ = running.changed() => {}
            () = tokio::time::sleep(every) => {}
        }
    }
}

/// A pod that has ended stays in its status only; its CPUs are free.
fn release_ended(node: &Node) {
    for pod in node.registry.running() {
        let status = node.registry.get(&pod.uid).and_then(|record| record.status);
        let phase = status.as_ref().and_then(|s| s.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) && pod.running().next().is_none() {
            node.managers.release(&pod.uid);
        }
    }
}

/// A CPU that went offline is missed by the container that has it for itself. It gets no other: they are somebody's.
fn say_missing(node: &Node, online: Option<&CpuSet>, said: BTreeSet<Missing>) -> BTreeSet<Missing> {
    let Some(online) = online else { return said };
    let missing: BTreeSet<Missing> = node.managers.on_others_than(online).into_iter().collect();
    for (uid, container, cpus) in missing.difference(&said) {
        tracing::warn!(%uid, container, %cpus, "CPUs that it has for itself are offline; it runs on the others, or where its pod may if there are none");
    }
    missing
}

async fn hold(node: &Node, online: Option<&CpuSet>, told: &mut HashMap<ContainerId, String>) {
    let mut here = HashMap::new();
    for pod in node.registry.running() {
        for container in pod.running() {
            let Some(wanted) = node.managers.binding(&pod.uid, &container.name).cpus else { continue };
            // The kernel refuses a set that it has nothing of, and some runtimes one that has anything else.
            let there = online.map(|online| wanted.intersection(online)).filter(|there| !there.is_empty());
            let wanted = there.unwrap_or(wanted).to_string();
            let held = told.remove(&container.id).or_else(|| container.cpuset.clone());
            if held.as_ref() == Some(&wanted) {
                here.insert(container.id.clone(), wanted);
                continue;
            }
            let resources = LinuxContainerResources { cpuset_cpus: wanted.clone(), ..Default::default() };
            match node.runtime.update_container_resources(&container.id, resources).await {
                Ok(()) => drop(here.insert(container.id.clone(), wanted)),
                Err(error) => {
                    tracing::warn!(pod = pod.name, container = container.name, cpus = wanted, %error, "not held to its CPUs yet");
                }
            }
        }
    }
    *told = here;
}
