//! Which rules lead a host's ports to a container. Nothing here touches the machine.
//!
//! ```text
//! table inet keelson_hostport
//!   map any4, any6: protocol . port -> the owner's chain
//!   map at4, at6:   address . protocol . port -> the owner's chain
//!   map snat4, snat6: container's address -> the owner's other chain
//!   chain prerouting, output: packets to an address of the host go to hostports
//!   chain hostports: look up first with the address, then without
//!   chain dnat-NETWORK-OWNER: rewrites the destination
//!   chain postrouting: look up the destination
//!   chain localnet: see [`super::localnet`]
//!   chain snat-NETWORK-OWNER: masquerades what the container would answer past the host
//! ```
//! The base chains come just after those of Kubernetes services, which thus keep precedence.

use std::net::IpAddr;

use keelson_kit::cidr::{IpNetwork, octets};
use keelson_netkit::nft::{Batch, Compare, Expr, Family, Hook, NatFamily, Table, Verdict, register};

use super::conf::{Mapping, PortmapConf};
use crate::owned::{Base, Element, OwnedChain, Rule};
use crate::owner::Owner;

pub const TABLE: Table = Table { family: Family::Inet, name: "keelson_hostport" };
pub const BASE: Base = Base { chain: HOST_PORTS, add: add_base };
const HOST_PORTS: &str = "hostports";
pub const DNAT: &str = "dnat";
pub const SNAT: &str = "snat";

/// One after the priority at which service proxies rewrite destinations.
const PREROUTING: Hook = Hook { kind: "nat", number: 0, priority: -99 };
const OUTPUT: Hook = Hook { kind: "nat", number: 3, priority: -99 };
/// One before the priority of masquerading in general, so that this is not overtaken by it.
const POSTROUTING: Hook = Hook { kind: "nat", number: 4, priority: 99 };

const ROUTE_TYPE_LOCAL: u32 = 2;
/// The connection's destination was rewritten.
const STATUS_DNAT: u32 = 1 << 5;

/// How `nft list` shows the keys; those of several parts are joined six bits apart.
const TYPE_IPV4: u32 = 7;
const TYPE_IPV6: u32 = 8;
const TYPE_PORT: u32 = 12 << 6 | 13;

/// Where things are in the two IP headers.
struct Layout {
    v4: bool,
    source: u32,
    destination: u32,
    len: u32,
}

const V4: Layout = Layout { v4: true, source: 12, destination: 16, len: 4 };
const V6: Layout = Layout { v4: false, source: 8, destination: 24, len: 16 };

fn layout(v4: bool) -> &'static Layout {
    if v4 { &V4 } else { &V6 }
}

/// The owner's chains for the given addresses of the container, with the conditions already translated.
pub fn chains(
    owner: &Owner,
    conf: &PortmapConf,
    containers: &[IpNetwork],
    conditions: impl Fn(bool) -> Vec<Expr>,
) -> Vec<OwnedChain> {
    let mut dnat = OwnedChain { name: owner.chain(DNAT), rules: Vec::new() };
    let mut snat = OwnedChain { name: owner.chain(SNAT), rules: Vec::new() };
    for container in containers {
        let v4 = container.is_ipv4();
        let mappings = || conf.mappings.iter().filter(|m| m.is_for(v4));
        dnat.rules.extend(mappings().map(|m| rewrite(m, container.ip(), &conditions(v4))));
        if conf.snat && mappings().next().is_some() {
            snat.rules.extend(masquerade(*container, conf.masquerade_all));
        }
    }
    [dnat, snat].into_iter().filter(|chain| !chain.rules.is_empty()).collect()
}

/// Leads one port to the container.
fn rewrite(mapping: &Mapping, container: IpAddr, conditions: &[Expr]) -> Rule {
    let v4 = container.is_ipv4();
    let r = register(0);
    let mut exprs = family(v4);
    if let Some(ip) = mapping.single_host_ip() {
        let l = layout(v4);
        exprs.extend([Expr::Network { offset: l.destination, len: l.len, to: r }, is(octets(ip))]);
    }
    exprs.extend([Expr::L4Proto { to: r }, is(vec![mapping.protocol.number()])]);
    exprs
        .extend([Expr::Transport { offset: 2, len: 2, to: r }, is(mapping.host_port.to_be_bytes().to_vec())]);
    exprs.extend_from_slice(conditions);
    let port = register(4);
    exprs.extend([
        Expr::Load { to: r, value: octets(container) },
        Expr::Load { to: port, value: mapping.container_port.to_be_bytes().to_vec() },
        Expr::Dnat { family: if v4 { NatFamily::V4 } else { NatFamily::V6 }, addr: r, port },
    ]);
    Rule { element: element(mapping, v4), exprs }
}

/// The element that leads packets for the mapping to the owner's chain.
fn element(mapping: &Mapping, v4: bool) -> Element {
    let mut key = Vec::new();
    let mut map = if v4 { "any4" } else { "any6" };
    if let Some(ip) = mapping.single_host_ip() {
        key.extend(octets(ip));
        map = if v4 { "at4" } else { "at6" };
    }
    let [high, low] = mapping.host_port.to_be_bytes();
    key.extend([mapping.protocol.number(), 0, 0, 0, high, low, 0, 0]);
    Element { map: map.into(), key }
}

