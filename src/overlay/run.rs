//! The daemon: starts the source of leases, then goes round whenever something changed.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::{LeaseSource, NetConf, NetConfError, Options, Pool};
use crate::daemon::Daemon;
use crate::engine::Engine;
use crate::lease::{Annotations, Own, PrefixError};
use crate::monitor::{Changes, ListenError};
use crate::prober::Prober;
use crate::serve::{self, ServeError};
use crate::source::{self, View, kube::ConnectError};
use crate::state::State;
use crate::status::Status;
use crate::{files, report};

/// What could not be done is tried again after this.
pub(crate) const RETRY: Duration = Duration::from_secs(2);

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
    #[error("the thread that looks after the kernel ended: {0}")]
    Thread(#[from] tokio::task::JoinError),
}

/// What the daemon tells whoever started it.
pub struct Hooks {
    /// Called once, when pods can be given addresses and reach each other.
    pub ready: Box<dyn FnOnce() + Send>,
    pub shutdown: CancellationToken,
}

/// Runs until shutdown. What was set up in the kernel stays.
pub async fn run(options: Options, hooks: Hooks) -> Result<(), RunError> {
    let (status, told) = watch::channel(Status::default());
    // Everything that can be refused is asked for before the kernel is touched.
    let local = serve::listen(&options.socket)?;
    let health = serve::listen_health(options.health).await?;
    tokio::spawn(serve::serve_local(local, told.clone(), hooks.shutdown.clone()));
    if let Some(listener) = health {
        tokio::spawn(serve::serve_health(listener, told.clone(), hooks.shutdown.clone()));
    }
    let state = State::load(&options.state_dir);
    let conf = tokio::select! {
        conf = network_config(&options, &state) => conf?,
        () = hooks.shutdown.cancelled() => return Ok(()),
    };
    let mut state = state;
    state.network_config = conf.1;
    let conf = conf.0;
    tracing::info!(backend = conf.backend.name(), networks = ?conf.networks().map(|n| n.to_string()).collect::<Vec<_>>(), "overlay starts");

    let (own, wanted) = watch::channel(None);
    let (sender, view) = watch::channel(View::default());
    let api = start_source(&options, &conf, &state, wanted, sender).await?;
    if let Some(api) = api {
        tokio::spawn(report::follow(api, options.leases.clone(), told, hooks.shutdown.clone()));
    }
    let prober = Prober::start(&conf, options.probe_every);
    let engine = Engine::new(options, conf, state)?;
    let daemon = Daemon::new(engine, prober, Changes::listen()?, view, own, status, hooks.ready);
    tokio::select! {
        result = daemon.go_round() => result,
        () = hooks.shutdown.cancelled() => Ok(()),
    }
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
        let (text, place) = match (source::etcd::network_config(etcd).await, &state.network_config) {
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
    view: watch::Sender<View>,
) -> Result<Option<keelson_apiserver::Api>, RunError> {
    match &options.leases {
        LeaseSource::Kube(kube) => {
            let annotations = Annotations::new(&kube.annotation_prefix)?;
            let api = source::kube::connect(kube, &options.state_dir).await?;
            tokio::spawn(source::kube::follow(api.clone(), annotations, own, view));
            Ok(Some(api))
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
            tokio::spawn(source::etcd::follow(etcd.clone(), conf.clone(), own, memory, view));
            Ok(None)
        }
        LeaseSource::Alone => {
            let mut subnets = Vec::new();
            for (network, division) in [(conf.v4, &conf.division4), (conf.v6, &conf.division6)] {
                if let Some(network) = network {
                    subnets.extend(Pool::new(network, division)?.pick(&[], 0));
                }
            }
            let _ = view.send(View { subnets, heard: true, ..View::default() });
            // Kept open: a source that is gone would look like one that ended.
            tokio::spawn(async move { view.closed().await });
            Ok(None)
        }
    }
}
