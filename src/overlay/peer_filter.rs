//! Which packets the tunnel accepts: only from hosts with a lease, and each only for its own subnet. A VXLAN device accepts
//! whatever is sent to its port, so nf_tables rules filter before and behind it.
//!
//! ```text
//! table inet keelson_overlay_peers
//!   sets hosts4, hosts6: public addresses of hosts with a lease
//!   sets sources4, sources6: VTEP MAC and the inner source addresses that belong to it
//!   chain input: to the tunnel's port, from one of the hosts returns; others are counted and dropped
//!   chain prerouting: out of the tunnel, with one of the sources returns; others are counted and dropped
//! ```
//!
//! The rules do not depend on the peers; adding or removing a peer changes a few set elements.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use keelson_kit::cidr::{self, octets};
use keelson_netkit::nft::{self, Batch, Compare, Expr, Family, Hook, Table, Verdict, register};
use keelson_netkit::{Error, Mac, Socket};

use crate::config::Vxlan;
use crate::firewall::{Chain, KeySet, ensure_table, is_there, replace_table};
use crate::lease::LeasedSubnet;

pub(crate) const TABLE: Table = Table { family: Family::Inet, name: "keelson_overlay_peers" };
const INPUT: Hook = Hook { kind: "filter", number: 1, priority: -10 };
/// Before connection tracking: dropped packets must leave no entry there.
const PREROUTING: Hook = Hook { kind: "filter", number: 0, priority: -300 };
const UDP: u8 = 17;
/// How `nft list` shows the keys.
const TYPE_IPV4: u32 = 7;
const TYPE_IPV6: u32 = 8;
const TYPE_ETHER: u32 = 9;

const SETS: [&str; 4] = ["hosts4", "sources4", "hosts6", "sources6"];

/// Prefix lengths of leased subnets, by family (true is IPv4). There is a rule for each.
pub type PrefixLengths = BTreeSet<(bool, u8)>;

/// Elements, by the number of their set.
pub type SetElements = Vec<(usize, Vec<u8>)>;

/// The prefix lengths that these subnets need rules for.
pub fn prefix_lengths(leased_subnets: &[LeasedSubnet]) -> PrefixLengths {
    let whole = [(true, 32), (false, 128)];
    whole.into_iter().chain(leased_subnets.iter().map(|p| (p.subnet.is_ipv4(), p.subnet.prefix()))).collect()
}

/// The set elements that accept packets from a peer's subnet.
pub fn elements(leased: &LeasedSubnet) -> SetElements {
    let (hosts, sources) = if leased.subnet.is_ipv4() { (0, 1) } else { (2, 3) };
    let mut keys = vec![(hosts, octets(leased.public))];
    if let Some(vtep) = leased.vtep {
        // A host may also send from its own public address.
        let of = |addr| (sources, key(vtep.mac, octets(addr)));
        keys.extend([of(leased.subnet.ip()), of(leased.public)]);
    }
    keys
}

/// Makes rules and sets match all peers; returns whether anything had to be changed.
pub fn ensure(
    socket: &mut Socket,
    vxlan: &Vxlan,
    lengths: &PrefixLengths,
    wanted: &[LeasedSubnet],
) -> Result<bool, Error> {
    let chains = chains(vxlan, lengths);
    let mut hasher = DefaultHasher::new();
    (vxlan.vni, vxlan.port, lengths).hash(&mut hasher);
    let mark = format!("keelson-overlay {:016x}", hasher.finish());
    let mut missing: [HashMap<Vec<u8>, bool>; 4] = Default::default();
    for (set, key) in wanted.iter().flat_map(elements) {
        missing[set].insert(key, true);
    }
    if !is_there(socket, TABLE, &chains, &mark)? {
        let sets: Vec<KeySet> =
            SETS.into_iter().zip(missing).map(|(name, keys)| key_set(name, keys)).collect();
        return replace_table(socket, TABLE, &sets, &chains, &mark).map(|()| true);
    }
    let mut batch = Batch::new();
    for (name, missing) in SETS.into_iter().zip(&mut missing) {
        let mut strange = BTreeSet::new();
        nft::each_key(socket, TABLE, name, |key| match missing.get_mut(key) {
            Some(missing) => *missing = false,
            None => drop(strange.insert(key.to_vec())),
        })?;
        missing.retain(|_, missing| *missing);
        batch.add_keys(TABLE, name, &missing.drain().map(|(key, _)| key).collect::<Vec<_>>());
        batch.delete_keys(TABLE, name, &strange.into_iter().collect::<Vec<_>>());
    }
    let needed = !batch.is_empty();
    batch.run(socket, None).map(|()| needed)
}

