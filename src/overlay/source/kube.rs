//! Leases from Kubernetes: every Node with flannel's annotations is one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt as _;
use keelson_apiserver::{Api, ApiError, ClientOptions, NodeEvent, NodeFacts};
use serde_json::json;
use tokio::sync::watch;

use super::View;
use crate::config::KubeOptions;
use crate::files;
use crate::lease::{Annotations, Own};

const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const RETRY: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("{0}")]
    Api(#[from] ApiError),
    #[error(
        "not in a pod and no --kubeconfig-file given: name a kubeconfig, or run where KUBERNETES_SERVICE_HOST is set"
    )]
    NoIdentity,
    #[error("{0}")]
    Write(#[from] files::WriteError),
}

/// Reads the identity; does not contact the server.
pub async fn connect(options: &KubeOptions, state_dir: &Path) -> Result<Api, ConnectError> {
    let kubeconfig = match &options.kubeconfig {
        Some(path) => path.clone(),
        None => in_pod(options.api_url.as_deref(), state_dir)?,
    };
    Ok(Api::connect(&ClientOptions::new(kubeconfig, &options.node_name)).await?)
}

/// A kubeconfig that points at the pod's service account, whose token is read anew when it was replaced.
fn in_pod(api_url: Option<&str>, state_dir: &Path) -> Result<PathBuf, ConnectError> {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let server = match (api_url, variable("KUBERNETES_SERVICE_HOST"), variable("KUBERNETES_SERVICE_PORT")) {
        (Some(url), _, _) => url.to_owned(),
        (None, Some(host), port) if host.contains(':') => {
            format!("https://[{host}]:{}", port.as_deref().unwrap_or("443"))
        }
        (None, Some(host), port) => format!("https://{host}:{}", port.as_deref().unwrap_or("443")),
        (None, None, _) => return Err(ConnectError::NoIdentity),
    };
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "pod",
        "contexts": [{"name": "pod", "context": {"cluster": "pod", "user": "pod"}}],
        "clusters": [{"name": "pod", "cluster":
            {"server": server, "certificate-authority": format!("{SERVICE_ACCOUNT}/ca.crt")}}],
        "users": [{"name": "pod", "user": {"tokenFile": format!("{SERVICE_ACCOUNT}/token")}}],
    });
    let path = state_dir.join("kubeconfig");
    files::replace(&path, config.to_string().as_bytes(), 0o600)?;
    Ok(path)
}

/// Follows the nodes, and keeps this host's own annotations as they should be, until dropped.
pub async fn follow(
    api: Api,
    annotations: Annotations,
    mut own: watch::Receiver<Option<Own>>,
    view: watch::Sender<View>,
) {
    let mut events = Box::pin(api.nodes());
    let mut nodes: BTreeMap<String, NodeFacts> = BTreeMap::new();
    let mut synced = false;
    let mut trouble = Some("the apiserver has not answered yet".to_owned());
    let mut retry_at: Option<tokio::time::Instant> = None;
    loop {
        let retry = async {
            match retry_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            event = events.next() => match event {
                None => return,
                Some(NodeEvent::Disconnected(why)) => trouble = Some(why),
                Some(event) => {
                    trouble = None;
                    synced |= matches!(event, NodeEvent::Synced(_));
                    apply(&mut nodes, event, &annotations);
                }
            },
            changed = own.changed() => if changed.is_err() { return },
            () = retry => retry_at = None,
        }
        let wanted = own.borrow_and_update().clone();
        let mine = nodes.get(api.node_name());
        if let (Some(wanted), Some(mine), None) = (&wanted, mine, retry_at) {
            let missing = annotations.missing(wanted, &mine.annotations);
            if !missing.is_empty()
                && let Err(error) = api.annotate_node(&missing).await
            {
                tracing::warn!(%error, "cannot publish this host's lease");
                retry_at = Some(tokio::time::Instant::now() + RETRY);
                trouble = Some(error.to_string());
            }
        }
        if synced {
            let told = picture(&nodes, api.node_name(), &annotations, trouble.clone());
            view.send_if_modified(|now| {
                now != &told && {
                    *now = told;
                    true
                }
            });
        } else if let Some(why) = &trouble {
            view.send_modify(|now| now.trouble = Some(why.clone()));
        }
    }
}

/// Keeps of each node only what matters here.
fn apply(nodes: &mut BTreeMap<String, NodeFacts>, event: NodeEvent, annotations: &Annotations) {
    let keep = |nodes: &mut BTreeMap<String, NodeFacts>, mut node: NodeFacts| {
        node.annotations.retain(|name, _| annotations.is_ours(name));
        nodes.insert(node.name.clone(), node);
    };
    match event {
        NodeEvent::Synced(all) => {
            nodes.clear();
            all.into_iter().for_each(|node| keep(nodes, node));
        }
        NodeEvent::Applied(node) => keep(nodes, node),
        NodeEvent::Deleted(name) => drop(nodes.remove(&name)),
        NodeEvent::Disconnected(_) => {}
    }
}

fn picture(
    nodes: &BTreeMap<String, NodeFacts>,
    own: &str,
    annotations: &Annotations,
    trouble: Option<String>,
) -> View {
    let mut view = View { trouble, heard: true, ..View::default() };
    for node in nodes.values() {
        if node.name == own {
            match annotations.subnets(&node.pod_ranges) {
                Ok(subnets) => view.subnets = subnets,
                Err(why) => view.trouble = Some(format!("node {own}: {why}")),
            }
            let (v4, v6) = annotations.overwrites(&node.annotations);
            view.overwrite4 = v4.and_then(|text| text.parse().ok());
            view.overwrite6 = v6.and_then(|text| text.parse().ok());
            if view.subnets.is_empty() && view.trouble.is_none() {
                view.trouble = Some(format!(
                    "node {own} has no podCIDR yet: does the controller manager run with --allocate-node-cidrs?"
                ));
            }
            continue;
        }
        match annotations.lease(&node.name, &node.annotations, &node.pod_ranges) {
            Ok(Some(lease)) => view.leases.push(lease),
            Ok(None) => {}
            Err(why) => view.complaints.push(format!("node {} is left out: {why}", node.name)),
        }
    }
    if !nodes.contains_key(own) && view.trouble.is_none() {
        view.trouble =
            Some(format!("there is no node {own}: is NODE_NAME right, and did the node register?"));
    }
    view
}
