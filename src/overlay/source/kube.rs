//! Leases from Kubernetes: every Node with flannel's annotations is one.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use keelson_apiserver::{Api, ApiError, ClientOptions, NodeEvent, NodeFacts};
use serde_json::json;
use tokio::sync::watch;

use super::{Outbox, View};
use crate::config::KubeOptions;
use crate::files;
use crate::lease::{Annotations, Heard, Own};

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

/// The way to the apiserver, which is made anew when this host moves to another address.
#[derive(Clone)]
pub struct Connection {
    options: ClientOptions,
    api: Arc<Mutex<Api>>,
}

impl Connection {
    pub fn api(&self) -> Api {
        self.api.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Connections from an address that this host no longer has carry nothing and take minutes to notice. None of them is
    /// used any more from here on.
    async fn renew(&self) -> Result<Api, ConnectError> {
        let fresh = Api::connect(&self.options).await?;
        *self.api.lock().unwrap_or_else(PoisonError::into_inner) = fresh.clone();
        Ok(fresh)
    }
}

/// Reads the identity; does not contact the server.
pub async fn connect(options: &KubeOptions, state_dir: &Path) -> Result<Connection, ConnectError> {
    let kubeconfig = match &options.kubeconfig {
        Some(path) => path.clone(),
        None => in_pod(options.api_url.as_deref(), state_dir)?,
    };
    let options = ClientOptions::new(kubeconfig, &options.node_name);
    let api = Arc::new(Mutex::new(Api::connect(&options).await?));
    Ok(Connection { options, api })
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
    connection: Connection,
    annotations: Annotations,
    mut own: watch::Receiver<Option<Own>>,
    outbox: Outbox,
) {
    let mut api = connection.api();
    let mut addresses = None;
    let mut events = Box::pin(api.nodes());
    let mut mine: Option<NodeFacts> = None;
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
                    take(event, api.node_name(), &mut mine, &annotations, &outbox);
                }
            },
            changed = own.changed() => match (changed, moved(&mut addresses, &own)) {
                (Err(_), _) => return,
                (Ok(()), false) => {}
                (Ok(()), true) => match connection.renew().await {
                    Ok(fresh) => {
                        tracing::info!("this host has another address; connecting to the apiserver again");
                        api = fresh;
                        events = Box::pin(api.nodes());
                    }
                    Err(error) => tracing::warn!(%error, "cannot connect to the apiserver again"),
                },
            },
            () = retry => retry_at = None,
        }
        let wanted = own.borrow_and_update().clone();
        if let (Some(wanted), Some(mine), None) = (&wanted, &mine, retry_at) {
            let missing = annotations.missing(wanted, &mine.annotations);
            if !missing.is_empty()
                && let Err(error) = api.annotate_node(&missing).await
            {
                tracing::warn!(%error, "cannot publish this host's lease");
                retry_at = Some(tokio::time::Instant::now() + RETRY);
                trouble = Some(error.to_string());
            }
        }
        match synced {
            true => outbox.tell(|view| picture(view, mine.as_ref(), api.node_name(), &annotations, &trouble)),
            false => outbox.tell(|view| view.trouble.clone_from(&trouble)),
        }
    }
}

/// Whether this host's addresses are others than those that were known; the first ones are no change.
fn moved(known: &mut Option<(Option<IpAddr>, Option<IpAddr>)>, own: &watch::Receiver<Option<Own>>) -> bool {
    let Some(now) = own.borrow().as_ref().map(|own| (own.public4, own.public6)) else { return false };
    known.replace(now).is_some_and(|before| before != now)
}

/// Hands on what concerns other nodes, and keeps what concerns this one.
fn take(
    event: NodeEvent,
    own: &str,
    mine: &mut Option<NodeFacts>,
    annotations: &Annotations,
    outbox: &Outbox,
) {
    match event {
        NodeEvent::Synced(all) => {
            *mine = None;
            let mut leases = Vec::new();
            for node in all {
                match node.name == own {
                    true => *mine = Some(node),
                    false => leases.extend(lease(&node, annotations).map(|heard| (node.name.into(), heard))),
                }
            }
            outbox.leases(leases.into_iter());
        }
        NodeEvent::Applied(node) if node.name == own => *mine = Some(node),
        NodeEvent::Applied(node) => outbox.lease(&node.name, lease(&node, annotations)),
        NodeEvent::Deleted(name) if name == own => *mine = None,
        NodeEvent::Deleted(name) => outbox.lease(&name, None),
        NodeEvent::Disconnected(_) => {}
    }
}

fn lease(node: &NodeFacts, annotations: &Annotations) -> Option<Heard> {
    annotations
        .lease(&node.name, &node.annotations, &node.pod_ranges)
        .map_err(|why| format!("node {} is left out: {why}", node.name))
        .transpose()
}

fn picture(
    view: &mut View,
    mine: Option<&NodeFacts>,
    own: &str,
    annotations: &Annotations,
    trouble: &Option<String>,
) {
    (view.heard, view.trouble) = (true, trouble.clone());
    let Some(node) = mine else {
        let none = || format!("there is no node {own}: is NODE_NAME right, and did the node register?");
        view.trouble.get_or_insert_with(none);
        (view.subnets, view.overwrite4, view.overwrite6) = Default::default();
        return;
    };
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
}
