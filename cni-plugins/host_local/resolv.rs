//! DNS settings out of a resolv.conf.

use crate::skel::{Dns, Failure};

pub fn read(path: &str) -> Result<Dns, Failure> {
    let bytes = std::fs::read(path)
        .map_err(|e| Failure::io(format!("\"ipam.resolvConf\": cannot read {path}: {e}")))?;
    Ok(parse(&String::from_utf8_lossy(&bytes)))
}

fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines().map(str::trim).filter(|l| !l.starts_with(['#', ';'])) {
        let mut fields = line.split_whitespace().map(str::to_owned);
        match (fields.next().as_deref(), fields.next()) {
            (Some("nameserver"), Some(server)) => dns.nameservers.push(server),
            (Some("domain"), Some(domain)) => dns.domain = domain,
            (Some("search"), Some(first)) => dns.search.extend(std::iter::once(first).chain(fields)),
            (Some("options"), Some(first)) => dns.options.extend(std::iter::once(first).chain(fields)),
            _ => {}
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resolv_conf_is_read_as_resolvers_read_it() {
        let dns = parse(
            "# comment\n; other\nnameserver 192.0.2.1\n nameserver\tfd00::1  \nnameserver\ndomain example.org\nsearch a b\nsearch c\noptions ndots:5 edns0\nnonsense here\n",
        );
        assert_eq!(dns.nameservers, ["192.0.2.1", "fd00::1"]);
        assert_eq!(dns.domain, "example.org");
        assert_eq!(dns.search, ["a", "b", "c"]);
        assert_eq!(dns.options, ["ndots:5", "edns0"]);
    }
}
