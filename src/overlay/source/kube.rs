//! Leases from Kubernetes: every Node with flannel's annotations is one.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use keelson_apiserver::{Api, ApiError, ClientOptions, NodeNetwork, Update};
use serde_json::json;
use tokio::sync::watch;

use super::{SourceSender, SourceStatus};
use crate::config::KubeOptions;
use crate::files;
use crate::lease::{Annotations, OwnAttributes, ReportedLease};

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

/// The apiserver client, which is replaced when this host moves to another address.
#[derive(Clone)]
pub struct KubeConnection {
    options: ClientOptions,
    api: Arc<Mutex<Api>>,
}

impl KubeConnection {
    pub fn api(&self) -> Api {
        self.api.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the client. Connections from an address that this host no longer has are dead, and that takes minutes to
    /// notice.
    async fn renew(&self) -> Result<Api, ConnectError> {
        let fresh = Api::connect(&self.options).await?;
        *self.api.lock().unwrap_or_else(PoisonError::into_inner) = fresh.clone();
        Ok(fresh)
    }
}

/// Reads the identity; does not contact the server.
pub async fn connect(options: &KubeOptions, state_dir: &Path) -> Result<KubeConnection, ConnectError> {
    let kubeconfig = match &options.kubeconfig {
        Some(path) => path.clone(),
        None => in_pod(options.api_url.as_deref(), state_dir)?,
    };
    let options = ClientOptions::new(kubeconfig, &options.node_name);
    let api = Arc::new(Mutex::new(Api::connect(&options).await?));
    Ok(KubeConnection { options, api })
}

/// A kubeconfig that points at the pod's service account, whose token is read again when it is rotated.
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

/// Watches the nodes and keeps this host's own annotations up to date, until dropped.
pub async fn run(
    connection: KubeConnection,
    annotations: Annotations,
    mut own: watch::Receiver<Option<OwnAttributes>>,
    sender: SourceSender,
) {
    let mut api = connection.api();
    let mut addresses = None;
    let mut updates = Box::pin(api.nodes());
    let mut own_node: Option<NodeNetwork> = None;
    let mut synced = false;
    let mut problem = Some("the apiserver has not answered yet".to_owned());
    let mut retry_at: Option<tokio::time::Instant> = None;
    loop {
        let retry = async {
            match retry_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            update = updates.next() => match update {
                None => return,
                Some(Update::Disconnected(error)) => problem = Some(error.to_string()),
                Some(update) => {
                    problem = None;
                    synced |= matches!(update, Update::Synced { .. });
                    apply(update, api.node_name(), &mut own_node, &annotations, &sender);
                }
            },
            changed = own.changed() => match (changed, moved(&mut addresses, &own)) {
                (Err(_), _) => return,
                (Ok(()), false) => {}
                (Ok(()), true) => match connection.renew().await {
                    Ok(fresh) => {
                        tracing::info!("this host has another address; connecting to the apiserver again");
                        api = fresh;
                        updates = Box::pin(api.nodes());
                    }
                    Err(error) => tracing::warn!(%error, "cannot connect to the apiserver again"),
                },
            },
            () = retry => retry_at = None,
        }
        let wanted = own.borrow_and_update().clone();
        if let (Some(wanted), Some(own_node), None) = (&wanted, &own_node, retry_at) {
            let missing = annotations.missing(wanted, &own_node.annotations);
            if !missing.is_empty()
                && let Err(error) = api.annotate_node(&missing).await
            {
                tracing::warn!(%error, "cannot publish this host's lease");
                retry_at = Some(tokio::time::Instant::now() + RETRY);
                problem = Some(error.to_string());
            }
        }
        match synced {
            true => sender.update_status(|status| {
                fill_status(status, own_node.as_ref(), api.node_name(), &annotations, &problem)
            }),
            false => sender.update_status(|status| status.problem.clone_from(&problem)),
        }
    }
}

/// Whether this host's addresses changed; the first ones are no change.
fn moved(
    known: &mut Option<(Option<IpAddr>, Option<IpAddr>)>,
    own: &watch::Receiver<Option<OwnAttributes>>,
) -> bool {
    let Some(now) = own.borrow().as_ref().map(|own| (own.public4, own.public6)) else { return false };
    known.replace(now).is_some_and(|before| before != now)
}

/// Sends the leases of other nodes, and stores this host's own Node.
fn apply(
    update: Update<NodeNetwork>,
    own: &str,
    own_node: &mut Option<NodeNetwork>,
    annotations: &Annotations,
    sender: &SourceSender,
) {
    match update {
        Update::Synced { items: all, .. } => {
            *own_node = None;
            let mut leases = Vec::new();
            for node in all {
                match node.name == own {
                    true => *own_node = Some(node),
                    false => {
                        leases.extend(lease(&node, annotations).map(|synced| (node.name.into(), synced)))
                    }
                }
            }
            sender.send_snapshot(leases.into_iter());
        }
        Update::Applied(node) if node.name == own => *own_node = Some(node),
        Update::Applied(node) => sender.send_lease(&node.name, lease(&node, annotations)),
        Update::Deleted(node) if node.name == own => *own_node = None,
        Update::Deleted(node) => sender.send_lease(&node.name, None),
        Update::Disconnected(_) => {}
    }
}

fn lease(node: &NodeNetwork, annotations: &Annotations) -> Option<ReportedLease> {
    annotations
        .lease(&node.name, &node.annotations, &node.pod_ranges)
        .map_err(|why| format!("node {} is left out: {why}", node.name))
        .transpose()
}

fn fill_status(
    status: &mut SourceStatus,
    own_node: Option<&NodeNetwork>,
    own: &str,
    annotations: &Annotations,
    problem: &Option<String>,
) {
    (status.synced, status.problem) = (true, problem.clone());
    let Some(node) = own_node else {
        let none = || format!("there is no node {own}: is NODE_NAME right, and did the node register?");
        status.problem.get_or_insert_with(none);
        (status.subnets, status.overwrite4, status.overwrite6) = Default::default();
        return;
    };
    match annotations.subnets(&node.pod_ranges) {
        Ok(subnets) => status.subnets = subnets,
        Err(why) => status.problem = Some(format!("node {own}: {why}")),
    }
    let (v4, v6) = annotations.overwrites(&node.annotations);
    status.overwrite4 = v4.and_then(|text| text.parse().ok());
    status.overwrite6 = v6.and_then(|text| text.parse().ok());
    if status.subnets.is_empty() && status.problem.is_none() {
        status.problem = Some(format!(
            "node {own} has no podCIDR yet: does the controller manager run with --allocate-node-cidrs?"
        ));
    }
}
