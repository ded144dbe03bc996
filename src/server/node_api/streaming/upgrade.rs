//! The head of a request that wants to become a stream.

use http::{HeaderMap, HeaderName, HeaderValue, Request, header};

/// What a caller wants its connection to become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::node_api) enum Wanted {
    Spdy,
    WebSocket,
}

impl Wanted {
    /// A message for a request that cannot be upgraded.
    pub fn of<B>(request: &Request<B>) -> Result<Self, &'static str> {
        let headers = request.headers();
        let asks = headers.get_all(header::CONNECTION).iter().any(|value| {
            value.to_str().is_ok_and(|v| v.split(',').any(|word| word.trim().eq_ignore_ascii_case("upgrade")))
        });
        if !asks || request.version() != http::Version::HTTP_11 {
            return Err("unable to upgrade: missing upgrade headers in request");
        }
        let mut named = headers.get_all(header::UPGRADE).iter();
        let (Some(name), None) = (named.next(), named.next()) else {
            return Err("unable to upgrade: one Upgrade header is needed");
        };
        let has_body = headers.contains_key(header::TRANSFER_ENCODING)
            || headers.get(header::CONTENT_LENGTH).is_some_and(|length| length != "0");
        if has_body {
            return Err("unable to upgrade: a request with a body");
        }
        match name.as_bytes() {
            spdy if spdy.eq_ignore_ascii_case(b"spdy/3.1") => Ok(Self::Spdy),
            websocket if websocket.eq_ignore_ascii_case(b"websocket") => {
                let keys = headers.get_all(header::SEC_WEBSOCKET_KEY).iter().count();
                if keys == 1 {
                    Ok(Self::WebSocket)
                } else {
                    Err("unable to upgrade: one Sec-WebSocket-Key is needed")
                }
            }
            _ => Err("unable to upgrade: this must be SPDY/3.1 or websocket"),
        }
    }
}

/// Only what the upgrade is made of goes from one side to the other; above all no credentials.
pub(super) fn passed_on(headers: &HeaderMap) -> HeaderMap {
    const PASSED: [HeaderName; 7] = [
        header::UPGRADE,
        header::SEC_WEBSOCKET_KEY,
        header::SEC_WEBSOCKET_VERSION,
        header::SEC_WEBSOCKET_PROTOCOL,
        header::SEC_WEBSOCKET_ACCEPT,
        HeaderName::from_static("x-stream-protocol-version"),
        HeaderName::from_static("x-accepted-stream-protocol-versions"),
    ];
    let mut passed = HeaderMap::new();
    for name in PASSED {
        for value in headers.get_all(&name) {
            passed.append(name.clone(), value.clone());
        }
    }
    passed.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    passed
}

#[cfg(test)]
mod tests {
    use super::*;

    type Headers = &'static [(&'static str, &'static str)];

    fn request(headers: Headers) -> Request<()> {
        let mut request = Request::new(());
        for (name, value) in headers {
            request.headers_mut().append(*name, HeaderValue::from_static(value));
        }
        request
    }

    #[test]
    fn whole_upgrades_are_taken_and_malformed_ones_are_not() {
        let cases: &[(Headers, Option<Wanted>)] = &[
            (&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")], Some(Wanted::Spdy)),
            (&[("connection", "keep-alive, upgrade"), ("upgrade", "spdy/3.1")], Some(Wanted::Spdy)),
            (
                &[("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-key", "x")],
                Some(Wanted::WebSocket),
            ),
            (&[], None),
            (&[("upgrade", "SPDY/3.1")], None),
            (&[("connection", "Upgrade")], None),
            (&[("connection", "close"), ("upgrade", "SPDY/3.1")], None),
            (&[("connection", "Upgrade"), ("upgrade", "h2c")], None),
            (&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1"), ("upgrade", "websocket")], None),
            (&[("connection", "Upgrade"), ("upgrade", "websocket")], None),
            (&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1"), ("content-length", "5")], None),
            (&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1"), ("transfer-encoding", "chunked")], None),
        ];
        for (headers, expected) in cases {
            assert_eq!(Wanted::of(&request(headers)).ok(), *expected, "{headers:?}");
        }
    }

    #[test]
    fn credentials_are_not_passed_on() {
        let from = request(&[
            ("authorization", "Bearer secret"),
            ("cookie", "a=b"),
            ("upgrade", "SPDY/3.1"),
            ("x-stream-protocol-version", "v4.channel.k8s.io"),
            ("x-stream-protocol-version", "channel.k8s.io"),
        ]);
        let passed = passed_on(from.headers());
        assert_eq!(passed.len(), 4, "{passed:?}");
        assert!(!passed.contains_key(header::AUTHORIZATION) && !passed.contains_key(header::COOKIE));
    }
}
