//! Logs on stderr: one line an event, for a person or, with --log-format json, for a machine.

use std::io::IsTerminal;

use keelson_core::config::LogFormat;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

/// klog's verbosity in levels of this program; libraries stay quiet until everything is asked for.
pub(crate) fn start(format: LogFormat, verbosity: u32) {
    let builder = fmt().with_env_filter(EnvFilter::new(filter(verbosity))).with_writer(std::io::stderr);
    let terminal = std::io::stderr().is_terminal();
    // The journal stamps every line itself.
    let journal = std::env::var_os("JOURNAL_STREAM").is_some() && !terminal;
    // Only fails when logging was started before, in which case it goes on as it was.
    let _ = match format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text if journal => builder.compact().with_ansi(false).without_time().try_init(),
        LogFormat::Text => builder.compact().with_ansi(terminal).try_init(),
    };
}

fn filter(verbosity: u32) -> &'static str {
    match verbosity {
        0..=3 => {
            "warn,keelson=info,keelson_agent=info,keelson_cri=info,keelson_host=info,keelson_apiserver=info,\
                  keelson_server=info,keelson_cli=info,keelson_core=info"
        }
        4..=5 => {
            "info,keelson=debug,keelson_agent=debug,keelson_cri=debug,keelson_host=debug,\
                  keelson_apiserver=debug,keelson_server=debug,keelson_cli=debug,keelson_core=debug"
        }
        6..=9 => {
            "debug,keelson=trace,keelson_agent=trace,keelson_cri=trace,keelson_host=trace,\
                  keelson_apiserver=trace,keelson_server=trace,keelson_cli=trace,keelson_core=trace"
        }
        _ => "trace",
    }
}
