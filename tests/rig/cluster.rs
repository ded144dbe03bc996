//! A control plane and the nodes that join it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::{Node as ApiNode, NodeCondition};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::agent::{Agent, Options};
use crate::containerd::{Containerd, Kind};
use crate::control_plane::{ControlPlane, Extent};
use crate::kubectl::Kubectl;
use crate::leftovers;
use crate::objects::wait_for;
use crate::pods::Pods;
use crate::runtime::Runtime;
use crate::suite::{Suite, folder};

pub struct Cluster {
    pub plane: ControlPlane,
    pub client: Client,
    pub kubectl: Kubectl,
    dir: PathBuf,
}

impl Cluster {
    pub async fn start(dir: &Path, extent: Extent) -> Result<Self> {
        let plane = ControlPlane::start(dir, extent).await?;
        let client = plane.client().await?;
        let kubectl = Kubectl::new(plane.admin());
        Ok(Self { plane, client, kubectl, dir: dir.into() })
    }

    /// The pods of the default namespace.
    pub fn pods(&self) -> Pods {
        Pods::new(self.client.clone(), "default")
    }

    /// Starts a runtime and an agent on it, and waits until the node is Ready. `number` keeps its pod network apart.
    pub async fn join(&self, name: &str, number: u8, kind: Kind, config: Value) -> Result<Node> {
        let dir = folder(&self.dir, &format!("node-{number}"))?;
        let containerd = Containerd::start(kind, &dir, number).await?;
        let agent = Agent::start(&dir, self.options(name, &containerd, config)?).await?;
        let runtime = Runtime::connect(&containerd.socket()).await?;
        let node = Node { agent, runtime, containerd };
        self.wait_node_ready(name, true, Duration::from_secs(40)).await?;
        Ok(node)
    }

    /// How an agent joins this cluster as node `name`.
    pub fn options(&self, name: &str, containerd: &Containerd, config: Value) -> Result<Options> {
        Ok(Options {
            node: name.into(),
            runtime_endpoint: containerd.endpoint(),
            kubeconfig: Some(self.plane.node_kubeconfig(name)?),
            client_ca: Some(self.plane.ca_file()),
            serving: Some(self.plane.serving_pair(name)?),
            config,
            flags: vec![],
        })
    }

    /// Waits until the node's Ready condition is `ready` and returns the condition.
    pub async fn wait_node_ready(&self, name: &str, ready: bool, limit: Duration) -> Result<NodeCondition> {
        let nodes: Api<ApiNode> = Api::all(self.client.clone());
        let wanted = if ready { "True" } else { "False" };
        let node = wait_for(&nodes, name, &format!("Ready is {wanted}"), limit, |node| {
            ready_condition(node).is_some_and(|c| c.status == wanted)
        })
        .await?;
        Ok(ready_condition(&node).cloned().unwrap_or_default())
    }

    /// Clears away what a failed case left, so that it does not fail the next ones too. What cannot be cleared is a failure
    /// of its own. Costs one request when all is well.
    pub async fn reset(&self, suite: &mut Suite, node: &mut Node) {
        if let Err(e) = self.clear(node).await {
            suite.fail("clearing away what the last case left", &e);
        }
    }

    async fn clear(&self, node: &mut Node) -> Result<()> {
        let pods = self.pods();
        if node.agent.process_id().is_none() {
            node.agent.restart().await?;
        }
        if pods.list().await?.is_empty() {
            return Ok(());
        }
        let now = DeleteParams::default().grace_period(0);
        pods.api.delete_collection(&now, &ListParams::default()).await?;
        leftovers::wait_clean(node, Duration::from_secs(30)).await
    }

    pub async fn node_object(&self, name: &str) -> Result<ApiNode> {
        Ok(Api::all(self.client.clone()).get(name).await?)
    }
}

fn ready_condition(node: &ApiNode) -> Option<&NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == "Ready")
}

/// One node: an agent on a runtime of its own. The agent is dropped before what it stands on.
pub struct Node {
    pub agent: Agent,
    pub runtime: Runtime,
    pub containerd: Containerd,
}

impl Node {
    /// A node without a control plane.
    pub async fn standalone(dir: &Path, name: &str, number: u8, kind: Kind) -> Result<Self> {
        let dir = folder(dir, &format!("node-{number}"))?;
        let containerd = Containerd::start(kind, &dir, number).await?;
        let options = Options {
            node: name.into(),
            runtime_endpoint: containerd.endpoint(),
            kubeconfig: None,
            client_ca: None,
            serving: None,
            config: json!({}),
            flags: vec![],
        };
        let agent = Agent::start(&dir, options).await?;
        let runtime = Runtime::connect(&containerd.socket()).await?;
        Ok(Self { agent, runtime, containerd })
    }

    /// Connects to the runtime again after it was restarted.
    pub async fn reconnect(&mut self) -> Result<()> {
        self.runtime = Runtime::connect(&self.containerd.socket()).await?;
        Ok(())
    }
}
