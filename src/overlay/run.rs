//! Starts the lease source, the prober and the listeners, then runs the daemon.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::{LeaseSource, NetConf, NetConfError, Options, SubnetPool};
use crate::daemon::Daemon;
use crate::engine::Engine;
use crate::kernel_changes::{KernelChanges, KernelChangesError};
use crate::lease::{Annotations, OwnAttributes, PrefixError};
use crate::prober::PeerProber;
use crate::saved_state::SavedState;
use crate::serve::{self, ServeError};
use crate::shared_state::SharedState;
use crate::source::etcd::EtcdError;
use crate::source::kube::{ConnectError, KubeConnection};
use crate::source::{self, SourceSender};
use crate::{files, node_conditions};

/// The delay before a retry.
pub(crate) const RETRY: Duration = Duration::from_secs(2);

/// How long a restart waits for etcd before it uses the saved configuration; a difference is reported later.
const CONFIG_TIMEOUT: Duration = Duration::from_millis(700);

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot read the network configuration {path}: {source}")]
    Read { path: String, source: std::io::Error },
    #[error("{place}: {error}")]
    NetConf { place: String, error: NetConfError },
    #[error("{0}")]
    SubnetPool(#[from] crate::config::PoolError),
    #[error("--kube-annotation-prefix {0}")]
    Prefix(#[from] PrefixError),
    #[error("{0}")]
    Connect(#[from] ConnectError),
    #[error("{0}")]
    Kernel(#[from] keelson_netkit::Error),
    #[error("{0}")]
    Listen(#[from] KernelChangesError),
    #[error("{0}")]
    Serve(#[from] ServeError),
    #[error("two threads use the engine at once")]
    Busy,
    #[error("the engine's thread ended: {0}")]
    Thread(#[from] tokio::task::JoinError),
}

/// Callbacks of the process that runs the daemon.
pub struct Hooks {
    /// Called once, when the pod network is ready.
    pub ready: Box<dyn FnOnce() + Send>,
    /// Called after a burst of changes, to return unused memory to the system.
    pub give_back: fn(),
    pub shutdown: CancellationToken,
}

/// Runs until shutdown. What was set up in the kernel stays.
pub async fn run(options: Options, hooks: Hooks) -> Result<(), RunError> {
    let shared = SharedState::new();
    // Open all listeners before the kernel is touched, because they can fail.
    let socket = serve::listen(&options.socket).await?;
    let health = serve::listen_health(options.health).await?;
    tokio::spawn(serve::serve_status(socket, shared.clone(), hooks.shutdown.clone()));
    if let Some(listener) = health {
        tokio::spawn(serve::serve_health(listener, shared.clone(), hooks.shutdown.clone()));
    }
    let (state, remembered) = SavedState::load(&options.files.state_dir);
    let conf = tokio::select! {
        conf = network_config(&options, &state) => conf?,
        () = hooks.shutdown.cancelled() => return Ok(()),
    };
    let mut state = state;
    state.network_config = conf.1;
    let conf = conf.0;
    tracing::info!(backend = conf.backend.name(), networks = ?conf.networks().map(|n| n.to_string()).collect::<Vec<_>>(), "overlay starts");

    let (own, wanted) = watch::channel(None);
    let (sender, receiver) = source::channel();
    let connection = start_source(&options, &conf, &state, wanted, sender).await?;
    if let Some(connection) = connection {
        let source = options.leases.clone();
        tokio::spawn(node_conditions::publish(connection, source, shared.clone(), hooks.shutdown.clone()));
    }
    let prober = PeerProber::start(&conf, options.probe_every, &shared);
    let engine = Engine::new(options, conf, state, remembered, shared.clone())?;
    let shutdown = hooks.shutdown.clone();
    let mut daemon = Daemon::new(engine, prober, KernelChanges::listen()?, receiver, own, shared, hooks);
    let result = tokio::select! {
        result = daemon.run() => result,
        () = shutdown.cancelled() => Ok(()),
    };
    daemon.flush();
    result
}

/// The configuration, and its text where it has to be saved.
async fn network_config(
    options: &Options,
    state: &SavedState,
) -> Result<(NetConf, Option<String>), RunError> {
    let backend = options.backend.as_deref();
    let LeaseSource::Etcd(etcd) = &options.leases else {
        let path = options.net_config.display().to_string();
        let text = std::fs::read_to_string(&options.net_config)
            .map_err(|source| RunError::Read { path: path.clone(), source })?;
        let conf =
            NetConf::parse(&text, backend).map_err(|error| RunError::NetConf { place: path, error })?;
        return Ok((conf, None));
    };
    loop {
        // With a saved configuration, do not make pods wait for an etcd that is away.
        let timeout = if state.network_config.is_some() { CONFIG_TIMEOUT } else { Duration::MAX };
        let asked = tokio::time::timeout(timeout, source::etcd::network_config(etcd)).await;
        let asked = asked.unwrap_or_else(|_| Err(EtcdError::Content("no answer yet".into())));
        let (text, place) = match (asked, &state.network_config) {
            (Ok(text), _) => (text, "in etcd"),
            (Err(error), Some(kept)) => {
                tracing::warn!(%error, "etcd does not answer; going on with the network as it was last time");
                (kept.clone(), "kept from etcd")
            }
            (Err(error), None) => {
                tracing::warn!(%error, "waiting for the network configuration");
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        let conf = NetConf::parse(&text, backend)
            .map_err(|error| RunError::NetConf { place: place.to_owned(), error })?;
        return Ok((conf, Some(text)));
    }
}

async fn start_source(
    options: &Options,
    conf: &NetConf,
    state: &SavedState,
    own: watch::Receiver<Option<OwnAttributes>>,
    sender: SourceSender,
) -> Result<Option<KubeConnection>, RunError> {
    match &options.leases {
        LeaseSource::Kube(kube) => {
            let annotations = Annotations::new(&kube.annotation_prefix)?;
            let connection = source::kube::connect(kube, &options.files.state_dir).await?;
            tokio::spawn(source::kube::run(connection.clone(), annotations, own, sender));
            Ok(Some(connection))
        }
        LeaseSource::Etcd(etcd) => {
            let mut last = source::LastRegistration {
                subnets: state.subnets(),
                published: state.published.iter().filter_map(|text| text.parse().ok()).collect(),
            };
            if last.subnets.is_empty() {
                // Left by a flanneld that ran here before.
                let text = std::fs::read_to_string(&options.files.subnet_file).unwrap_or_default();
                last.subnets = files::read_subnet_env(&text);
            }
            tokio::spawn(source::etcd::run(etcd.clone(), conf.clone(), own, last, sender));
            Ok(None)
        }
        LeaseSource::Alone => {
            let mut subnets = Vec::new();
            for (network, division) in [(conf.v4, &conf.subnet_range4), (conf.v6, &conf.subnet_range6)] {
                if let Some(network) = network {
                    subnets.extend(SubnetPool::new(network, division)?.pick(&[], 0));
                }
            }
            sender.update_status(|status| (status.subnets, status.synced) = (subnets, true));
            sender.send_snapshot(std::iter::empty());
            Ok(None)
        }
    }
}
