//! Logs on stderr: one line an event, for a person or, with --log-format json, for a machine.

use std::io::IsTerminal;

use keelson_core::config::LogFormat;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// klog's verbosity in levels of this program; libraries stay quiet until everything is asked for.
pub(crate) fn start(format: LogFormat, verbosity: u32) {
    let terminal = std::io::stderr().is_terminal();
    // The journal stamps every line itself.
    let journal = std::env::var_os("JOURNAL_STREAM").is_some() && !terminal;
    let registry = tracing_subscriber::registry().with(filter(verbosity));
    let layer = fmt::layer().with_writer(std::io::stderr);
    // Only fails when logging was started before, in which case it goes on as it was.
    let _ = match format {
        LogFormat::Json => registry.with(layer.json().flatten_event(true)).try_init(),
        LogFormat::Text if journal => {
            registry.with(layer.compact().with_ansi(false).without_time()).try_init()
        }
        LogFormat::Text => registry.with(layer.compact().with_ansi(terminal)).try_init(),
    };
}

fn filter(verbosity: u32) -> Targets {
    let (libraries, own) = match verbosity {
        0..=3 => (Level::WARN, Level::INFO),
        4..=5 => (Level::INFO, Level::DEBUG),
        6..=9 => (Level::DEBUG, Level::TRACE),
        _ => (Level::TRACE, Level::TRACE),
    };
    // All of our crates' names start with this.
    Targets::new().with_default(libraries).with_target("keelson", own)
}