/// Masquerades what the container would answer on a shorter way than past the host: what comes from its own
/// network, itself included, and from the host's loopback address. Only what was rewritten is concerned.
fn masquerade(container: IpNetwork, everything: bool) -> Vec<Rule> {
    let l = layout(container.is_ipv4());
    let r = register(0);
    let element = Element { map: if l.v4 { "snat4" } else { "snat6" }.into(), key: octets(container.ip()) };
    let rewritten = || {
        let mut exprs = family(l.v4);
        exprs.extend([
            Expr::ConnectionStatus { to: r },
            Expr::And { reg: r, mask: STATUS_DNAT.to_ne_bytes().to_vec() },
            Expr::Cmp { reg: r, op: Compare::Different, value: vec![0; 4] },
        ]);
        exprs
    };
    let from = |net: IpNetwork| {
        let mut exprs = rewritten();
        exprs.extend([
            Expr::Network { offset: l.source, len: l.len, to: r },
            Expr::And { reg: r, mask: octets(net.mask()) },
        ]);
        exprs.extend([is(octets(net.network())), Expr::Masquerade]);
        Rule { element: element.clone(), exprs }
    };
    // The loopback address has its rule beside one for everything, too: the reference's CHECK counts it.
    let mut rules = match everything {
        true => {
            vec![Rule { element: element.clone(), exprs: [rewritten(), vec![Expr::Masquerade]].concat() }]
        }
        false => vec![from(container)],
    };
    if l.v4 {
        rules.push(from(IpAddr::from([127, 0, 0, 1]).into()));
    }
    rules
}

/// The table with what all owners share.
fn add_base(batch: &mut Batch) {
    batch.table(TABLE);
    batch.verdict_map(TABLE, "any4", TYPE_PORT, 8).verdict_map(TABLE, "any6", TYPE_PORT, 8);
    batch.verdict_map(TABLE, "at4", TYPE_IPV4 << 12 | TYPE_PORT, 12);
    batch.verdict_map(TABLE, "at6", TYPE_IPV6 << 12 | TYPE_PORT, 24);
    batch.verdict_map(TABLE, "snat4", TYPE_IPV4, 4).verdict_map(TABLE, "snat6", TYPE_IPV6, 16);
    batch.chain(TABLE, "hostports", None);
    for l in [&V4, &V6] {
        batch.rule(TABLE, "hostports", "", &look_up_port(l, true));
        batch.rule(TABLE, "hostports", "", &look_up_port(l, false));
    }
    let r = register(0);
    let local = to_host(HOST_PORTS);
    for (name, hook) in [("prerouting", PREROUTING), ("output", OUTPUT)] {
        batch.chain(TABLE, name, Some(hook)).rule(TABLE, name, "", &local);
    }
    batch.chain(TABLE, "postrouting", Some(POSTROUTING));
    for l in [&V4, &V6] {
        let mut exprs = family(l.v4);
        let map = if l.v4 { "snat4" } else { "snat6" }.into();
        exprs.extend([
            Expr::Network { offset: l.destination, len: l.len, to: r },
            Expr::FollowMap { map, key: r },
        ]);
        batch.rule(TABLE, "postrouting", "", &exprs);
    }
}

/// Sends what is for an address of the host to a chain.
pub fn to_host(chain: &str) -> [Expr; 3] {
    let r = register(0);
    [
        Expr::DestinationType { to: r },
        is(ROUTE_TYPE_LOCAL.to_ne_bytes().to_vec()),
        Expr::Verdict(Verdict::Jump(chain.to_owned())),
    ]
}

/// Whether a packet is for that address, given in bytes.
pub fn is_for(address: &[u8]) -> Vec<Expr> {
    let l = layout(address.len() == 4);
    vec![Expr::Network { offset: l.destination, len: l.len, to: register(0) }, is(address.to_vec())]
}

fn look_up_port(l: &Layout, with_address: bool) -> Vec<Expr> {
    let r = register(0);
    let mut exprs = family(l.v4);
    let mut at = 0;
    if with_address {
        exprs.push(Expr::Network { offset: l.destination, len: l.len, to: r });
        at = l.len / 4;
    }
    exprs.push(Expr::L4Proto { to: register(at) });
    exprs.push(Expr::Transport { offset: 2, len: 2, to: register(at + 1) });
    let map = match (with_address, l.v4) {
        (true, true) => "at4",
        (true, false) => "at6",
        (false, true) => "any4",
        (false, false) => "any6",
    };
    exprs.push(Expr::FollowMap { map: map.into(), key: r });
    exprs
}

pub fn family(v4: bool) -> Vec<Expr> {
    let r = register(0);
    vec![Expr::NfProto { to: r }, is(vec![if v4 { 2 } else { 10 }])]
}

fn is(value: Vec<u8>) -> Expr {
    Expr::Cmp { reg: register(0), op: Compare::Equal, value }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
