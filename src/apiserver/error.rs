//! Why a request to the apiserver failed, sorted by what a caller can do about it.

use std::time::Duration;

use http::StatusCode;
use kube::core::Status;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ErrorKind {
    /// The kubeconfig, or a file that it names, cannot be used.
    Config,
    /// No answer: refused, timed out, broken off, or TLS failed. Worth trying again.
    Unreachable,
    Unauthorized,
    Forbidden,
    NotFound,
    AlreadyExists,
    /// Someone else changed or replaced the object first.
    Conflict,
    /// The resourceVersion is too old; only a new list helps.
    Gone,
    TooManyRequests {
        retry_after: Duration,
    },
    /// The server understood and refuses what was sent; sending it again will not help.
    Invalid,
    /// The server failed inside (5xx). Worth trying again.
    Server,
    Other,
}

/// A failed conversation with the apiserver: what was being done, to which object, and why it did not work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{operation}: {message}")]
pub struct ApiError {
    pub kind: ErrorKind,
    /// For people, with the object: "patch status of pod default/web".
    pub operation: String,
    pub message: String,
}

impl ApiError {
    pub(crate) fn new(kind: ErrorKind, operation: &str, message: impl Into<String>) -> Self {
        Self { kind, operation: operation.to_owned(), message: message.into() }
    }

    /// From an answer that is a failure, whose body may or may not be a `Status` object.
    pub(crate) fn from_answer(
        operation: &str,
        code: StatusCode,
        body: &[u8],
        retry_after: Option<Duration>,
    ) -> Self {
        let status = serde_json::from_slice::<Status>(body).ok();
        let message = match &status {
            Some(status) if !status.message.is_empty() => status.message.clone(),
            // A proxy in between answers in prose or HTML: the beginning is enough to recognise it by.
            _ => {
                let text: String = String::from_utf8_lossy(body).trim().chars().take(200).collect();
                if text.is_empty() { code.to_string() } else { format!("{code}: {text}") }
            }
        };
        let asked_for = status
            .as_ref()
            .and_then(|s| s.details.as_ref())
            .map(|d| d.retry_after_seconds)
            .filter(|s| *s > 0);
        let retry_after = retry_after.or(asked_for.map(|seconds| Duration::from_secs(u64::from(seconds))));
        let reason = status.map(|s| s.reason).unwrap_or_default();
        Self::new(kind_of(code, &reason, retry_after), operation, message)
    }

    /// From the `Status` object of an ERROR line inside a watch.
    pub(crate) fn from_status(operation: &str, status: &Status) -> Self {
        let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self::new(kind_of(code, &status.reason, None), operation, status.message.clone())
    }

    /// How long the server asked to be left alone; zero when it did not.
    pub(crate) fn retry_after(&self) -> Duration {
        match self.kind {
            ErrorKind::TooManyRequests { retry_after } => retry_after,
            _ => Duration::ZERO,
        }
    }

    pub fn is_not_found(&self) -> bool {
        self.kind == ErrorKind::NotFound
    }

    pub fn is_conflict(&self) -> bool {
        self.kind == ErrorKind::Conflict
    }

    pub(crate) fn is_already_exists(&self) -> bool {
        self.kind == ErrorKind::AlreadyExists
    }

    /// True when the very same request may succeed later without anyone changing anything.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self.kind, ErrorKind::Unreachable | ErrorKind::TooManyRequests { .. } | ErrorKind::Server)
    }
}

fn kind_of(code: StatusCode, reason: &str, retry_after: Option<Duration>) -> ErrorKind {
    match code {
        StatusCode::UNAUTHORIZED => ErrorKind::Unauthorized,
        StatusCode::FORBIDDEN => ErrorKind::Forbidden,
        StatusCode::NOT_FOUND => ErrorKind::NotFound,
        StatusCode::CONFLICT if reason == "AlreadyExists" => ErrorKind::AlreadyExists,
        StatusCode::CONFLICT => ErrorKind::Conflict,
        StatusCode::GONE => ErrorKind::Gone,
        StatusCode::TOO_MANY_REQUESTS => {
            ErrorKind::TooManyRequests { retry_after: retry_after.unwrap_or(Duration::from_secs(1)) }
        }
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY | StatusCode::PAYLOAD_TOO_LARGE => {
            ErrorKind::Invalid
        }
        // The server says when to come back, so it is overloaded rather than broken.
        code if code.is_server_error() => match retry_after {
            Some(retry_after) => ErrorKind::TooManyRequests { retry_after },
            None => ErrorKind::Server,
        },
        _ => ErrorKind::Other,
    }
}

/// A chain without the prefixes by which the layers of the HTTP client announce each other.
pub(crate) fn plain(chain: &str) -> String {
    const NOISE: [&str; 4] = [
        "ServiceError: ",
        "client error (Connect): ",
        "client error (SendRequest): ",
        ": https://docs.rs/rustls/latest/rustls/manual/_03_howto/index.html#unexpected-eof",
    ];
    NOISE.iter().fold(chain.to_owned(), |text, noise| text.replace(noise, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_sorted_by_what_can_be_done_about_it() {
        let exists = br#"{"kind":"Status","status":"Failure","reason":"AlreadyExists","message":"pods \"a\" already exists","code":409}"#;
        let conflict =
            br#"{"kind":"Status","status":"Failure","reason":"Conflict","message":"uid differs","code":409}"#;
        let busy = br#"{"kind":"Status","status":"Failure","reason":"TooManyRequests","details":{"retryAfterSeconds":7},"code":429}"#;
        type Case<'a> = (&'a str, u16, &'a [u8], Option<u64>, ErrorKind);
        let cases: [Case; 8] = [
            ("a name that is taken", 409, exists, None, ErrorKind::AlreadyExists),
            ("a stale write", 409, conflict, None, ErrorKind::Conflict),
            (
                "asked to wait in the body",
                429,
                busy,
                None,
                ErrorKind::TooManyRequests { retry_after: Duration::from_secs(7) },
            ),
            (
                "asked to wait in the header",
                429,
                b"busy",
                Some(3),
                ErrorKind::TooManyRequests { retry_after: Duration::from_secs(3) },
            ),
            (
                "not asked for how long",
                429,
                b"",
                None,
                ErrorKind::TooManyRequests { retry_after: Duration::from_secs(1) },
            ),
            (
                "overloaded",
                503,
                b"",
                Some(2),
                ErrorKind::TooManyRequests { retry_after: Duration::from_secs(2) },
            ),
            ("broken", 500, b"<html>", None, ErrorKind::Server),
            ("refused content", 422, b"", None, ErrorKind::Invalid),
        ];
        for (name, code, body, header, kind) in cases {
            let code = StatusCode::from_u16(code).unwrap();
            let error = ApiError::from_answer("get pod a/b", code, body, header.map(Duration::from_secs));
            assert_eq!(error.kind, kind, "{name}");
            assert!(error.to_string().starts_with("get pod a/b: "), "{name}: {error}");
        }
    }
}
