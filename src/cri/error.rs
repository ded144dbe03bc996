//! What can go wrong in a call, said so that whoever must fix it knows which call on which object it was.

use std::error::Error;
use std::time::Duration;

use tonic::{Code, Status};

/// A call that failed, or that was answered with something that cannot be true.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot {operation} {object}: {message} ({code:?})")]
pub struct CriError {
    /// In the imperative, such as "start container".
    pub operation: &'static str,
    /// The id or name that was acted upon; the endpoint where there is no smaller object.
    pub object: String,
    pub code: Code,
    pub kind: ErrorKind,
    /// In the runtime's words, or ours where it gave none.
    pub message: String,
}

/// What a caller can tell apart without reading the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// Nobody answers on the socket. It is tried anew on the next call.
    Unavailable,
    /// No answer in time. The runtime may or may not have done the work.
    Timeout,
    NotFound,
    /// The object is there already, or its name is reserved by a create that is under way or was cut off.
    AlreadyExists,
    /// This runtime does not have the call.
    Unimplemented,
    /// The answer came, and it cannot be true.
    BadAnswer,
    Other,
}

impl CriError {
    pub(crate) fn from_status(operation: &'static str, object: &str, status: &Status) -> Self {
        let mut message = status.message().to_owned();
        // The transport's own text is "transport error"; what really happened is further down the chain.
        let mut cause = status.source();
        while let Some(inner) = cause {
            let text = inner.to_string();
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            cause = inner.source();
        }
        if message.is_empty() {
            message = status.code().description().to_owned();
        }
        Self {
            operation,
            object: object.to_owned(),
            code: status.code(),
            // What the runtime answered has no cause on this side; a broken connection has, whatever its code.
            kind: classify(status.code(), &message, status.source().is_some()),
            message,
        }
    }

    pub(crate) fn timeout(operation: &'static str, object: &str, after: Duration) -> Self {
        Self {
            operation,
            object: object.to_owned(),
            code: Code::DeadlineExceeded,
            kind: ErrorKind::Timeout,
            message: format!("the runtime did not answer within {after:?}"),
        }
    }

    pub(crate) fn bad_answer(operation: &'static str, object: &str, message: String) -> Self {
        Self {
            operation,
            object: object.to_owned(),
            code: Code::Internal,
            kind: ErrorKind::BadAnswer,
            message,
        }
    }

    pub fn is_not_found(&self) -> bool {
        self.kind == ErrorKind::NotFound
    }

    pub fn is_unimplemented(&self) -> bool {
        self.kind == ErrorKind::Unimplemented
    }

    /// The id that holds the name asked for, where the runtime names it. It is the one to adopt, once it shows up in a
    /// list with the right pod uid.
    pub fn reserved_for(&self) -> Option<&str> {
        let (_, rest) = self.message.split_once("is reserved for \"")?;
        let (id, _) = rest.split_once('"')?;
        (!id.is_empty()).then_some(id)
    }
}

/// Runtimes are careless with codes: containerd answers a reserved name and a missing feature with Unknown, so the
/// message is read where the code says nothing.
fn classify(code: Code, message: &str, broken: bool) -> ErrorKind {
    match code {
        _ if broken && !message.contains("Timeout expired") => ErrorKind::Unavailable,
        Code::Unavailable => ErrorKind::Unavailable,
        Code::DeadlineExceeded => ErrorKind::Timeout,
        // How the transport reports a deadline that passed on this side.
        Code::Cancelled if message.contains("Timeout expired") => ErrorKind::Timeout,
        Code::NotFound => ErrorKind::NotFound,
        Code::AlreadyExists => ErrorKind::AlreadyExists,
        Code::Unimplemented => ErrorKind::Unimplemented,
        _ if message.contains("is reserved for") => ErrorKind::AlreadyExists,
        Code::Unknown if message.contains("not implemented") => ErrorKind::Unimplemented,
        Code::Unknown if message.contains("context deadline exceeded") => ErrorKind::Timeout,
        _ => ErrorKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_that_says_nothing_is_helped_by_the_message() {
        let reserved = r#"failed to reserve sandbox name "a_b_c_0": name "a_b_c_0" is reserved for "feed01""#;
        let cases = [
            (Code::Unavailable, "connection refused", ErrorKind::Unavailable),
            (Code::DeadlineExceeded, "", ErrorKind::Timeout),
            (Code::Cancelled, "Timeout expired", ErrorKind::Timeout),
            (Code::Cancelled, "context canceled", ErrorKind::Other),
            (Code::Unknown, "failed to pull: context deadline exceeded", ErrorKind::Timeout),
            (Code::NotFound, "no such container", ErrorKind::NotFound),
            (Code::AlreadyExists, "", ErrorKind::AlreadyExists),
            (Code::Unknown, reserved, ErrorKind::AlreadyExists),
            (Code::Unknown, "not implemented yet", ErrorKind::Unimplemented),
            (Code::Unimplemented, "unknown method", ErrorKind::Unimplemented),
            (Code::Unknown, "disk full", ErrorKind::Other),
        ];
        for (code, message, expected) in cases {
            let error = CriError::from_status("run sandbox of", "default/web", &Status::new(code, message));
            assert_eq!(error.kind, expected, "{code:?} {message:?}");
        }
    }

    #[test]
    fn the_holder_of_a_reserved_name_is_read_from_the_message() {
        let error = |message| CriError::from_status("run sandbox of", "x", &Status::unknown(message));
        assert_eq!(error(r#"name "n" is reserved for "feed01""#).reserved_for(), Some("feed01"));
        assert_eq!(error(r#"name "n" is reserved for """#).reserved_for(), None);
        assert_eq!(error("disk full").reserved_for(), None);
    }

    #[test]
    fn an_error_names_operation_object_and_code() {
        let error = CriError::from_status("start container", "c0ffee", &Status::internal("no memory"));
        assert_eq!(error.to_string(), "cannot start container c0ffee: no memory (Internal)");
    }
}
