//! What is known of this node and changes while it runs: written by the node loop and by whoever has a
//! signal, read by everybody.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use keelson_core::admission::NodeView;
use keelson_core::node::{NodeObject, host_ips};
use keelson_core::user_namespaces::check_handler;
use keelson_core::volumes::{ImagePart, check_mounts_images};
use keelson_cri::status::RuntimeStatus;
use tokio::sync::watch;

use crate::node::signals::Signals;

pub struct NodeState {
    /// What the node has and is by itself, as admission and the downward API see it. Without a name until it is known.
    own_view: watch::Sender<NodeView>,
    /// The Node object at the apiserver: the one view of it that everybody looks at.
    object: watch::Sender<NodeObject>,
    /// The object's uid, once the node is registered.
    uid: watch::Sender<Option<String>>,
    /// A cloud controller writes the node's addresses.
    external_cloud: bool,
    runtime: watch::Sender<RuntimeFacts>,
    /// What others than the node loop know.
    pub signals: Signals,
}

/// What the runtime says of itself, as far as pods are concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RuntimeFacts {
    /// As container ids are prefixed in a status: containerd, cri-o.
    name: String,
    /// As it says itself. Empty until it has.
    version: String,
    /// The handlers that can mount recursively read-only. The default one has no name.
    recursive_read_only: BTreeSet<String>,
    /// All handlers, each with whether it can give pods users of their own.
    user_namespaces: BTreeMap<String, bool>,
    supplemental_groups_policy: bool,
    /// What keeps its network from being ready.
    network_problem: Option<String>,
}

impl NodeState {
    pub fn new(addresses: Vec<IpAddr>, external_cloud: bool) -> Self {
        let runtime = RuntimeFacts {
            name: "containerd".to_owned(),
            version: String::new(),
            recursive_read_only: BTreeSet::new(),
            user_namespaces: BTreeMap::new(),
            supplemental_groups_policy: false,
            network_problem: None,
        };
        Self {
            own_view: watch::Sender::new(NodeView::default()),
            object: watch::Sender::new(NodeObject::default()),
            uid: watch::Sender::new(None),
            external_cloud,
            runtime: watch::Sender::new(runtime),
            signals: Signals::new(addresses),
        }
    }

    /// What a pod is judged by.
    pub fn admission_view(&self) -> NodeView {
        let own = self.own_view.borrow().clone();
        own.with_object(&self.object.borrow())
    }

    pub fn set_own_view(&self, view: NodeView) {
        self.own_view.send_replace(view);
    }

    /// Returns when it is known what this node has.
    pub async fn known(&self) {
        // The sender lives as long as self.
        let _ = self.own_view.subscribe().wait_for(|view| !view.name.is_empty()).await;
    }

    pub fn allocatable(&self) -> BTreeMap<String, Quantity> {
        self.own_view.borrow().allocatable.clone()
    }

    pub fn object(&self) -> NodeObject {
        self.object.borrow().clone()
    }

    pub fn follow_object(&self) -> watch::Receiver<NodeObject> {
        self.object.subscribe()
    }

    /// Something was heard of the object; `change` returns whether it is news.
    pub fn update_object(&self, change: impl FnOnce(&mut NodeObject) -> bool) {
        self.object.send_if_modified(|object| {
            let news = change(object);
            // While the object is held, so that the two cannot come to differ.
            self.uid.send_if_modified(|uid| {
                let now = object.uid().map(str::to_owned);
                std::mem::replace(uid, now.clone()) != now
            });
            news
        });
    }

    pub fn uid(&self) -> watch::Receiver<Option<String>> {
        self.uid.subscribe()
    }

    /// The node's addresses, primary first.
    pub fn addresses(&self) -> Vec<IpAddr> {
        if self.external_cloud {
            let object = self.object.borrow();
            let status = object.get().and_then(|node| node.status.as_ref());
            let written = host_ips(status.and_then(|s| s.addresses.as_deref()).unwrap_or_default());
            if !written.is_empty() {
                return written;
            }
        }
        self.signals.addresses()
    }

    pub fn set_runtime(&self, name: &str, version: &str) {
        self.runtime.send_modify(|runtime| {
            runtime.name = name.to_owned();
            runtime.version = version.to_owned();
        });
    }

    /// Whether the runtime can mount images as volumes, else what to do.
    pub fn check_mounts_images(&self, part: ImagePart) -> Result<(), String> {
        let runtime = self.runtime.borrow();
        check_mounts_images(&runtime.name, &runtime.version, part)
    }

    pub fn set_runtime_features(&self, status: &RuntimeStatus) {
        let able = status.handlers.iter().filter(|h| h.recursive_read_only_mounts);
        self.runtime.send_modify(|runtime| {
            runtime.recursive_read_only = able.map(|h| h.name.clone()).collect();
            runtime.user_namespaces =
                status.handlers.iter().map(|h| (h.name.clone(), h.user_namespaces)).collect();
            runtime.supplemental_groups_policy =
                status.features.is_some_and(|f| f.supplemental_groups_policy);
        });
    }

    pub fn set_network_problem(&self, problem: Option<String>) {
        self.runtime.send_modify(|runtime| runtime.network_problem = problem);
    }

    /// What keeps the runtime's network from being ready, as far as it has said.
    pub fn network_problem(&self) -> Option<String> {
        self.runtime.borrow().network_problem.clone()
    }

    pub fn runtime_name(&self) -> String {
        self.runtime.borrow().name.clone()
    }

    /// Whether a handler of the runtime can mount recursively read-only.
    pub fn recursive_read_only(&self, handler: &str) -> bool {
        self.runtime.borrow().recursive_read_only.contains(handler)
    }

    /// Whether a handler of the runtime can give a pod users of its own, else why not.
    pub fn check_user_namespaces(&self, handler: &str) -> Result<(), String> {
        let runtime = self.runtime.borrow();
        check_handler(handler, runtime.user_namespaces.iter().map(|(name, able)| (name.as_str(), *able)))
    }

    pub fn supplemental_groups_policy(&self) -> bool {
        self.runtime.borrow().supplemental_groups_policy
    }
}
