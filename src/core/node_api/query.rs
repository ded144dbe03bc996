//! The parameters of a request.

use super::path::percent_decode;

/// Names and values in their order, decoded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

/// A command of an exec is one parameter a word; more words than this come from nobody's shell.
const MOST: usize = 4096;

impl Query {
    /// None when a parameter is not UTF-8 in form encoding, or there are too many.
    pub fn parse(text: Option<&str>) -> Option<Self> {
        let mut pairs = vec![];
        for pair in text.unwrap_or_default().split('&').filter(|p| !p.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            pairs.push((percent_decode(name, true)?, percent_decode(value, true)?));
            if pairs.len() > MOST {
                return None;
            }
        }
        Some(Self(pairs))
    }

    /// The first value of this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// `1` and `true`; anything else is no.
    pub fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some("1" | "true" | "True" | "TRUE"))
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_and_keep_their_order() {
        let query = Query::parse(Some("command=sh&command=-c&command=echo+a%26b&input=1&tty&x=")).unwrap();
        assert_eq!(query.all("command").collect::<Vec<_>>(), ["sh", "-c", "echo a&b"]);
        assert!(query.flag("input") && !query.flag("tty") && !query.flag("output"));
        assert_eq!(query.get("x"), Some(""));
        assert_eq!(query.get("y"), None);
        assert_eq!(Query::parse(None), Some(Query::default()));
    }

    #[test]
    fn broken_or_endless_parameters_are_refused() {
        assert_eq!(Query::parse(Some("a=%f")), None);
        assert_eq!(Query::parse(Some("a=%ff")), None);
        assert_eq!(Query::parse(Some(&"a=b&".repeat(5000))), None);
    }
}
