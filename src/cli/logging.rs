//! Logs on stderr: one line an event, for a person or, with --log-format json, for a machine.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

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
    let layer = fmt::layer().with_writer(|| OneLine(std::io::stderr()));
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

/// Keeps an event on its line: what a container, a runtime or a server said may have line breaks, and must not look like
/// events of ours. The layer writes each event at once.
struct OneLine<W>(W);

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.0.write_all(&one_line(event))?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn one_line(event: &[u8]) -> Cow<'_, [u8]> {
    let is_break = |byte: &u8| matches!(byte, b'\n' | b'\r');
    let (text, end) = match event.split_last() {
        Some((b'\n', text)) => (text, &b"\n"[..]),
        _ => (event, &b""[..]),
    };
    if !text.iter().any(is_break) {
        return Cow::Borrowed(event);
    }
    let mut line = Vec::with_capacity(event.len() + 16);
    for byte in text {
        match byte {
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\r' => line.extend_from_slice(b"\\r"),
            byte => line.push(*byte),
        }
    }
    line.extend_from_slice(end);
    Cow::Owned(line)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_others_say_stays_on_the_line_of_its_event() {
        let written = Written::default();
        let to = written.clone();
        let layer = fmt::layer().compact().with_ansi(false).without_time();
        let log = tracing_subscriber::registry().with(layer.with_writer(move || OneLine(to.clone())));
        tracing::subscriber::with_default(log, || {
            let said = "no\r\nERROR keelson: all pods are gone\n";
            tracing::warn!(error = said, "probe failed: {said}");
            tracing::info!("next");
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("probe failed: no\\r\\nERROR keelson: all pods are gone\\n"), "{text}");
        assert!(text.ends_with("next\n"), "{text}");
    }

    #[test]
    fn a_line_without_breaks_is_written_as_it_is() {
        for line in ["", "\n", "all is well\n", "cut off"] {
            assert!(matches!(one_line(line.as_bytes()), Cow::Borrowed(same) if same == line.as_bytes()));
        }
    }
}
