//! Masquerading by nf_tables, in a table of our own.
//!
//! ```text
//! table inet keelson_masquerade
//!   map pods4: address -> jump to the owner's chain       map pods6: the same
//!   chain postrouting: multicast returns; the source address is looked up in the map
//!   chain masq-NETWORK-OWNER: destinations outside the container's network are masqueraded
//! ```
//! A packet costs one lookup however many containers there are, and an owner's chain is found by name.
//! Its rules carry the addresses in their comments, so that tearing down needs to know nothing else.

use std::net::IpAddr;

use keelson_netkit::nft::{self, Batch, Compare, ElementValue, Expr, Family, Hook, Table, Verdict, register};
use keelson_netkit::{Error, IpNet, Socket};
use rustix::io::Errno;

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

const ATTEMPTS: usize = 20;

/// Masquerades what comes from the given addresses and leaves their networks.
pub fn set_up(owner: &Owner, nets: &[IpNet]) -> Result<(), Failure> {
    let mut socket = Socket::netfilter()?;
    let mut batch = Batch::new();
    // In the usual case nothing is in the way, and one exchange with the kernel does it.
    batch.new_chain(TABLE, &owner.chain(PREFIX));
    add_rules(&mut batch, owner, nets);
    match batch.run(&mut socket, None) {
        Ok(()) => return Ok(()),
        Err(error) if error.is_missing() || error.is_existing() || error.errno() == Some(Errno::BUSY) => {}
        Err(error) => return Err(error.into()),
    }
    retry(|| {
        let generation = nft::generation(&mut socket)?;
        let mut batch = Batch::new();
        if !nft::table_exists(&mut socket, TABLE)? {
            add_base(&mut batch);
        } else {
            remove_rules(&mut socket, &mut batch, &owner.chain(PREFIX))?;
            for net in nets {
                let (map, key) = place(net.addr);
                // Whoever had the address is gone, or it would not have been given to this container.
                if nft::element(&mut socket, TABLE, map, &key)?.is_some_and(|e| e.chain != Some(owner.chain(PREFIX))) {
                    batch.delete_element(TABLE, map, &key);
                }
            }
        }
        batch.chain(TABLE, &owner.chain(PREFIX), None);
        add_rules(&mut batch, owner, nets);
        batch.run(&mut socket, Some(generation))
    })
}

/// Removes the owner's rules, and those that the reference plugins made for it.
pub fn tear_down(owner: &Owner) -> Result<(), Failure> {
    let mut socket = Socket::netfilter()?;
    remove_chain(&mut socket, &owner.chain(PREFIX))?;
    let theirs = reference_masquerade_comment(owner);
    retry(|| {
        let mut batch = Batch::new();
        for rule in nft::list_rules(&mut socket, REFERENCE_TABLE, REFERENCE_CHAIN)? {
            if rule.comment.as_deref().is_some_and(|c| c.starts_with(&theirs)) {
                batch.delete_rule(REFERENCE_TABLE, REFERENCE_CHAIN, rule.handle);
            }
        }
        batch.run(&mut socket, None)
    })
}

/// Removes the rules of all owners on a network but those to be kept.
pub fn collect(network: &str, keep: &[ValidAttachment]) -> Result<(), Failure> {
    let mut socket = Socket::netfilter()?;
    let prefix = network_prefix(PREFIX, network);
    let keep: Vec<String> = keep
        .iter()
        .map(|a| Owner { network: network.to_owned(), container: a.container.clone(), ifname: a.ifname.clone() }.chain(PREFIX))
        .collect();
    for chain in nft::list_chains(&mut socket, TABLE)? {
        if chain.starts_with(&prefix) && !keep.contains(&chain) {
            remove_chain(&mut socket, &chain)?;
        }
    }
    Ok(())
}

fn remove_chain(socket: &mut Socket, chain: &str) -> Result<(), Failure> {
    retry(|| {
        let generation = nft::generation(socket)?;
        let mut batch = Batch::new();
        if remove_rules(socket, &mut batch, chain)? {
            batch.delete_chain(TABLE, chain);
        }
        batch.run(socket, Some(generation))
    })
}

/// Takes the chain's addresses out of the maps, unless they lead elsewhere by now, and empties it. Tells
/// whether there was anything.
fn remove_rules(socket: &mut Socket, batch: &mut Batch, chain: &str) -> keelson_netkit::Result<bool> {
    let rules = nft::list_rules(socket, TABLE, chain)?;
    if rules.is_empty() {
        return Ok(false);
    }
    for addr in rules.iter().filter_map(|r| r.comment.as_deref()?.split(' ').next()?.parse::<IpAddr>().ok()) {
        let (map, key) = place(addr);
        if nft::element(socket, TABLE, map, &key)?.is_some_and(|e| e.chain.as_deref() == Some(chain)) {
            batch.delete_element(TABLE, map, &key);
        }
    }
    batch.flush(TABLE, chain);
    Ok(true)
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

/// The owner's rules and the elements that lead to them.
fn add_rules(batch: &mut Batch, owner: &Owner, nets: &[IpNet]) {
    let chain = owner.chain(PREFIX);
    for net in nets {
        batch.rule(TABLE, &chain, &owner.comment(&net.addr.to_string()), &leaves(*net));
    }
    for net in nets {
        let (map, key) = place(net.addr);
        batch.element(TABLE, map, &key, &ElementValue::Verdict(Verdict::Jump(chain.clone())));
    }
}

/// Masquerades what comes from the address and does not go to its network.
fn leaves(net: IpNet) -> Vec<Expr> {
    let (r, network) = (register(0), net.network().addr);
    let (mut rule, source, destination, len) = match net.is_v4() {
        true => (ipv4(), 12, 16, 4),
        false => (ipv6(), 8, 24, 16),
    };
    let mask: Vec<u8> = (0..len).map(|i| (0xff00u16 >> i32::from(net.prefix).saturating_sub(8 * i as i32).clamp(0, 8)) as u8).collect();
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

/// The map an address belongs in, and its key there.
fn place(addr: IpAddr) -> (&'static str, Vec<u8>) {
    (if addr.is_ipv4() { "pods4" } else { "pods6" }, octets(addr))
}

fn octets(addr: IpAddr) -> Vec<u8> {
    match addr {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

/// Looks and changes again when someone else changed the rule set in between.
fn retry(mut change: impl FnMut() -> Result<(), Error>) -> Result<(), Failure> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        match change() {
            Err(error) if attempt < ATTEMPTS && error.is_conflict() => {}
            other => return other.map_err(Failure::from),
        }
    }
}
