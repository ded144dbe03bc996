//! The daemon: starts the source of leases, then goes round whenever something changed.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::board::Board;
use crate::config::{LeaseSource, NetConf, NetConfError, Options, Pool};
use crate::daemon::Daemon;
use crate::engine::Engine;
use crate::lease::{Annotations, Own, PrefixError};
use crate::monitor::{Changes, ListenError};
use crate::prober::Prober;
use crate::serve::{self, ServeError};
use crate::source::etcd::EtcdError;
use crate::source::kube::{ConnectError, Connection};
use crate::source::{self, Outbox};
use crate::state::State;
use crate::{files, report};

/// What could not be done is tried again after this.
pub(crate) const RETRY: Duration = Duration::from_secs(2);

/// How long a restart waits for etcd; what is different there is told once it is heard.
const PATIENCE: Duration = Duration::from_millis(700);

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot read the network configuration {path}: {source}")]
    Read { path: String, source: std::io::Error },
    #[error("{place}: {error}")]
    NetConf { place: String, error: NetConfError },
    #[error("{0}")]
    Pool(#[from] crate::config::PoolError),
    #[error("--kube-annotation-prefix {0}")]
    Prefix(#[from] PrefixError),
    #[error("{0}")]
    Connect(#[from] ConnectError),
    #[error("{0}")]
    Kernel(#[from] keelson_netkit::Error),
    #[error("{0}")]
    Listen(#[from] ListenError),
    #[error("{0}")]
    Serve(#[from] ServeError),
    #[error("two threads look after the kernel at once")]
    Busy,
    #[error("the thread that looks after the kernel ended: {0}")]
    Thread(#[from] tokio::task::JoinError),
}

/// What the daemon tells whoever started it.
pub struct Hooks {
    /// Called once, when pods can be given addresses and reach each other.
    pub ready: Box<dyn FnOnce() + Send>,
    /// Called after a burst of changes, when memory that was needed for it can go back to the system.
    pub give_back: fn(),
    pub shutdown: CancellationToken,
}

/// Runs until shutdown. What was set up in the kernel stays.
pub async fn run(options: Options, hooks: Hooks) -> Result<(), RunError> {
    let board = Board::new();
    // Everything that can be refused is asked for before the kernel is touched.
    let local = serve::listen(&options.socket)?;
    let health = serve::listen_health(options.health).await?;
    tokio::spawn(serve::serve_local(local, board.clone(), hooks.shutdown.clone()));
    if let Some(listener) = health {
        tokio::spawn(serve::serve_health(listener, board.clone(), hooks.shutdown.clone()));
    }
    let (state, remembered) = State::load(&options.state_dir);
    let conf = tokio::select! {
        conf = network_config(&options, &state) => conf?,
        () = hooks.shutdown.cancelled() => return Ok(()),
    };
    let mut state = state;
    state.network_config = conf.1;
    let conf = conf.0;
    tracing::info!(backend = conf.backend.name(), networks = ?conf.networks().map(|n| n.to_string()).collect::<Vec<_>>(), "overlay starts");

    let (own, wanted) = watch::channel(None);
    let (outbox, inbox) = source::mailbox();
    let connection = start_source(&options, &conf, &state, wanted, outbox).await?;
    if let Some(connection) = connection {
        let source = options.leases.clone();
        tokio::spawn(report::follow(connection, source, board.clone(), hooks.shutdown.clone()));
    }
    let prober = Prober::start(&conf, options.probe_every, &board);
    let engine = Engine::new(options, conf, state, remembered, board.clone())?;
    let shutdown = hooks.shutdown.clone();
    let mut daemon = Daemon::new(engine, prober, Changes::listen()?, inbox, own, board, hooks);
    let result = tokio::select! {
        result = daemon.go_round() => result,
        () = shutdown.cancelled() => Ok(()),
    };
    daemon.finish();
    result
}

/// The configuration, and its text where it has to be kept.
async fn network_config(options: &Options, state: &State) -> Result<(NetConf, Option<String>), RunError> {
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
        // A host that knows the network does not leave its pods waiting for an etcd that is away.
        let patience = if state.network_config.is_some() { PATIENCE } else { Duration::MAX };
        let asked = tokio::time::timeout(patience, source::etcd::network_config(etcd)).await;
        let asked = asked.unwrap_or_else(|_| Err(EtcdError::Content("etcd takes its time".into())));
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
    state: &State,
    own: watch::Receiver<Option<Own>>,
    outbox: Outbox,
) -> Result<Option<Connection>, RunError> {
    match &options.leases {
        LeaseSource::Kube(kube) => {
            let annotations = Annotations::new(&kube.annotation_prefix)?;
            let connection = source::kube::connect(kube, &options.state_dir).await?;
            tokio::spawn(source::kube::follow(connection.clone(), annotations, own, outbox));
            Ok(Some(connection))
        }
        LeaseSource::Etcd(etcd) => {
            let mut memory = source::Memory {
                subnets: state.subnets(),
                published: state.published.iter().filter_map(|text| text.parse().ok()).collect(),
            };
            if memory.subnets.is_empty() {
                // What a flanneld left that ran here before.
                let text = std::fs::read_to_string(&options.subnet_file).unwrap_or_default();
                memory.subnets = files::read_subnet_env(&text);
            }
            tokio::spawn(source::etcd::follow(etcd.clone(), conf.clone(), own, memory, outbox));
            Ok(None)
        }
        LeaseSource::Alone => {
            let mut subnets = Vec::new();
            for (network, division) in [(conf.v4, &conf.division4), (conf.v6, &conf.division6)] {
                if let Some(network) = network {
                    subnets.extend(Pool::new(network, division)?.pick(&[], 0));
                }
            }
            outbox.tell(|view| (view.subnets, view.heard) = (subnets, true));
            outbox.leases(std::iter::empty());
            Ok(None)
        }
    }
}
