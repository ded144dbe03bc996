//! `keelson overlay`: the flags, which are flannel's, and `keelson overlay status`.

mod flags;
mod status;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use keelson_core::config::LogFormat;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use flags::{FLAGS, Flags, Form};

const SOCKET: &str = "/run/keelson/overlay.sock";
const STATE: &str = "/var/lib/keelson/overlay";

pub(crate) fn command() -> Command {
    let status = Command::new("status").about("Show peers, paths and what is wrong, in words").arg(
        Arg::new("output").long("output").short('o').value_parser(["table", "json"]).default_value("table"),
    );
    let socket = Arg::new("socket").long("socket").value_name("PATH").value_parser(value_parser!(PathBuf));
    let mut command = Command::new("overlay")
        .about("Carry pod traffic between hosts, as flannel does and together with it")
        .after_help("Flags are flannel's, and can be given as FLANNELD_* in the environment as well.")
        .arg(socket.default_value(SOCKET).global(true).help("The local socket for `keelson overlay status`"))
        .subcommand(status);
    for (name, form, default, help) in FLAGS {
        let arg = Arg::new(*name).long(*name).help(match default.is_empty() {
            true => (*help).to_owned(),
            false => format!("{help} [default: {default}]"),
        });
        command = command.arg(match form {
            Form::Text => arg.value_name("TEXT"),
            Form::Path => arg.value_name("PATH"),
            Form::Many => arg.value_name("TEXT").action(ArgAction::Append),
            Form::Switch => arg
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .value_parser(["true", "false"]),
        });
    }
    command
}

pub(crate) fn overlay(matches: &ArgMatches) -> anyhow::Result<()> {
    match matches.subcommand() {
        Some(("status", status)) => status::show(matches, status),
        _ => serve(matches),
    }
}

fn serve(matches: &ArgMatches) -> anyhow::Result<()> {
    let flags = Flags { matches };
    let options = flags::options(&flags)?;
    // Packets need no memory, and what else there is to do needs it seldom.
    crate::memory::settle_allocator(1);
    let verbosity = flags.number("v")?;
    let format = match flags.text("log-format").as_deref() {
        None | Some("text") => LogFormat::Text,
        Some("json") => LogFormat::Json,
        Some(other) => bail!("--log-format {other:?}: text or json is expected"),
    };
    crate::logging::start(format, verbosity);
    // Packets have threads of their own, and so has whatever blocks; what is left is waiting.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(4)
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    let result = runtime.block_on(async {
        let shutdown = CancellationToken::new();
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let stop = shutdown.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::info!("overlay stops; what it set up stays");
            crate::notify::stopping();
            stop.cancel();
        });
        tokio::spawn(crate::notify::pat_watchdog(|| Ok(()), shutdown.clone()));
        let hooks = keelson_overlay::Hooks {
            ready: Box::new(crate::notify::ready),
            give_back: crate::memory::give_back,
            shutdown,
        };
        keelson_overlay::run(options, hooks).await.context("the overlay ended")
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}
