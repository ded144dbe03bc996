//! Masquerading by nf_tables, in a table of our own: the default.
//!
//! ```text
//! table inet keelson_masquerade
//!   map pods4: address -> the owner's chain       map pods6: the same
//!   chain postrouting: multicast returns; the source address is looked up in the map
//!   chain masq-NETWORK-OWNER: destinations outside the container's network are masqueraded
//! ```

use keelson_kit::cidr::{IpNetwork, octets};
use keelson_netkit::Socket;
use keelson_netkit::nft::{Batch, Compare, Expr, Family, Hook, Table, Verdict, register};

use super::masquerade_reference;
use crate::owned::{self, Base, Element, OwnedChain, Rule};
use crate::owner::{Owner, network_prefix};
use crate::skel::{Failure, ValidAttachment};

const TABLE: Table = Table { family: Family::Inet, name: "keelson_masquerade" };
const PREFIX: &str = "masq";
const BASE: Base = Base { chain: "postrouting", add: add_base };
pub(super) const POSTROUTING: Hook = Hook { kind: "nat", number: 4, priority: 100 };
/// How `nft list` shows the keys.
const TYPE_IPV4: u32 = 7;
const TYPE_IPV6: u32 = 8;

/// Masquerades what comes from the given addresses and leaves their networks.
pub fn set_up(owner: &Owner, nets: &[IpNetwork]) -> Result<(), Failure> {
    let mut socket = Socket::netfilter()?;
    owned::install(&mut socket, TABLE, &BASE, owner, &[plan(owner, nets)]).map_err(Failure::from)
}

/// Removes the owner's rules, and those that the reference plugins made for it.
pub fn tear_down(socket: &mut Socket, owner: &Owner) -> Result<(), Failure> {
    owned::remove(socket, TABLE, &[owner.chain(PREFIX)])?;
    masquerade_reference::tear_down(socket, owner)
}

/// Removes the rules of all owners on a network but those to be kept.
pub fn collect(network: &str, keep: &[ValidAttachment]) -> Result<(), Failure> {
    let chains: Vec<String> = keep.iter().map(|a| Owner::kept(network, a).chain(PREFIX)).collect();
    let mut socket = Socket::netfilter()?;
    owned::collect(&mut socket, TABLE, &network_prefix(PREFIX, network), &chains)?;
    masquerade_reference::collect(&mut socket, network, keep)
}

/// The owner's chain: one rule an address.
fn plan(owner: &Owner, nets: &[IpNetwork]) -> OwnedChain {
    let rule = |net: &IpNetwork| Rule {
        element: Element { map: if net.is_ipv4() { "pods4" } else { "pods6" }.into(), key: octets(net.ip()) },
        exprs: leaves(*net),
    };
    OwnedChain { name: owner.chain(PREFIX), rules: nets.iter().map(rule).collect() }
}

/// The table with what all owners share.
fn add_base(batch: &mut Batch) {
    batch.table(TABLE);
    batch.verdict_map(TABLE, "pods4", TYPE_IPV4, 4).verdict_map(TABLE, "pods6", TYPE_IPV6, 16);
    batch.chain(TABLE, "postrouting", Some(POSTROUTING));
    for multicast in return_multicast() {
        batch.rule(TABLE, "postrouting", "multicast", &multicast);
    }
    let r = register(0);
    let mut v4 = ipv4();
    v4.extend([Expr::Network { offset: 12, len: 4, to: r }, Expr::FollowMap { map: "pods4".into(), key: r }]);
    batch.rule(TABLE, "postrouting", "", &v4);
    let mut v6 = ipv6();
    v6.extend([Expr::Network { offset: 8, len: 16, to: r }, Expr::FollowMap { map: "pods6".into(), key: r }]);
    batch.rule(TABLE, "postrouting", "", &v6);
}

/// Lets multicast of both families go as it is.
pub(super) fn return_multicast() -> [Vec<Expr>; 2] {
    let r = register(0);
    let is = |value: Vec<u8>| Expr::Cmp { reg: r, op: Compare::Equal, value };
    let mut v4 = ipv4();
    v4.extend([Expr::Network { offset: 16, len: 4, to: r }, Expr::And { reg: r, mask: vec![0xf0, 0, 0, 0] }]);
    v4.extend([is(vec![224, 0, 0, 0]), Expr::Verdict(Verdict::Return)]);
    let mut v6 = ipv6();
    v6.extend([Expr::Network { offset: 24, len: 1, to: r }, is(vec![0xff]), Expr::Verdict(Verdict::Return)]);
    [v4, v6]
}

/// Masquerades what comes from the address and does not go to its network.
pub(super) fn leaves(net: IpNetwork) -> Vec<Expr> {
    let r = register(0);
    let (mut rule, source, destination, len) = match net.is_ipv4() {
        true => (ipv4(), 12, 16, 4),
        false => (ipv6(), 8, 24, 16),
    };
    rule.extend([
        Expr::Network { offset: source, len, to: r },
        Expr::Cmp { reg: r, op: Compare::Equal, value: octets(net.ip()) },
        Expr::Network { offset: destination, len, to: r },
        Expr::And { reg: r, mask: octets(net.mask()) },
        Expr::Cmp { reg: r, op: Compare::Different, value: octets(net.network()) },
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

#[cfg(test)]
#[path = "masquerade_tests.rs"]
mod tests;
