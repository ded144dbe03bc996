//! nf_tables rules for pod traffic: masquerade what leaves the pod network, and accept its forwarding.
//!
//! ```text
//! table inet keelson_overlay
//!   chain postrouting: marked by kube-proxy returns; to the network returns; multicast returns; from the network masquerades
//!   chain forward: from and to the network accepts
//! ```

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use keelson_kit::cidr::{self, IpNetwork, octets};
use keelson_netkit::nft::{self, Batch, Compare, Expr, Family, Hook, Table, Verdict, register};
use keelson_netkit::{Error, Socket};

pub(crate) const TABLE: Table = Table { family: Family::Inet, name: "keelson_overlay" };
const POSTROUTING: Hook = Hook { kind: "nat", number: 4, priority: 100 };
const FORWARD: Hook = Hook { kind: "filter", number: 2, priority: 0 };
/// kube-proxy's mark on packets that it masquerades itself.
const KUBE_PROXY_MARK: u32 = 0x4000;

/// Which rules are wanted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RuleConfig {
    pub networks: Vec<(IpAddr, u8)>,
    pub masquerade: bool,
    pub random_ports: bool,
    pub forward: bool,
}

impl RuleConfig {
    pub fn new(networks: &[IpNetwork], masquerade: bool, random_ports: bool, forward: bool) -> Self {
        let networks = networks.iter().map(|net| (net.ip(), net.prefix())).collect();
        RuleConfig { networks, masquerade, random_ports, forward }
    }

    /// Written into every rule as a comment, so that rules of another configuration are recognised.
    fn mark(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        format!("keelson-overlay {:016x}", hasher.finish())
    }

    fn chains(&self) -> Vec<Chain> {
        let mut chains = Vec::new();
        let nets = || self.networks.iter().map(|(addr, prefix)| cidr::with_length(*addr, *prefix));
        if self.masquerade {
            chains.push(("postrouting", POSTROUTING, masquerade(nets(), self.random_ports)));
        }
        if self.forward {
            let accept = |net: IpNetwork, side| rule(net, &[(side, net)], Expr::Verdict(Verdict::Accept));
            let rules = nets().flat_map(|net| [accept(net, Side::Source), accept(net, Side::Destination)]);
            chains.push(("forward", FORWARD, rules.collect()));
        }
        chains
    }
}

/// Makes the table match the configuration; returns whether anything had to be changed.
pub fn ensure(socket: &mut Socket, wanted: &RuleConfig) -> Result<bool, Error> {
    ensure_table(socket, TABLE, &[], &wanted.chains(), &wanted.mark())
}

/// A base chain with its rules, in order.
pub(crate) type Chain = (&'static str, Hook, Vec<Vec<Expr>>);

/// A set with its keys, all of one length.
pub(crate) struct KeySet {
    pub name: &'static str,
    /// Only for display by `nft list`.
    pub key_type: u32,
    pub key_len: u32,
    pub keys: Vec<Vec<u8>>,
}

/// Replaces a table in one transaction, unless every rule of it has the mark.
pub(crate) fn ensure_table(
    socket: &mut Socket,
    table: Table,
    sets: &[KeySet],
    chains: &[Chain],
    mark: &str,
) -> Result<bool, Error> {
    if is_there(socket, table, chains, mark)? {
        return Ok(false);
    }
    replace_table(socket, table, sets, chains, mark).map(|()| true)
}

pub(crate) fn replace_table(
    socket: &mut Socket,
    table: Table,
    sets: &[KeySet],
    chains: &[Chain],
    mark: &str,
) -> Result<(), Error> {
    let mut batch = Batch::new();
    // Added first, so that deleting it never fails.
    batch.table(table).delete_table(table);
    if !chains.is_empty() {
        batch.table(table);
    }
    for set in sets {
        batch.set(table, set.name, set.key_type, set.key_len);
        batch.add_keys(table, set.name, &set.keys);
    }
    for (name, hook, rules) in chains {
        batch.chain(table, name, Some(*hook));
        for exprs in rules {
            batch.rule(table, name, mark, exprs);
        }
    }
    batch.run(socket, None)
}

pub(crate) fn is_there(
    socket: &mut Socket,
    table: Table,
    chains: &[Chain],
    mark: &str,
) -> Result<bool, Error> {
    let mut found = nft::list_chains(socket, table)?;
    found.sort();
    let mut names: Vec<&str> = chains.iter().map(|(name, ..)| *name).collect();
    names.sort_unstable();
    if found != names || (chains.is_empty() && nft::table_exists(socket, table)?) {
        return Ok(false);
    }
    for (name, _, rules) in chains {
        let found = nft::list_rules(socket, table, name)?;
        if found.len() != rules.len() || found.iter().any(|rule| rule.comment.as_deref() != Some(mark)) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn masquerade(nets: impl Iterator<Item = IpNetwork>, random_ports: bool) -> Vec<Vec<Expr>> {
    let r = register(0);
    let mark = KUBE_PROXY_MARK.to_ne_bytes().to_vec();
    let mut rules = vec![vec![
        Expr::Mark { to: r },
        Expr::And { reg: r, mask: mark.clone() },
        Expr::Cmp { reg: r, op: Compare::Equal, value: mark },
        Expr::Verdict(Verdict::Return),
    ]];
    for net in nets {
        let multicast = if net.is_ipv4() { "224.0.0.0/4" } else { "ff00::/8" };
        rules.push(rule(net, &[(Side::Destination, net)], Expr::Verdict(Verdict::Return)));
        if let Ok(multicast) = cidr::parse_cidr(multicast) {
            let sides = [(Side::Source, net), (Side::Destination, multicast)];
            rules.push(rule(net, &sides, Expr::Verdict(Verdict::Return)));
        }
        let how = if random_ports { Expr::MasqueradeFullyRandom } else { Expr::Masquerade };
        rules.push(rule(net, &[(Side::Source, net)], how));
    }
    rules
}

#[derive(Clone, Copy)]
enum Side {
    Source,
    Destination,
}

/// For packets of a family whose addresses are in all of the given networks.
fn rule(family: IpNetwork, sides: &[(Side, IpNetwork)], then: Expr) -> Vec<Expr> {
    let r = register(0);
    let protocol = if family.is_ipv4() { 2 } else { 10 };
    let mut exprs =
        vec![Expr::NfProto { to: r }, Expr::Cmp { reg: r, op: Compare::Equal, value: vec![protocol] }];
    for (side, net) in sides {
        let (len, offset) = match (net.is_ipv4(), side) {
            (true, Side::Source) => (4, 12),
            (true, Side::Destination) => (4, 16),
            (false, Side::Source) => (16, 8),
            (false, Side::Destination) => (16, 24),
        };
        exprs.push(Expr::Network { offset, len, to: r });
        exprs.push(Expr::And { reg: r, mask: octets(net.mask()) });
        exprs.push(Expr::Cmp { reg: r, op: Compare::Equal, value: octets(net.network()) });
    }
    exprs.push(then);
    exprs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wish_has_its_chain_and_its_mark() {
        let nets = ["10.244.0.0/16".parse().unwrap(), "fd00::/56".parse().unwrap()];
        let names = |w: &RuleConfig| w.chains().iter().map(|c| (c.0, c.2.len())).collect::<Vec<_>>();
        let all = RuleConfig::new(&nets, true, true, true);
        assert_eq!(names(&all), [("postrouting", 7), ("forward", 4)]);
        let none = RuleConfig::new(&nets, false, true, false);
        assert_eq!(names(&none), []);
        assert_ne!(all.mark(), RuleConfig::new(&nets, true, false, true).mark());
    }
}
