//! What the caller of an exec, attach or port-forward wants to be carried.

use super::query::Query;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Streams {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// By the names that the apiserver gives these parameters on the way to a node.
pub fn streams(query: &Query) -> Result<Streams, &'static str> {
    let on = |name| query.get(name) == Some("1");
    let tty = on("tty");
    // A terminal has one output only.
    let streams = Streams { stdin: on("input"), stdout: on("output"), stderr: on("error") && !tty, tty };
    if !(streams.stdin || streams.stdout || streams.stderr) {
        return Err("you must specify at least 1 of stdin, stdout, stderr");
    }
    Ok(streams)
}

/// The ports of a port-forward. A SPDY client names them later, stream by stream; a WebSocket has to do it here.
pub fn ports(query: &Query, websocket: bool) -> Result<Vec<i32>, String> {
    if !websocket {
        return Ok(vec![]);
    }
    let mut ports = vec![];
    for text in query.all("port").flat_map(|values| values.split(',')) {
        match text.parse::<u16>() {
            Ok(port) if port > 0 && ports.len() < MOST_PORTS => ports.push(port.into()),
            Ok(port) if port > 0 => return Err(format!("more than {MOST_PORTS} ports at once")),
            _ => return Err(format!("port {text:?} is not a number from 1 to 65535")),
        }
    }
    if ports.is_empty() { Err("query parameter \"port\" is required".into()) } else { Ok(ports) }
}

const MOST_PORTS: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Query {
        Query::parse(Some(text)).unwrap()
    }

    #[test]
    fn streams_are_asked_for_by_name() {
        let of = |stdin, stdout, stderr, tty| Ok(Streams { stdin, stdout, stderr, tty });
        assert_eq!(streams(&query("input=1&output=1&error=1")), of(true, true, true, false));
        assert_eq!(streams(&query("output=1&error=1&tty=1")), of(false, true, false, true));
        assert_eq!(streams(&query("output=1&tty=0")), of(false, true, false, false));
        assert!(streams(&query("tty=1")).is_err());
        assert!(streams(&query("error=1&tty=1")).is_err(), "a terminal has no stderr");
        assert!(streams(&query("output=yes")).is_err());
    }

    #[test]
    fn a_websocket_names_its_ports_at_once() {
        assert_eq!(ports(&query(""), false), Ok(vec![]));
        assert_eq!(ports(&query("port=80,81&port=443"), true), Ok(vec![80, 81, 443]));
        for bad in ["", "port=", "port=0", "port=65536", "port=-1", "port=80,", "port=http"] {
            assert!(ports(&query(bad), true).is_err(), "{bad}");
        }
        assert!(ports(&query(&"port=1&".repeat(200)), true).is_err());
    }
}
