//! HTTP as probes and hooks speak it: where a request goes, which redirects are followed, and what an answer means.

use super::Outcome;

/// So many requests are sent at most, the first one included.
const MOST_REQUESTS: usize = 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpTarget {
    pub tls: bool,
    /// A name or an address; the latter without brackets.
    pub host: String,
    pub port: u16,
    /// Host and port as they were written: what the server is told unless the pod names another host.
    pub authority: String,
    /// With the query, in the characters that a request may have.
    pub path: String,
}

/// What follows an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AfterAnswer {
    /// It is the last one.
    Judge,
    /// `keeps_host`: it says nothing about the host, so a Host header that the pod names stays.
    Follow { to: HttpTarget, keeps_host: bool },
    /// There is no way to go on, and the answer is none.
    Fail(String),
}

/// 2xx is success. 3xx is one too, since the container has answered; that it sends elsewhere is worth an event.
pub fn judge_http(status: u16, body: &[u8]) -> Outcome {
    match status {
        200..300 => Outcome::Success,
        300..400 => {
            let body = String::from_utf8_lossy(body);
            Outcome::Warning(format!("Probe terminated redirects, Response body: {body}"))
        }
        // Without the body, which may hold what is nobody's business.
        _ => Outcome::Failure(format!("HTTP probe failed with statuscode: {status}")),
    }
}

/// A redirect is followed as long as it stays on the host that the first request went to; port and scheme may differ.
/// `sent` is how many requests have been sent.
pub fn after_answer(
    first: &HttpTarget,
    at: &HttpTarget,
    sent: usize,
    status: u16,
    location: &str,
) -> AfterAnswer {
    if !matches!(status, 301 | 302 | 303 | 307 | 308) || location.is_empty() {
        return AfterAnswer::Judge;
    }
    let reference = Reference::parse(location);
    let target = match at.join(&reference) {
        Ok(target) => target,
        Err(why) => return AfterAnswer::Fail(format!("failed to parse Location header {location:?}: {why}")),
    };
    if target.host != first.host {
        return AfterAnswer::Judge;
    }
    if let Some(scheme) = reference.scheme.filter(|s| !is_http(s)) {
        return AfterAnswer::Fail(format!("unsupported protocol scheme {scheme:?}"));
    }
    if sent >= MOST_REQUESTS {
        return AfterAnswer::Fail(format!("stopped after {MOST_REQUESTS} redirects"));
    }
    AfterAnswer::Follow { to: target, keeps_host: reference.scheme.is_none() }
}

impl HttpTarget {
    pub fn new(tls: bool, host: &str, port: u16, path: &str) -> Self {
        let authority =
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let path = path.split_once('#').map_or(path, |(before, _)| before);
        let slash = if path.starts_with('/') { "" } else { "/" };
        Self { tls, host: host.to_owned(), port, authority, path: encoded(&format!("{slash}{path}")) }
    }

    pub fn url(&self) -> String {
        format!("{}://{}{}", if self.tls { "https" } else { "http" }, self.authority, self.path)
    }

    fn join(&self, reference: &Reference<'_>) -> Result<Self, &'static str> {
        let tls = reference.scheme.map_or(self.tls, |s| s.eq_ignore_ascii_case("https"));
        let query = reference.query.map(|q| format!("?{q}")).unwrap_or_default();
        if reference.scheme.is_some() || reference.authority.is_some() {
            let authority = reference.authority.unwrap_or_default();
            let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            let (host, port) = split_port(authority)?;
            let port = port.unwrap_or(if tls { 443 } else { 80 });
            let path = encoded(&format!("{}{query}", without_dots(reference.path)));
            return Ok(Self { tls, host: host.to_owned(), port, authority: authority.to_owned(), path });
        }
        let (own_path, own_query) = self.path.split_at(self.path.find('?').unwrap_or(self.path.len()));
        let path = match reference.path {
            "" if reference.query.is_none() => format!("{own_path}{own_query}"),
            "" => format!("{own_path}{query}"),
            absolute if absolute.starts_with('/') => format!("{}{query}", without_dots(absolute)),
            relative => {
                let folder = own_path.rsplit_once('/').map_or("", |(folder, _)| folder);
                format!("{}{query}", without_dots(&format!("{folder}/{relative}")))
            }
        };
        Ok(Self { path: encoded(&path), ..self.clone() })
    }
}

/// What a Location header says, in its parts (RFC 3986).
struct Reference<'a> {
    scheme: Option<&'a str>,
    authority: Option<&'a str>,
    path: &'a str,
    query: Option<&'a str>,
}

impl<'a> Reference<'a> {
    fn parse(text: &'a str) -> Self {
        let text = text.split_once('#').map_or(text, |(before, _)| before);
        let (text, query) =
            text.split_once('?').map_or((text, None), |(before, query)| (before, Some(query)));
        let letters = |s: &str| s.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
        let is_scheme = |s: &str| s.starts_with(|c: char| c.is_ascii_alphabetic()) && letters(s);
        let (scheme, rest) = match text.split_once(':').filter(|(scheme, _)| is_scheme(scheme)) {
            Some((scheme, rest)) => (Some(scheme), rest),
            None => (None, text),
        };
        let (authority, path) = match rest.strip_prefix("//") {
            Some(rest) => {
                let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                (Some(authority), path)
            }
            None => (None, rest),
        };
        Self { scheme, authority, path, query }
    }
}

fn is_http(scheme: &str) -> bool {
    ["http", "https"].iter().any(|s| scheme.eq_ignore_ascii_case(s))
}

