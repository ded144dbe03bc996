//! What a test requires of the machine that it runs on, and what becomes of the test where that is missing.
//!
//! `let strace = require!(program("strace"));` gives what is required, or ends the test: as skipped, with the reason and how
//! to have it in one line. With CI=true it fails instead, because whoever asks for everything must not get less without
//! knowing. What a machine cannot have ([`Missing::by_nature`]: its kernel lacks it, say) is skipped there too.
//!
//! The standard harness knows no skipped tests, and it keeps back what a passing one prints. So the line goes to the standard
//! error output itself, once for each reason; or, where KEELSON_LEFT_OUT names a file, into that file for each test, from
//! which `make test` makes its summary.

mod host;
mod part;
mod record;

pub use host::{cgroups, mounted_cgroups, mounts, network_namespaces, program, root};
pub use part::{missing_part, part};
pub use record::left_out;

/// Something that a test requires and this machine does not have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Missing {
    what: String,
    remedy: String,
    by_nature: bool,
}

impl Missing {
    /// `what` is missing; `remedy` says how to have it.
    pub fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into(), by_nature: false }
    }

    /// This machine cannot have it, so nobody is to blame, with CI=true neither. `remedy` says which machine could.
    pub fn by_nature(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into(), by_nature: true }
    }

    /// Whether that is a failure here.
    pub fn is_failure(&self) -> bool {
        !self.by_nature && ci()
    }
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.by_nature { "this machine lacks" } else { "missing" };
        write!(f, "{kind} {}: {}", self.what, self.remedy)
    }
}

impl std::error::Error for Missing {}

/// Whether everything is asked for: then what is missing is a failure.
pub fn ci() -> bool {
    std::env::var("CI").is_ok_and(|v| v == "true")
}

/// Leaves out the test, or a part of it, that runs on this thread. Fails it with CI=true.
#[track_caller]
#[expect(clippy::panic, reason = "it fails the test that called it")]
pub fn skip(missing: &Missing) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    if missing.is_failure() {
        panic!("{test}: {missing} (with CI=true nothing may be left out)");
    }
    left_out(&test, missing);
}

/// What the expression gives, or the end of this test as skipped.
#[macro_export]
macro_rules! require {
    ($required:expr) => {
        match $required {
            Ok(value) => value,
            Err(missing) => {
                $crate::skip(&missing);
                return;
            }
        }
    };
}

#[cfg(test)]
mod tests;
