//! The Node object and everything that is known about this machine: looked at every few seconds, told when it changed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{NodeRuntimeHandler, NodeRuntimeHandlerFeatures, Taint};
use keelson_apiserver::{Api, RegisteredNode};
use keelson_core::admission::NodeView;
use keelson_core::config::Settings;
use keelson_core::node::{
    Amounts, Capacity, NodeFacts, NodeImage, Reserved, RuntimeCondition, RuntimeState, desired_node,
    desired_status, transitions,
};
use keelson_core::node_api::{Exposure, exposure};
use keelson_cri::CriError;
use keelson_cri::status::{Condition, Handler, RuntimeStatus};
use tokio::sync::watch;

use crate::context::Context;
use crate::machine::MachineFacts;
use crate::mirror::NodeIdentity;

/// How often the runtime is asked whether it is well. It has no way of telling by itself.
const HEARTBEAT: Duration = Duration::from_secs(5);
const HEARTBEAT_WHEN_DOWN: Duration = Duration::from_secs(1);
/// The list of images is long and changes with pulls, which wake us; this is for what others do to it.
const IMAGES_EVERY: Duration = Duration::from_secs(300);

pub struct NodeLoop {
    pub ctx: Arc<Context>,
    pub machine: MachineFacts,
    pub view: watch::Sender<NodeView>,
    pub identity: watch::Sender<Option<NodeIdentity>>,
    pub node_uid: watch::Sender<Option<String>>,
    pub runtime_name: watch::Sender<String>,
    pub runtime_ready: watch::Sender<bool>,
}

struct Known {
    runtime: RuntimeState,
    version: String,
    handlers: Vec<NodeRuntimeHandler>,
    images: Vec<NodeImage>,
    images_read: Option<tokio::time::Instant>,
    registered: Option<RegisteredNode>,
    /// The last complaint about the apiserver, so that it is not said every few seconds.
    complaint: String,
}

