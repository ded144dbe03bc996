//! Who is heard on the tunnel: only hosts with a lease, and each only for its own subnet. The kernel's VXLAN device takes
//! what anybody sends to its port, so this is done by rules around it.
//!
//! ```text
//! table inet keelson_overlay_peers
//!   chain input: to the tunnel's port, from a host with a lease returns; others are counted and dropped
//!   chain prerouting: out of the tunnel, with the MAC and a source of one and the same lease returns; others are counted
//!                     and dropped
//! ```

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use keelson_netkit::nft::{self, Compare, Expr, Family, Hook, Table, Verdict, register};
use keelson_netkit::{Error, Mac, Socket};

use crate::config::Vxlan;
use crate::firewall::{Chain, KeySet, ensure_table, mask, octets};
use crate::lease::{Lease, Place};

const TABLE: Table = Table { family: Family::Inet, name: "keelson_overlay_peers" };
const INPUT: Hook = Hook { kind: "filter", number: 1, priority: -10 };
/// Before connections are tracked: what is dropped must not leave a trace.
const PREROUTING: Hook = Hook { kind: "filter", number: 0, priority: -300 };
const UDP: u8 = 17;
/// How `nft list` shows the keys.
const TYPE_IPV4: u32 = 7;
const TYPE_IPV6: u32 = 8;
const TYPE_ETHER: u32 = 9;

/// Brings the rules in line with the leases; tells whether anything had to be done. None takes them away.
pub fn ensure(socket: &mut Socket, wanted: Option<(&Vxlan, &[Lease])>) -> Result<bool, Error> {
    let Some((vxlan, peers)) = wanted else { return ensure_table(socket, TABLE, &[], &[], "") };
    let (sets, chains) = rules(vxlan, peers);
    let mut hasher = DefaultHasher::new();
    (vxlan.vni, vxlan.port).hash(&mut hasher);
    sets.iter().for_each(|set| set.keys.hash(&mut hasher));
    chains.iter().for_each(|chain| chain.2.len().hash(&mut hasher));
    ensure_table(socket, TABLE, &sets, &chains, &format!("keelson-overlay {:016x}", hasher.finish()))
}

/// How many packets were dropped since the rules were last changed: from strangers, and with a strange source.
pub fn dropped(socket: &mut Socket) -> Result<Vec<(String, u64)>, Error> {
    let mut counters = Vec::new();
    for (chain, name) in [("input", "tunnel_from_stranger"), ("prerouting", "tunnel_strange_source")] {
        let rules = nft::list_rules(socket, TABLE, chain)?;
        let packets: u64 = rules.iter().filter_map(|rule| rule.packets).sum();
        counters.push((name.to_owned(), packets));
    }
    Ok(counters)
}

fn rules(vxlan: &Vxlan, peers: &[Lease]) -> (Vec<KeySet>, Vec<Chain>) {
    let mut sets = Vec::new();
    let (mut input, mut prerouting) = (Vec::new(), Vec::new());
    let r = register(0);
    let to_port = || {
        vec![
            Expr::L4Proto { to: r },
            is(r, vec![UDP]),
            Expr::Transport { offset: 2, len: 2, to: r },
            is(r, vxlan.port.to_be_bytes().to_vec()),
        ]
    };
    for v4 in [true, false] {
        let places: Vec<Place> = peers.iter().filter_map(|p| if v4 { p.v4 } else { p.v6 }).collect();
        let (protocol, offset, len) = if v4 { (2, 12, 4) } else { (10, 8, 16) };
        let (hosts, sources) = if v4 { ("hosts4", "sources4") } else { ("hosts6", "sources6") };
        let family = || vec![Expr::NfProto { to: r }, is(r, vec![protocol])];

        let key_type = if v4 { TYPE_IPV4 } else { TYPE_IPV6 };
        let keys: BTreeSet<Vec<u8>> = places.iter().map(|p| octets(p.public)).collect();
        sets.push(KeySet { name: hosts, key_type, key_len: len, keys: keys.into_iter().collect() });
        let mut rule = [family(), to_port()].concat();
        rule.extend([Expr::Network { offset, len, to: r }, Expr::InSet { set: hosts.into(), key: r }]);
        rule.push(Expr::Verdict(Verdict::Return));
        input.push(rule);

        // A host may also speak for itself, by the address that it is known by.
        let whole = if v4 { 32 } else { 128 };
        let vteps = places.iter().filter_map(|p| Some((p, p.vtep?)));
        let keys: BTreeSet<Vec<u8>> = vteps
            .flat_map(|(p, vtep)| [key(vtep.mac, octets(p.subnet.addr)), key(vtep.mac, octets(p.public))])
            .collect();
        let key_type = TYPE_ETHER << 6 | key_type;
        sets.push(KeySet { name: sources, key_type, key_len: 8 + len, keys: keys.into_iter().collect() });
        let lengths: BTreeSet<u8> = places.iter().map(|p| p.subnet.prefix).chain([whole]).collect();
        let device = if v4 { format!("flannel.{}", vxlan.vni) } else { format!("flannel-v6.{}", vxlan.vni) };
        for prefix in lengths {
            let mut rule = family();
            rule.extend(from_device(&device));
            rule.extend([
                // A MAC fills two registers, the second half full.
                Expr::Link { offset: 6, len: 6, to: r },
                Expr::Network { offset, len, to: register(2) },
                Expr::And { reg: register(2), mask: mask(prefix, len) },
                Expr::InSet { set: sources.into(), key: r },
                Expr::Verdict(Verdict::Return),
            ]);
            prerouting.push(rule);
        }
        let mut rule = family();
        rule.extend(from_device(&device));
        rule.extend(link_local_may_pass(v4));
        rule.extend([Expr::Counter, Expr::Verdict(Verdict::Drop)]);
        prerouting.push(rule);
    }
    let mut rule = to_port();
    rule.extend([Expr::Counter, Expr::Verdict(Verdict::Drop)]);
    input.push(rule);
    (sets, vec![("input", INPUT, input), ("prerouting", PREROUTING, prerouting)])
}

/// The kernel itself speaks from fe80::/10 on every device; that goes no further than the link, and is no pod's.
fn link_local_may_pass(v4: bool) -> Vec<Expr> {
    let r = register(0);
    match v4 {
        true => vec![],
        false => vec![
            Expr::Network { offset: 8, len: 2, to: r },
            Expr::And { reg: r, mask: vec![0xff, 0xc0] },
            Expr::Cmp { reg: r, op: Compare::Different, value: vec![0xfe, 0x80] },
        ],
    }
}

fn from_device(name: &str) -> [Expr; 2] {
    let mut padded = name.as_bytes().to_vec();
    padded.resize(16, 0);
    [Expr::InputName { to: register(0) }, is(register(0), padded)]
}

fn is(reg: u32, value: Vec<u8>) -> Expr {
    Expr::Cmp { reg, op: Compare::Equal, value }
}

fn key(mac: Mac, addr: Vec<u8>) -> Vec<u8> {
    [&mac.0[..], &[0, 0], &addr].concat()
}
