//! What can go wrong when the kernel is asked for something.

use rustix::io::Errno;

pub type Result<T> = std::result::Result<T, Error>;

/// A refused or failed request, with what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel answered the request with an error.
    #[error("cannot {op}: {}{}", describe(*errno), note.as_deref().map(|n| format!(" ({n})")).unwrap_or_default())]
    Kernel {
        op: String,
        errno: Errno,
        /// The kernel's own explanation, when it gave one.
        note: Option<String>,
    },
    /// A system call around the request failed.
    #[error("cannot {op}: {}", describe(*errno))]
    System { op: String, errno: Errno },
    /// The kernel's answer could not be understood.
    #[error("cannot {op}: the kernel's answer is malformed: {what}")]
    Malformed { op: String, what: &'static str },
}

impl Error {
    /// The error number behind this error, when there is one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Error::Kernel { errno, .. } | Error::System { errno, .. } => Some(*errno),
            Error::Malformed { .. } => None,
        }
    }

    /// Whether the object that was asked about is not there.
    pub fn is_missing(&self) -> bool {
        matches!(self.errno(), Some(Errno::NODEV | Errno::NOENT | Errno::NXIO | Errno::ADDRNOTAVAIL))
    }

    /// Whether the object that should be made is there already.
    pub fn is_existing(&self) -> bool {
        self.errno() == Some(Errno::EXIST)
    }

    /// Whether somebody else changed the objects between looking and changing.
    pub fn is_conflict(&self) -> bool {
        matches!(
            self.errno(),
            Some(Errno::RESTART | Errno::BUSY | Errno::EXIST | Errno::NOENT | Errno::AGAIN)
        )
    }

    pub(crate) fn nix(op: impl Into<String>, errno: nix::errno::Errno) -> Self {
        Error::system(op, Errno::from_raw_os_error(errno as i32))
    }

    pub(crate) fn system(op: impl Into<String>, errno: Errno) -> Self {
        Error::System { op: op.into(), errno }
    }
}

/// The error number in words, as strerror says it.
fn describe(errno: Errno) -> String {
    let text = std::io::Error::from_raw_os_error(errno.raw_os_error()).to_string();
    match text.rfind(" (os error") {
        Some(cut) => text[..cut].to_owned(),
        None => text,
    }
}