impl NodeLoop {
    pub async fn run(self) {
        let mut known = Known {
            runtime: RuntimeState::Unknown,
            version: String::new(),
            handlers: vec![],
            images: vec![],
            images_read: None,
            registered: None,
            complaint: String::new(),
        };
        let mut images = self.ctx.images.subscribe();
        loop {
            self.ask_runtime(&mut known).await;
            let facts = self.facts(&known);
            self.tell(&mut known, &facts).await;
            let pause = if known.runtime.is_ready() { HEARTBEAT } else { HEARTBEAT_WHEN_DOWN };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                Ok(()) = images.changed() => {
                    known.images_read = None;
                    // Pulls come in bursts; one look for all of them is enough.
                    tokio::time::sleep(Duration::from_secs(2)).await;
                    images.mark_unchanged();
                }
            }
        }
    }

    async fn ask_runtime(&self, known: &mut Known) {
        let before = known.runtime.clone();
        match self.ctx.runtime.status().await {
            Ok(status) => {
                self.ctx.pulse.runtime_answered();
                if known.version.is_empty() {
                    self.ask_version(known).await;
                }
                known.handlers = handlers(&status);
                known.runtime = answering(&status);
                self.ctx.note_features(&status);
            }
            Err(e) => known.runtime = down(&e),
        }
        let ready = known.runtime.is_ready();
        self.runtime_ready.send_if_modified(|r| std::mem::replace(r, ready) != ready);
        if before != known.runtime {
            if ready {
                tracing::info!(runtime = known.version, "the runtime and its network are ready");
            } else {
                tracing::warn!(state = ?known.runtime, "the runtime is not ready");
                // After a restart it may be another version.
                known.version.clear();
            }
        }
        let stale = known.images_read.is_none_or(|at| at.elapsed() > IMAGES_EVERY);
        if ready && stale && self.ctx.api.is_some() {
            if let Ok(list) = self.ctx.runtime.list_images().await {
                let most =
                    usize::try_from(self.ctx.settings.kubelet.node_status_max_images).unwrap_or(usize::MAX);
                known.images = node_images(list, most);
            }
            known.images_read = Some(tokio::time::Instant::now());
        }
    }

    async fn ask_version(&self, known: &mut Known) {
        if let Ok(v) = self.ctx.runtime.version().await {
            known.version = format!("{}://{}", v.name, v.version);
            self.runtime_name.send_if_modified(|n| std::mem::replace(n, v.name.clone()) != v.name);
        }
    }

    fn facts(&self, known: &Known) -> NodeFacts {
        let settings = &self.ctx.settings;
        NodeFacts {
            name: settings.node_name.clone(),
            hostname: settings.node_name.clone(),
            addresses: self.ctx.host_ips.borrow().clone(),
            machine: self.machine.machine.clone(),
            runtime_version: known.version.clone(),
            agent_version: agent_version(),
            agent_port: api_port(settings),
            capacity: self.machine.capacity.clone(),
            reserved: reserved(settings, &self.machine.capacity),
            runtime: known.runtime.clone(),
            images: known.images.clone(),
            runtime_handlers: known.handlers.clone(),
            labels: settings.node_labels.clone(),
            register_taints: settings.register_with_taints.iter().map(taint).collect(),
            provider_id: Some(settings.kubelet.provider_id.clone()).filter(|p| !p.is_empty()),
            ..NodeFacts::default()
        }
    }

    async fn tell(&self, known: &mut Known, facts: &NodeFacts) {
        let now = Timestamp::now();
        let Some(api) = self.ctx.api.as_ref().map(|a| a.api.clone()) else {
            let status = desired_status(facts, None, now);
            self.show(facts.labels.clone(), vec![], status.allocatable.unwrap_or_default());
            return;
        };
        if self.view.borrow().name.is_empty() {
            // Even unheard, the node knows what it has, and static pods wait for nothing else.
            let node = desired_node(facts, now);
            let allocatable = node.status.and_then(|s| s.allocatable).unwrap_or_default();
            self.show(node.metadata.labels.unwrap_or_default(), vec![], allocatable);
        }
        if let Err(e) = self.tell_api(&api, known, facts, now).await {
            let text = e.to_string();
            if known.complaint != text {
                tracing::warn!(error = text, "the node object is not up to date; will try again");
            }
            known.complaint = text;
        } else if !std::mem::take(&mut known.complaint).is_empty() {
            tracing::info!("the node object is up to date again");
        }
    }

    async fn tell_api(
        &self,
        api: &Api,
        known: &mut Known,
        facts: &NodeFacts,
        now: Timestamp,
    ) -> Result<(), keelson_apiserver::ApiError> {
        if known.registered.is_none() {
            // A node that is not to register itself waits until somebody else has made its object.
            let registered = if self.ctx.settings.register_node {
                api.register_or_adopt(&desired_node(facts, now)).await?
            } else {
                match api.get_node().await? {
                    Some(node) => RegisteredNode { node, reported_at: None },
                    None => return Ok(()),
                }
            };
            let uid = registered.uid().to_owned();
            tracing::info!(node = facts.name, %uid, "registered");
            self.node_uid.send_replace(Some(uid.clone()));
            self.identity.send_replace(Some(NodeIdentity { name: facts.name.clone(), uid }));
            self.ctx.node_event(false, "Starting", "Starting kubelet.");
            known.registered = Some(registered);
        }
        let Some(registered) = known.registered.as_mut() else { return Ok(()) };
        let old = registered.status();
        let desired = desired_status(facts, Some(&old), now);
        let report_every = self.ctx.settings.kubelet.node_status_report_frequency.get();
        let report_every = SignedDuration::try_from(report_every).unwrap_or(SignedDuration::from_mins(5));
        match api.patch_node_status(registered, &desired, report_every, now).await {
            Ok(true) => {
                let none = vec![];
                let (old, new) =
                    (old.conditions.as_ref().unwrap_or(&none), desired.conditions.as_ref().unwrap_or(&none));
                for t in transitions(&facts.name, old, new) {
                    self.ctx.node_event(false, t.reason, &t.message);
                }
            }
            Ok(false) => {}
            Err(e) if e.is_not_found() => {
                tracing::warn!(node = facts.name, "somebody deleted the node object; registering again");
                known.registered = None;
                self.node_uid.send_replace(None);
                return Err(e);
            }
            Err(e) => return Err(e),
        }
        let node = &registered.node;
        let labels = node.metadata.labels.clone().unwrap_or_default();
        let taints = node.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
        self.show(labels, taints, desired.allocatable.unwrap_or_default());
        Ok(())
    }

    fn show(
        &self,
        labels: BTreeMap<String, String>,
        taints: Vec<Taint>,
        allocatable: BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
    ) {
        let view = NodeView {
            name: self.ctx.settings.node_name.clone(),
            labels,
            taints,
            allocatable,
            os: "linux".into(),
            allowed_unsafe_sysctls: self.ctx.settings.kubelet.allowed_unsafe_sysctls.clone(),
            supplemental_groups_policy: self.ctx.features.borrow().supplemental_groups_policy,
        };
        self.view.send_replace(view);
    }
}