/// Removes the rules.
pub fn remove(socket: &mut Socket) -> Result<bool, Error> {
    ensure_table(socket, TABLE, &[], &[], "")
}

/// Adds and removes elements in one transaction.
pub fn update_elements(
    socket: &mut Socket,
    allowed: &SetElements,
    removed: &SetElements,
) -> Result<(), Error> {
    let mut batch = Batch::new();
    for (number, name) in SETS.into_iter().enumerate() {
        let of = |keys: &SetElements| -> Vec<Vec<u8>> {
            keys.iter().filter(|(set, _)| *set == number).map(|(_, key)| key.clone()).collect()
        };
        batch.delete_keys(TABLE, name, &of(removed)).add_keys(TABLE, name, &of(allowed));
    }
    batch.run(socket, None)
}

/// Packets dropped since the rules were last set: from unknown hosts, and with a wrong inner source.
pub fn dropped(socket: &mut Socket) -> Result<Vec<(String, u64)>, Error> {
    let mut counters = Vec::new();
    for (chain, name) in [("input", "tunnel_from_stranger"), ("prerouting", "tunnel_strange_source")] {
        let rules = nft::list_rules(socket, TABLE, chain)?;
        let packets: u64 = rules.iter().filter_map(|rule| rule.packets).sum();
        counters.push((name.to_owned(), packets));
    }
    Ok(counters)
}

fn key_set(name: &'static str, keys: HashMap<Vec<u8>, bool>) -> KeySet {
    let v4 = name.ends_with('4');
    let (addr_type, addr_len) = if v4 { (TYPE_IPV4, 4) } else { (TYPE_IPV6, 16) };
    let (key_type, key_len) = match name.starts_with("hosts") {
        true => (addr_type, addr_len),
        false => (TYPE_ETHER << 6 | addr_type, 8 + addr_len),
    };
    KeySet { name, key_type, key_len, keys: keys.into_keys().collect() }
}

fn chains(vxlan: &Vxlan, lengths: &PrefixLengths) -> Vec<Chain> {
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
        let (protocol, offset, len) = if v4 { (2, 12, 4) } else { (10, 8, 16) };
        let (hosts, sources) = if v4 { (SETS[0], SETS[1]) } else { (SETS[2], SETS[3]) };
        let family = || vec![Expr::NfProto { to: r }, is(r, vec![protocol])];
        let mut rule = [family(), to_port()].concat();
        rule.extend([Expr::Network { offset, len, to: r }, Expr::InSet { set: hosts.into(), key: r }]);
        rule.push(Expr::Verdict(Verdict::Return));
        input.push(rule);

        let device = if v4 { format!("flannel.{}", vxlan.vni) } else { format!("flannel-v6.{}", vxlan.vni) };
        for (_, prefix) in lengths.iter().filter(|(family, _)| *family == v4) {
            let mut rule = family();
            rule.extend(from_device(&device));
            rule.extend([
                // A MAC fills two registers, the second half full.
                Expr::Link { offset: 6, len: 6, to: r },
                Expr::Network { offset, len, to: register(2) },
                Expr::And {
                    reg: register(2),
                    mask: octets(cidr::with_length(cidr::from_number(0, v4), *prefix).mask()),
                },
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
    vec![("input", INPUT, input), ("prerouting", PREROUTING, prerouting)]
}

/// The kernel itself sends from fe80::/10 on every device. That stays on the link and is no pod's address.
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
