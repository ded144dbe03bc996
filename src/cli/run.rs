//! `keelson run`: settings, listeners, signals, and the agent in between.

use std::sync::Arc;

use anyhow::Context;
use clap::ArgMatches;
use keelson_agent::pulse::Pulse;
use keelson_agent::registry::Registry;
use keelson_core::config::Settings;
use keelson_cri::Runtime;
use keelson_server::{healthz, local, node_api};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::fd_store::{self, FdStore, Inherited};

/// The work of an agent is waiting; two threads keep one blocked call from stopping the rest.
const WORKERS: usize = 2;

pub(crate) fn run(matches: &ArgMatches) -> anyhow::Result<()> {
    // Before anything else opens a file.
    let inherited = fd_store::inherited();
    let settings = crate::sources::settings(matches)?;
    crate::memory::settle_allocator(2);
    crate::logging::start(settings.kubelet.logging.format, settings.kubelet.logging.verbosity);
    crate::limits::set(&settings.kubelet);
    for (flag, why) in crate::args::IGNORED {
        if matches.value_source(flag).is_some() {
            tracing::warn!(flag, why, "flag taken but not acted on");
        }
    }
    for field in &settings.not_acted_on {
        tracing::warn!(field, "configuration field taken but not acted on, or not in full");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    let result = runtime.block_on(serve(settings, inherited));
    // A blocking call that hangs (a dead mount, a stuck socket) must not keep the process from ending.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    result
}

async fn serve(settings: Settings, inherited: Inherited) -> anyhow::Result<()> {
    let shutdown = CancellationToken::new();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    // Everything that can be refused is asked for before the first pod is touched.
    let local = local::listen(&settings.paths.local_socket).await?;
    let health_listener = healthz::listen(&settings.kubelet).await?;
    let node_api = node_api::listen(&settings).await?;

    let (registry, pulse) = (Registry::default(), Pulse::default());
    let local = tokio::spawn(local::serve(local, registry.clone(), shutdown.clone()));
    if let Some(listener) = health_listener {
        let pulse = pulse.clone();
        tokio::spawn(healthz::serve(listener, Arc::new(move || pulse.check()), shutdown.clone()));
    }
    let watched = pulse.clone();
    tokio::spawn(crate::notify::pat_watchdog(move || watched.check_pod_loop(), shutdown.clone()));
    tokio::spawn(crate::memory::give_back_after_bursts(registry.clone(), shutdown.clone()));

    tracing::info!(
        version = crate::version(),
        node = settings.node_name,
        standalone = settings.standalone,
        runtime = settings.container_runtime_endpoint,
        manifests = ?settings.paths.static_pod_path,
        "keelson starts"
    );
    let stop = shutdown.clone();
    tokio::spawn(async move {
        let signal = tokio::select! {
            _ = terminate.recv() => "TERM",
            _ = interrupt.recv() => "INT",
        };
        tracing::info!(signal, "keelson stops; pods go on running");
        crate::notify::stopping();
        stop.cancel();
    });
    let longest = Runtime::longest_mutating_call(settings.kubelet.runtime_request_timeout.get());
    let ending = shutdown.clone();
    let hooks = keelson_agent::Hooks {
        registry,
        pulse,
        built: Box::new(move |node| {
            if let Some(api) = node_api {
                tokio::spawn(api.serve(node, ending));
            }
        }),
        runtime_calls: Arc::new(FdStore::open()),
        inherited_calls: Box::pin(fd_store::let_calls_finish(inherited, longest)),
        ready: Box::new(|| {
            tracing::info!("ready");
            crate::notify::ready();
        }),
        shutdown: shutdown.clone(),
    };
    let result = keelson_agent::run(settings, hooks).await;
    // However the agent ended: the socket's file goes, and no task outlives it.
    shutdown.cancel();
    let _ = local.await;
    result.context("the agent ended")
}