/// Shown as the kubelet's version, which the version skew policy and the scheduler read; the suffix tells who we are.
pub fn agent_version() -> String {
    format!("v1.36.0-keelson.{}", env!("CARGO_PKG_VERSION"))
}

/// Only told where somebody answers.
fn api_port(settings: &Settings) -> i32 {
    match exposure(&settings.kubelet, !settings.standalone) {
        Exposure::Served { .. } => settings.kubelet.port,
        Exposure::Off(_) => 0,
    }
}

fn answering(status: &RuntimeStatus) -> RuntimeState {
    let condition = |c: &Condition| RuntimeCondition {
        ready: c.ok,
        reason: c.reason.clone(),
        message: c.message.clone(),
    };
    RuntimeState::Answering {
        runtime: condition(&status.runtime_ready),
        network: condition(&status.network_ready),
    }
}

fn down(e: &CriError) -> RuntimeState {
    RuntimeState::Down { error: e.to_string() }
}

fn handlers(status: &RuntimeStatus) -> Vec<NodeRuntimeHandler> {
    let one = |h: &Handler| NodeRuntimeHandler {
        name: Some(h.name.clone()),
        features: Some(NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(h.recursive_read_only_mounts),
            user_namespaces: Some(h.user_namespaces),
        }),
    };
    status.handlers.iter().map(one).collect()
}

fn node_images(list: Vec<keelson_cri::proto::Image>, most: usize) -> Vec<NodeImage> {
    let mut images: Vec<_> = list
        .into_iter()
        .map(|i| NodeImage {
            names: i.repo_digests.into_iter().chain(i.repo_tags).collect(),
            size_bytes: i.size,
        })
        .filter(|i| !i.names.is_empty())
        .collect();
    images.sort_by(|a, b| b.size_bytes.cmp(&a.size_bytes).then_with(|| a.names.cmp(&b.names)));
    images.truncate(most);
    images
}

pub fn reserved(settings: &Settings, capacity: &Capacity) -> Reserved {
    let amounts = |list: &BTreeMap<String, keelson_core::config::Amount>| {
        let value = |key: &str| list.get(key).map_or(0, |a| u64::try_from(a.value()).unwrap_or(0));
        let milli = list.get("cpu").map_or(0, |a| u64::try_from(a.milli()).unwrap_or(0));
        Amounts {
            cpu_millis: milli,
            memory_bytes: value("memory"),
            ephemeral_storage_bytes: value("ephemeral-storage"),
        }
    };
    let hard =
        |signal: &str, of: u64| settings.kubelet.eviction_hard.get(signal).map_or(0, |t| t.resolve(of));
    Reserved {
        system: amounts(&settings.kubelet.system_reserved),
        agent: amounts(&settings.kubelet.kube_reserved),
        eviction: Amounts {
            cpu_millis: 0,
            memory_bytes: hard("memory.available", capacity.memory_bytes),
            ephemeral_storage_bytes: hard("nodefs.available", capacity.ephemeral_storage_bytes),
        },
    }
}

fn taint(t: &keelson_core::config::Taint) -> Taint {
    Taint {
        key: t.key.clone(),
        value: Some(t.value.clone()).filter(|v| !v.is_empty()),
        effect: t.effect.as_str().to_owned(),
        ..Taint::default()
    }
}

/// The addresses that the Node shows: those asked for, else the ones of the interface that leads outside.
pub fn node_addresses(asked: &[IpAddr], found: &[IpAddr]) -> Vec<IpAddr> {
    let fixed: Vec<IpAddr> = asked.iter().copied().filter(|a| !a.is_unspecified()).collect();
    if !fixed.is_empty() {
        return fixed;
    }
    let mut all = found.to_vec();
    // 0.0.0.0 and :: only say which family comes first.
    if let Some(first) = asked.first() {
        all.sort_by_key(|a| a.is_ipv4() != first.is_ipv4());
    }
    all
}
