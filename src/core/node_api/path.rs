//! Paths, decoded once and never again. What is checked for permission and what is served is the same list of segments,
//! so that no spelling of a path can mean one thing to the one and another thing to the other.

/// The decoded parts of a path between its slashes. None of them is empty, `.`, `..`, or holds a slash or a NUL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segments(Vec<String>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the path {path:?} is not understood: {why}")]
pub struct BadPath {
    pub path: String,
    pub why: &'static str,
}

/// More than any endpoint has, and than any sane tree of logs is deep.
const MOST: usize = 64;

impl Segments {
    /// A slash at the end changes nothing.
    pub fn parse(path: &str) -> Result<Self, BadPath> {
        let bad = |why| BadPath { path: path.chars().take(200).collect(), why };
        let inner = path.strip_prefix('/').ok_or_else(|| bad("it does not start with /"))?;
        if inner.is_empty() {
            return Ok(Self(vec![]));
        }
        let inner = inner.strip_suffix('/').unwrap_or(inner);
        let mut segments = vec![];
        for raw in inner.split('/') {
            let decoded =
                percent_decode(raw, false).ok_or_else(|| bad("a % is not followed by UTF-8 in hex"))?;
            match decoded.as_str() {
                "" => return Err(bad("a part of it is empty")),
                "." | ".." => return Err(bad("it has . or .. in it")),
                text if text.contains(['/', '\0']) => return Err(bad("a part of it hides a / or a NUL")),
                _ => {}
            }
            segments.push(decoded);
            if segments.len() > MOST {
                return Err(bad("it has too many parts"));
            }
        }
        Ok(Self(segments))
    }

    pub fn parts(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }

    pub fn first(&self) -> Option<&str> {
        self.0.first().map(String::as_str)
    }
}

/// None for a broken escape, or one that is no UTF-8.
pub(super) fn percent_decode(text: &str, plus_is_space: bool) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? << 4 | digit()?).ok()?
            }
            b'+' if plus_is_space => b' ',
            other => other,
        });
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_decoded_once() {
        for (path, expected) in [
            ("/", &[][..]),
            ("/pods", &["pods"][..]),
            ("/pods/", &["pods"]),
            ("/exec/ns/pod/c", &["exec", "ns", "pod", "c"]),
            ("/%70ods", &["pods"]),
            ("/logs/a%20b", &["logs", "a b"]),
            ("/logs/a%252e", &["logs", "a%2e"]),
            ("/logs/a+b", &["logs", "a+b"]),
        ] {
            assert_eq!(Segments::parse(path).unwrap().parts(), expected, "{path}");
        }
    }

    #[test]
    fn tricks_are_refused() {
        let long = "/x".repeat(65);
        for path in [
            "",
            "*",
            "pods",
            "//",
            "//pods",
            "/pods//",
            "/logs/../etc/passwd",
            "/logs/./x",
            "/logs/%2e%2e/x",
            "/logs/.%2E/x",
            "/logs/a%2fb",
            "/logs/%2Fetc",
            "/logs/a%00b",
            "/logs/%",
            "/logs/%4",
            "/logs/%zz",
            "/logs/%ff",
            long.as_str(),
        ] {
            assert!(Segments::parse(path).is_err(), "{path:?}");
        }
    }
}
