//! Conditions in nft's language, as far as a port mapping has use for them.

use std::net::IpAddr;

use keelson_kit::cidr::{octets, parse_cidr};
use keelson_netkit::nft::{Compare, Expr, register};

const WHAT_IS_UNDERSTOOD: &str = "understood are: ip|ip6 saddr|daddr ADDRESS[/LEN], iifname|oifname NAME[*], \
     tcp|udp|sctp sport|dport PORT[-PORT], meta mark NUMBER, each with == or != before the value; \
     other conditions need the iptables backend";

/// Translates a list of conditions, all of which a packet has to meet.
pub fn translate(conditions: &[String]) -> Result<Vec<Expr>, String> {
    let text = conditions.join(" ");
    let mut words = text.split_whitespace().peekable();
    let mut exprs = Vec::new();
    while let Some(word) = words.next() {
        let mut subject = vec![word];
        if matches!(word, "ip" | "ip6" | "tcp" | "udp" | "sctp" | "meta") {
            subject.extend(words.next());
        }
        let op = match words.next_if(|w| *w == "!=" || *w == "==") {
            Some("!=") => Compare::Different,
            _ => Compare::Equal,
        };
        let value =
            words.next().map(|v| v.trim_matches('"')).ok_or_else(|| format!("{text:?} breaks off"))?;
        let condition = condition(&subject, op, value);
        exprs.extend(condition.ok_or_else(|| {
            format!("{:?} in {text:?} is not understood; {WHAT_IS_UNDERSTOOD}", subject.join(" "))
        })?);
    }
    Ok(exprs)
}

fn condition(subject: &[&str], op: Compare, value: &str) -> Option<Vec<Expr>> {
    let r = register(0);
    match subject {
        ["ip", field] => {
            address(value, true, op, if *field == "saddr" { 12 } else { (*field == "daddr").then_some(16)? })
        }
        ["ip6", field] => {
            address(value, false, op, if *field == "saddr" { 8 } else { (*field == "daddr").then_some(24)? })
        }
        [protocol @ ("tcp" | "udp" | "sctp"), field] => {
            let number = match *protocol {
                "tcp" => 6,
                "udp" => 17,
                _ => 132,
            };
            let offset = if *field == "sport" { 0 } else { (*field == "dport").then_some(2)? };
            let mut exprs = vec![
                Expr::L4Proto { to: r },
                Expr::Cmp { reg: r, op: Compare::Equal, value: vec![number] },
                Expr::Transport { offset, len: 2, to: r },
            ];
            let bytes = |text: &str| text.parse::<u16>().ok().map(|p| p.to_be_bytes().to_vec());
            exprs.push(match value.split_once('-') {
                Some((from, to)) => Expr::InRange { reg: r, op, from: bytes(from)?, to: bytes(to)? },
                None => Expr::Cmp { reg: r, op, value: bytes(value)? },
            });
            Some(exprs)
        }
        ["iifname"] | ["meta", "iifname"] => Some(vec![Expr::InputName { to: r }, name(value, op)?]),
        ["oifname"] | ["meta", "oifname"] => Some(vec![Expr::OutputName { to: r }, name(value, op)?]),
        ["meta", "mark"] | ["mark"] => {
            let number = match value.strip_prefix("0x") {
                Some(hex) => u32::from_str_radix(hex, 16).ok()?,
                None => value.parse().ok()?,
            };
            Some(vec![Expr::Mark { to: r }, Expr::Cmp { reg: r, op, value: number.to_ne_bytes().to_vec() }])
        }
        _ => None,
    }
}

fn address(value: &str, v4: bool, op: Compare, offset: u32) -> Option<Vec<Expr>> {
    let net = match parse_cidr(value) {
        Ok(net) => net,
        Err(_) => value.parse::<IpAddr>().ok()?.into(),
    };
    if net.is_ipv4() != v4 {
        return None;
    }
    let r = register(0);
    let len = if v4 { 4u32 } else { 16 };
    Some(vec![
        Expr::Network { offset, len, to: r },
        Expr::And { reg: r, mask: octets(net.mask()) },
        Expr::Cmp { reg: r, op, value: octets(net.network()) },
    ])
}

/// An interface's name, or the beginning of one before an asterisk.
fn name(value: &str, op: Compare) -> Option<Expr> {
    let (text, whole) = match value.strip_suffix('*') {
        Some(beginning) => (beginning, false),
        None => (value, true),
    };
    let mut bytes = text.as_bytes().to_vec();
    if bytes.is_empty() || bytes.len() > 15 {
        return None;
    }
    if whole {
        bytes.resize(16, 0);
    }
    Some(Expr::Cmp { reg: register(0), op, value: bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn conditions_as_people_write_them_are_translated() {
        for (text, steps) in [
            ("", 0),
            ("ip saddr 192.0.2.0/24", 3),
            ("ip daddr != 192.0.2.1", 3),
            ("ip6 saddr == fd00::/8", 3),
            ("iifname eth0", 2),
            ("meta iifname != \"eth*\"", 2),
            ("tcp sport 1024-65535", 4),
            ("meta mark 0x10 ip saddr 192.0.2.1 oifname lo", 7),
        ] {
            assert_eq!(translate(&words(text)).map(|e| e.len()), Ok(steps), "{text}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_with_a_way_out() {
        for text in [
            "ip saddr",
            "ip",
            "ip saddr fd00::1",
            "ip6 saddr 10.0.0.1",
            "ct state new",
            "tcp dport x",
            "ip protocol 6",
            "iifname *",
            "meta",
        ] {
            assert!(translate(&words(text)).is_err(), "{text}");
        }
        assert!(translate(&words("ct state new")).unwrap_err().contains("iptables backend"));
    }
}