fn split_port(authority: &str) -> Result<(&str, Option<u16>), &'static str> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or("an address has no closing bracket")?;
            (host, rest.strip_prefix(':').unwrap_or_default())
        }
        None => authority.split_once(':').unwrap_or((authority, "")),
    };
    match port {
        "" => Ok((host, None)),
        port => port.parse().map(|port| (host, Some(port))).map_err(|_| "its port is no number up to 65535"),
    }
}

/// `.` and `..` taken out of an absolute path.
fn without_dots(path: &str) -> String {
    let mut parts: Vec<&str> = vec![];
    for part in path.split('/').skip(1) {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let folder = path.ends_with("/.") || path.ends_with("/..");
    format!("/{}{}", parts.join("/"), if folder && !parts.is_empty() { "/" } else { "" })
}

/// What may not stand in a request's first line, percent-encoded; the rest as it is.
fn encoded(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte) {
            out.push(byte.into());
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> HttpTarget {
        HttpTarget::new(false, "10.1.2.3", 8080, "/a/b?q=1")
    }

    fn follow(status: u16, location: &str) -> String {
        match after_answer(&target(), &target(), 1, status, location) {
            AfterAnswer::Judge => "judge".into(),
            AfterAnswer::Follow { to, keeps_host } => {
                format!("{}{}", to.url(), if keeps_host { "" } else { ", other host header" })
            }
            AfterAnswer::Fail(why) => format!("fail: {why}"),
        }
    }

    #[test]
    fn redirects_are_followed_on_the_same_host_only() {
        for (name, location, expected) in [
            ("a path", "/healthz", "http://10.1.2.3:8080/healthz"),
            ("a path with a query", "/healthz?full=1#top", "http://10.1.2.3:8080/healthz?full=1"),
            ("a name beside this one", "c", "http://10.1.2.3:8080/a/c"),
            ("a folder up", "../c/./d", "http://10.1.2.3:8080/c/d"),
            ("further up than there is", "/../../c/..", "http://10.1.2.3:8080/"),
            ("another query", "?q=2", "http://10.1.2.3:8080/a/b?q=2"),
            ("a place on the same page", "#top", "http://10.1.2.3:8080/a/b?q=1"),
            ("another port", "http://10.1.2.3:9090/x", "http://10.1.2.3:9090/x, other host header"),
            ("TLS, the usual port", "https://10.1.2.3", "https://10.1.2.3/, other host header"),
            ("the same scheme", "//10.1.2.3:9090/x", "http://10.1.2.3:9090/x"),
            ("with a user", "http://me@10.1.2.3/x", "http://10.1.2.3/x, other host header"),
            ("characters that no request may have", "/ü x", "http://10.1.2.3:8080/%C3%BC%20x"),
            ("another host", "http://0.0.0.0/", "judge"),
            ("another host, without a scheme", "//0.0.0.0/", "judge"),
            ("a user that looks like this host", "http://10.1.2.3@0.0.0.0/", "judge"),
            ("no host", "mailto:10.1.2.3", "judge"),
            ("nowhere", "", "judge"),
            ("a protocol that is not spoken", "ftp://10.1.2.3/", "fail: unsupported protocol scheme \"ftp\""),
            (
                "a port that is none",
                "http://10.1.2.3:http/",
                "fail: failed to parse Location header \"http://10.1.2.3:http/\": its port is no number up to 65535",
            ),
        ] {
            assert_eq!(follow(302, location), expected, "{name}");
        }
    }

    #[test]
    fn only_answers_that_redirect_are_followed() {
        for (status, followed) in [
            (200, false),
            (300, false),
            (301, true),
            (302, true),
            (303, true),
            (304, false),
            (307, true),
            (308, true),
            (404, false),
        ] {
            assert_eq!(follow(status, "/x") != "judge", followed, "{status}");
        }
    }

    #[test]
    fn the_default_port_follows_the_scheme_and_addresses_stand_in_brackets() {
        let first = HttpTarget::new(true, "fd00::1", 8443, "healthz");
        assert_eq!(first.url(), "https://[fd00::1]:8443/healthz");
        let port = |location: &str| match after_answer(&first, &first, 1, 302, location) {
            AfterAnswer::Follow { to, .. } => to.port,
            other => panic!("{other:?}"),
        };
        assert_eq!((port("http://[fd00::1]/"), port("//[fd00::1]/"), port("/")), (80, 443, 8443));
    }

    #[test]
    fn a_circle_ends_with_the_tenth_request() {
        let (mut sent, mut at) = (1, target());
        let why = loop {
            match after_answer(&target(), &at, sent, 302, "/again") {
                AfterAnswer::Follow { to, .. } => (sent, at) = (sent + 1, to),
                AfterAnswer::Fail(why) => break why,
                AfterAnswer::Judge => panic!("not followed"),
            }
        };
        assert_eq!((sent, why.as_str()), (10, "stopped after 10 redirects"));
    }

    #[test]
    fn the_last_answer_is_judged() {
        for (status, expected) in [
            (200, Outcome::Success),
            (204, Outcome::Success),
            (302, Outcome::Warning("Probe terminated redirects, Response body: moved".into())),
            (404, Outcome::Failure("HTTP probe failed with statuscode: 404".into())),
            (503, Outcome::Failure("HTTP probe failed with statuscode: 503".into())),
        ] {
            assert_eq!(judge_http(status, b"moved"), expected, "{status}");
        }
    }
}
