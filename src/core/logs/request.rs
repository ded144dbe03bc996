//! The query of /containerLogs, with the words and the limits of the API's PodLogOptions.

use jiff::{SignedDuration, Timestamp};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stream {
    #[default]
    All,
    Stdout,
    Stderr,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogRequest {
    pub follow: bool,
    pub previous: bool,
    pub timestamps: bool,
    pub since: Option<Timestamp>,
    pub tail: Option<u64>,
    pub limit: Option<u64>,
    pub stream: Stream,
}

/// Why a query is not served, as the kubelet says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// 400
    #[error(r#"{{"message": "Unable to decode query."}}"#)]
    Unreadable,
    /// 422
    #[error(r#"{{"message": "Invalid request."}}"#)]
    Invalid,
}

impl LogRequest {
    /// `get` gives the value of a parameter. Those with other names are ignored.
    pub fn parse<'a>(get: impl Fn(&str) -> Option<&'a str>, now: Timestamp) -> Result<Self, Refusal> {
        let flag = |name: &str| get(name).is_some_and(is_true);
        let number = |name: &str| get(name).filter(|v| !v.is_empty()).map(integer).transpose();
        // An old word for tailLines.
        let tail = match get("tail").filter(|t| !t.is_empty()) {
            Some("all") => None,
            Some(tail) => Some(integer(tail)?),
            None => number("tailLines")?,
        };
        let limit = number("limitBytes")?;
        let since_seconds = number("sinceSeconds")?;
        let since_time = match get("sinceTime").filter(|t| !t.is_empty() && *t != "null") {
            Some(text) => Some(text.parse::<Timestamp>().map_err(|_| Refusal::Unreadable)?),
            None => None,
        };
        let stream = match get("stream") {
            None | Some("" | "All") => Stream::All,
            Some("Stdout") => Stream::Stdout,
            Some("Stderr") => Stream::Stderr,
            Some(_) => return Err(Refusal::Invalid),
        };
        let bad = tail.is_some_and(|n| n < 0)
            || limit.is_some_and(|n| n < 1)
            || since_seconds.is_some_and(|n| n < 1)
            || (since_seconds.is_some() && since_time.is_some())
            || (stream != Stream::All && tail.is_some());
        if bad {
            return Err(Refusal::Invalid);
        }
        let ago =
            |seconds: i64| now.checked_sub(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MIN);
        Ok(Self {
            follow: flag("follow"),
            previous: flag("previous"),
            timestamps: flag("timestamps"),
            since: since_time.or(since_seconds.map(ago)),
            tail: tail.and_then(|n| u64::try_from(n).ok()),
            limit: limit.and_then(|n| u64::try_from(n).ok()),
            stream,
        })
    }
}

/// A flag that is there is set, unless it says otherwise.
fn is_true(text: &str) -> bool {
    !(text == "0" || text.eq_ignore_ascii_case("false"))
}

fn integer(text: &str) -> Result<i64, Refusal> {
    text.parse().map_err(|_| Refusal::Unreadable)
}
