//! Writes this node's object, and tells admission and the downward API what the node has.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node as ApiNode, NodeStatus};
use keelson_apiserver::{Api, ApiError};
use keelson_core::admission::NodeView;
use keelson_core::config::Enforcement;
use keelson_core::node::{
    Complaint, NodeFacts, desired_node, has_rebooted, own_labels, report_is_due, transitions,
};

use crate::node::Node;

pub struct Reporter {
    node: Arc<Node>,
    /// The object that this agent made, or took over, by its uid.
    registered: Option<String>,
    /// When its status was last sent.
    reported_at: Option<Timestamp>,
    /// Whether its first events were sent.
    greeted: bool,
    complaint: Complaint,
}

impl Reporter {
    pub fn new(node: Arc<Node>) -> Self {
        Self { node, registered: None, reported_at: None, greeted: false, complaint: Complaint::default() }
    }

    /// Returns whether the Node is as it should be now.
    pub async fn report(&mut self, facts: &NodeFacts) -> bool {
        let now = Timestamp::now();
        let object = self.node.state.object();
        let desired = desired_node(facts, object.get().map(|node| &**node), now);
        // Without an apiserver the node still knows what it has, and static pods wait for nothing else.
        show(&self.node, facts, desired.status.as_ref());
        let Some(api) = self.node.api.as_ref().map(|a| a.api.clone()) else { return true };
        match self.report_to(&api, facts, now).await {
            Err(error) => {
                let error = error.to_string();
                if self.complaint.failed(&error) {
                    tracing::warn!(error, "the node object is not up to date; will try again");
                }
                false
            }
            Ok(()) => {
                if self.complaint.succeeded() {
                    tracing::info!("the node object is up to date again");
                }
                true
            }
        }
    }

    async fn report_to(&mut self, api: &Api, facts: &NodeFacts, now: Timestamp) -> Result<(), ApiError> {
        let Some(known) = self.registered(api, facts, now).await? else { return Ok(()) };
        let desired = desired_node(facts, Some(&known), now);
        let every = self.node.settings.kubelet.node_status_report_frequency.get();
        let every = SignedDuration::try_from(every).unwrap_or(SignedDuration::from_mins(5));
        let age = self.reported_at.map(|at| now.duration_since(at));
        if !report_is_due(&known, &desired, age, every) {
            return Ok(());
        }
        if has_rebooted(&known, &desired) {
            let boot = &facts.machine.boot_id;
            let message = format!("Node {} has been rebooted, boot id: {boot}", facts.name);
            self.node.node_event(true, "Rebooted", &message);
        }
        match api.patch_node_status(&known, &desired).await {
            Ok(written) => {
                self.reported_at = Some(now);
                report_transitions(&self.node, known.status.as_ref(), desired.status.as_ref());
                if let Some(written) = written {
                    self.node.state.update_object(|object| object.seen(written));
                }
                Ok(())
            }
            Err(error) => {
                if error.is_not_found() {
                    self.node.state.update_object(|object| object.missing());
                }
                Err(error)
            }
        }
    }

    /// The object as it is known, made or taken over first where that is this node's to do. `None`: nobody has made it yet.
    async fn registered(
        &mut self,
        api: &Api,
        facts: &NodeFacts,
        now: Timestamp,
    ) -> Result<Option<Arc<ApiNode>>, ApiError> {
        let object = self.node.state.object();
        if object.uid().is_some() && object.uid() == self.registered.as_deref() {
            return Ok(object.get().cloned());
        }
        if self.registered.take().is_some() {
            tracing::warn!(node = facts.name, "somebody deleted the node object");
        }
        let register = self.node.settings.register_node;
        let known = match object.get() {
            Some(known) if register => {
                api.adopt_node(ApiNode::clone(known), &desired_node(facts, None, now)).await?
            }
            Some(known) => ApiNode::clone(known),
            None if register => api.register_or_adopt(&desired_node(facts, None, now)).await?,
            None => return Ok(None),
        };
        let uid = known.metadata.uid.clone().unwrap_or_default();
        tracing::info!(node = facts.name, uid, "registered");
        self.node.state.update_object(|object| object.seen(known.clone()));
        self.registered = Some(uid);
        self.reported_at = None;
        if !std::mem::replace(&mut self.greeted, true) {
            self.node.node_event(false, "Starting", "Starting kubelet.");
            // Done before anything else was, or the agent would not have started.
            if self.node.settings.kubelet.enforce_node_allocatable.contains(&Enforcement::Pods) {
                let message = "Updated Node Allocatable limit across pods";
                self.node.node_event(false, "NodeAllocatableEnforced", message);
            }
        }
        Ok(Some(Arc::new(known)))
    }
}

fn report_transitions(node: &Node, old: Option<&NodeStatus>, new: Option<&NodeStatus>) {
    let conditions =
        |status: Option<&NodeStatus>| status.and_then(|s| s.conditions.clone()).unwrap_or_default();
    for t in transitions(&node.settings.node_name, &conditions(old), &conditions(new)) {
        node.node_event(false, t.reason, &t.message);
    }
}

/// To admission and the downward API.
fn show(node: &Node, facts: &NodeFacts, status: Option<&NodeStatus>) {
    node.state.set_own_view(NodeView {
        name: node.settings.node_name.clone(),
        labels: own_labels(facts),
        taints: vec![],
        allocatable: status.and_then(|s| s.allocatable.clone()).unwrap_or_default(),
        os: facts.machine.operating_system.clone(),
        allowed_unsafe_sysctls: node.settings.kubelet.allowed_unsafe_sysctls.clone(),
        supplemental_groups_policy: node.state.supplemental_groups_policy(),
        app_armor: facts.machine.app_armor,
    });
}
