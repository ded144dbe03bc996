//! Rules for pod traffic, in a table of our own: what leaves the pod network gets this host's address, and what belongs to
//! it may be forwarded.
//!
//! ```text
//! table inet keelson_overlay
//!   chain postrouting: marked by kube-proxy returns; to the network returns; multicast returns; from the network masquerades
//!   chain forward: from and to the network accepts
//! ```

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use keelson_netkit::nft::{self, Batch, Compare, Expr, Family, Hook, Table, Verdict, register};
use keelson_netkit::{Error, IpNet, Socket};

pub(crate) const TABLE: Table = Table { family: Family::Inet, name: "keelson_overlay" };
const POSTROUTING: Hook = Hook { kind: "nat", number: 4, priority: 100 };
const FORWARD: Hook = Hook { kind: "filter", number: 2, priority: 0 };
/// What kube-proxy marks packets with that it masquerades itself.
const KUBE_PROXY_MARK: u32 = 0x4000;

/// What is wanted of the rules.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Wanted {
    pub networks: Vec<(IpAddr, u8)>,
    pub masquerade: bool,
    pub random_ports: bool,
    pub forward: bool,
}

impl Wanted {
    pub fn of(networks: &[IpNet], masquerade: bool, random_ports: bool, forward: bool) -> Self {
        let networks = networks.iter().map(|net| (net.addr, net.prefix)).collect();
        Wanted { networks, masquerade, random_ports, forward }
    }

    /// Written into every rule, so that rules of another configuration, or with one missing, are recognised.
    fn mark(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        format!("keelson-overlay {:016x}", hasher.finish())
    }

    fn chains(&self) -> Vec<Chain> {
        let mut chains = Vec::new();
        let nets = || self.networks.iter().map(|(addr, prefix)| IpNet::new(*addr, *prefix));
        if self.masquerade {
            chains.push(("postrouting", POSTROUTING, masquerade(nets(), self.random_ports)));
        }
        if self.forward {
            let accept = |net: IpNet, side| rule(net, &[(side, net)], Expr::Verdict(Verdict::Accept));
            let rules = nets().flat_map(|net| [accept(net, Side::Source), accept(net, Side::Destination)]);
            chains.push(("forward", FORWARD, rules.collect()));
        }
        chains
    }
}

/// Brings the table to what is wanted; tells whether anything had to be done.
pub fn ensure(socket: &mut Socket, wanted: &Wanted) -> Result<bool, Error> {
    ensure_table(socket, TABLE, &[], &wanted.chains(), &wanted.mark())
}

/// A base chain with its rules, in order.
pub(crate) type Chain = (&'static str, Hook, Vec<Vec<Expr>>);

/// A set with its keys; all are of one length.
pub(crate) struct KeySet {
    pub name: &'static str,
    /// Only for who lists the set.
    pub key_type: u32,
    pub key_len: u32,
    pub keys: Vec<Vec<u8>>,
}

/// Replaces a table unless every rule of it bears the mark. The change is all or nothing.
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
    // Declared first, so that deleting it never fails.
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

fn masquerade(nets: impl Iterator<Item = IpNet>, random_ports: bool) -> Vec<Vec<Expr>> {
    let r = register(0);
    let mark = KUBE_PROXY_MARK.to_ne_bytes().to_vec();
    let mut rules = vec![vec![
        Expr::Mark { to: r },
        Expr::And { reg: r, mask: mark.clone() },
        Expr::Cmp { reg: r, op: Compare::Equal, value: mark },
        Expr::Verdict(Verdict::Return),
    ]];
    for net in nets {
        let multicast = if net.is_v4() { "224.0.0.0/4" } else { "ff00::/8" };
        rules.push(rule(net, &[(Side::Destination, net)], Expr::Verdict(Verdict::Return)));
        if let Ok(multicast) = multicast.parse() {
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
fn rule(family: IpNet, sides: &[(Side, IpNet)], then: Expr) -> Vec<Expr> {
    let r = register(0);
    let protocol = if family.is_v4() { 2 } else { 10 };
    let mut exprs =
        vec![Expr::NfProto { to: r }, Expr::Cmp { reg: r, op: Compare::Equal, value: vec![protocol] }];
    for (side, net) in sides {
        let (len, offset) = match (net.is_v4(), side) {
            (true, Side::Source) => (4, 12),
            (true, Side::Destination) => (4, 16),
            (false, Side::Source) => (16, 8),
            (false, Side::Destination) => (16, 24),
        };
        exprs.push(Expr::Network { offset, len, to: r });
        exprs.push(Expr::And { reg: r, mask: mask(net.prefix, len) });
        exprs.push(Expr::Cmp { reg: r, op: Compare::Equal, value: octets(net.network().addr) });
    }
    exprs.push(then);
    exprs
}

pub(crate) fn mask(prefix: u8, len: u32) -> Vec<u8> {
    let bits = |i: u32| u32::from(prefix).saturating_sub(8 * i).min(8);
    (0..len).map(|i| (0xff00u16 >> bits(i)) as u8).collect()
}

pub(crate) fn octets(addr: IpAddr) -> Vec<u8> {
    match addr {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_have_as_many_bits_as_the_prefix_says() {
        for (prefix, len, expected) in [
            (0, 4, vec![0, 0, 0, 0]),
            (12, 4, vec![0xff, 0xf0, 0, 0]),
            (32, 4, vec![0xff; 4]),
            (64, 16, [[0xff; 8], [0; 8]].concat()),
        ] {
            assert_eq!(mask(prefix, len), expected, "/{prefix}");
        }
    }

    #[test]
    fn each_wish_has_its_chain_and_its_mark() {
        let nets = ["10.244.0.0/16".parse().unwrap(), "fd00::/56".parse().unwrap()];
        let names = |w: &Wanted| w.chains().iter().map(|c| (c.0, c.2.len())).collect::<Vec<_>>();
        let all = Wanted::of(&nets, true, true, true);
        assert_eq!(names(&all), [("postrouting", 7), ("forward", 4)]);
        let none = Wanted::of(&nets, false, true, false);
        assert_eq!(names(&none), []);
        assert_ne!(all.mark(), Wanted::of(&nets, true, false, true).mark());
    }
}
