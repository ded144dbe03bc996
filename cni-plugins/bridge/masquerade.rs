//! Masquerading by nf_tables, in a table of our own.
//!
//! ```text
//! table inet keelson_masquerade
//!   map pods4: address -> the owner's chain       map pods6: the same
//!   chain postrouting: multicast returns; the source address is looked up in the map
//!   chain masq-NETWORK-OWNER: destinations outside the container's network are masqueraded
//! ```

use std::net::IpAddr;

use keelson_netkit::nft::{self, Batch, Compare, Expr, Family, Hook, Table, Verdict, register};
use keelson_netkit::{IpNet, Socket};

use crate::owned::{self, Element, OwnedChain, Rule};
use crate::owner::{Owner, network_prefix, reference_masquerade_comment};
use crate::skel::{Failure, ValidAttachment};

const TABLE: Table = Table { family: Family::Inet, name: "keelson_masquerade" };
const PREFIX: &str = "masq";
const POSTROUTING: Hook = Hook { kind: "nat", number: 4, priority: 100 };
/// How `nft list` shows the keys.
const TYPE_IPV4: u32 = 7;
const TYPE_IPV6: u32 = 8;

/// Where the reference plugins keep their rules of this kind.
const REFERENCE_TABLE: Table = Table { family: Family::Inet, name: "cni_plugins_masquerade" };
const REFERENCE_CHAIN: &str = "masq_checks";

/// Masquerades what comes from the given addresses and leaves their networks.
pub fn set_up(owner: &Owner, nets: &[IpNet]) -> Result<(), Failure> {
    let mut socket = Socket::netfilter()?;
    owned::install(&mut socket, TABLE, add_base, owner, &[plan(owner, nets)]).map_err(Failure::from)
}

/// Removes the owner's rules, and those that the reference plugins made for it.
pub fn tear_down(socket: &mut Socket, owner: &Owner) -> Result<(), Failure> {
    owned::remove(socket, TABLE, &[owner.chain(PREFIX)])?;
    let theirs = reference_masquerade_comment(owner);
    owned::retry(|| {
        let mut batch = Batch::new();
        for rule in nft::list_rules(socket, REFERENCE_TABLE, REFERENCE_CHAIN)? {
            if rule.comment.as_deref().is_some_and(|c| c.starts_with(&theirs)) {
                batch.delete_rule(REFERENCE_TABLE, REFERENCE_CHAIN, rule.handle);
            }
        }
        batch.run(socket, None)
    })
    .map_err(Failure::from)
}

/// Removes the rules of all owners on a network but those to be kept.
pub fn collect(network: &str, keep: &[ValidAttachment]) -> Result<(), Failure> {
    let keep: Vec<String> = keep.iter().map(|a| Owner::kept(network, a).chain(PREFIX)).collect();
    let prefix = network_prefix(PREFIX, network);
    owned::collect(&mut Socket::netfilter()?, TABLE, &prefix, &keep).map_err(Failure::from)
}

/// The owner's chain: one rule an address.
fn plan(owner: &Owner, nets: &[IpNet]) -> OwnedChain {
    let rule = |net: &IpNet| Rule {
        element: Element { map: if net.is_v4() { "pods4" } else { "pods6" }.into(), key: octets(net.addr) },
        exprs: leaves(*net),
    };
    OwnedChain { name: owner.chain(PREFIX), rules: nets.iter().map(rule).collect() }
}

/// The table with what all owners share.
fn add_base(batch: &mut Batch) {
    batch.table(TABLE);
    batch.verdict_map(TABLE, "pods4", TYPE_IPV4, 4).verdict_map(TABLE, "pods6", TYPE_IPV6, 16);
    batch.chain(TABLE, "postrouting", Some(POSTROUTING));
    let r = register(0);
    let is = |value: Vec<u8>| Expr::Cmp { reg: r, op: Compare::Equal, value };
    let mut v4 = ipv4();
    v4.extend([Expr::Network { offset: 16, len: 4, to: r }, Expr::And { reg: r, mask: vec![0xf0, 0, 0, 0] }]);
    v4.extend([is(vec![224, 0, 0, 0]), Expr::Verdict(Verdict::Return)]);
    batch.rule(TABLE, "postrouting", "IPv4 multicast", &v4);
    let mut v6 = ipv6();
    v6.extend([Expr::Network { offset: 24, len: 1, to: r }, is(vec![0xff]), Expr::Verdict(Verdict::Return)]);
    batch.rule(TABLE, "postrouting", "IPv6 multicast", &v6);
    let mut v4 = ipv4();
    v4.extend([Expr::Network { offset: 12, len: 4, to: r }, Expr::FollowMap { map: "pods4".into(), key: r }]);
    batch.rule(TABLE, "postrouting", "", &v4);
    let mut v6 = ipv6();
    v6.extend([Expr::Network { offset: 8, len: 16, to: r }, Expr::FollowMap { map: "pods6".into(), key: r }]);
    batch.rule(TABLE, "postrouting", "", &v6);
}

/// Masquerades what comes from the address and does not go to its network.
fn leaves(net: IpNet) -> Vec<Expr> {
    let (r, network) = (register(0), net.network().addr);
    let (mut rule, source, destination, len) = match net.is_v4() {
        true => (ipv4(), 12, 16, 4),
        false => (ipv6(), 8, 24, 16),
    };
    let mask: Vec<u8> = (0..len)
        .map(|i| (0xff00u16 >> i32::from(net.prefix).saturating_sub(8 * i as i32).clamp(0, 8)) as u8)
        .collect();
    rule.extend([
        Expr::Network { offset: source, len, to: r },
        Expr::Cmp { reg: r, op: Compare::Equal, value: octets(net.addr) },
        Expr::Network { offset: destination, len, to: r },
        Expr::And { reg: r, mask },
        Expr::Cmp { reg: r, op: Compare::Different, value: octets(network) },
        Expr::Masquerade,
    ]);
    rule
}

fn ipv4() -> Vec<Expr> {
    protocol(2)
}

fn ipv6() -> Vec<Expr> {
    protocol(10)
}

fn protocol(number: u8) -> Vec<Expr> {
    let r = register(0);
    vec![Expr::NfProto { to: r }, Expr::Cmp { reg: r, op: Compare::Equal, value: vec![number] }]
}

fn octets(addr: IpAddr) -> Vec<u8> {
    match addr {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

#[cfg(test)]
#[path = "masquerade_tests.rs"]
mod tests;
