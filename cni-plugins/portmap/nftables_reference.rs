//! The nf_tables backend as the reference plugin does it, for whoever asks for it by its name: what either made, the other
//! finds, checks and takes down.
//!
//! ```text
//! table ip cni_hostport, and the same in ip6
//!   chain prerouting, output: packets to an address of the host go to hostports_all, and from there to hostports
//!   chain hostports: a rule for each mapping, with the container's id as its comment
//!   chain masquerading: the container's rules, with the same comment
//! ```

use keelson_kit::cidr::IpNetwork;
use keelson_netkit::Socket;
use keelson_netkit::nft::{self, Batch, Expr, Family, Hook, Table, Verdict};

use super::conf::PortmapConf;
use super::{nftables, plan};
use crate::owned;
use crate::owner::Owner;
use crate::skel::Failure;

const V4: Table = Table { family: Family::Ip, name: "cni_hostport" };
const V6: Table = Table { family: Family::Ip6, name: "cni_hostport" };
const ALL: &str = "hostports_all";
const HOST_PORTS: &str = "hostports";
/// Of earlier versions of the reference; still jumped to.
const HOST_IP_PORTS: &str = "hostip_hostports";
const MASQUERADING: &str = "masquerading";

const PREROUTING: Hook = Hook { kind: "nat", number: 0, priority: -100 };
const OUTPUT: Hook = Hook { kind: "nat", number: 3, priority: -100 };
const POSTROUTING: Hook = Hook { kind: "nat", number: 4, priority: 100 };

fn table(v4: bool) -> Table {
    if v4 { V4 } else { V6 }
}

pub fn set_up(
    socket: &mut Socket,
    owner: &Owner,
    conf: &PortmapConf,
    containers: &[IpNetwork],
) -> Result<(), Failure> {
    let chains = nftables::chains(owner, conf, containers)?;
    owned::retry(|| {
        let generation = nft::generation(socket)?;
        let mut batch = Batch::new();
        for container in containers {
            let table = table(container.is_ipv4());
            add_base(socket, &mut batch, table, conf.snat)?;
            remove_rules(socket, &mut batch, table, owner)?;
            for (chain, exprs) in rules(&chains, owner, container.is_ipv4()) {
                // In front of the others: the last container that claims a port has it.
                batch.rule_in_front(table, chain, &owner.container, &exprs);
            }
        }
        batch.run(socket, Some(generation))
    })
    .map_err(Failure::from)
}

pub fn check(owner: &Owner, conf: &PortmapConf, containers: &[IpNetwork]) -> Result<(), Failure> {
    let mut socket = Socket::netfilter()?;
    for container in containers {
        let v4 = container.is_ipv4();
        let mappings = conf.mappings.iter().filter(|m| m.is_for(v4)).count();
        // The reference has a rule for the container itself, and one for the host's loopback address.
        let masquerading = if conf.snat && mappings > 0 { if v4 { 2 } else { 1 } } else { 0 };
        for (chain, wanted) in [(HOST_PORTS, mappings), (MASQUERADING, masquerading)] {
            let found = nft::list_rules(&mut socket, table(v4), chain)?;
            let found =
                found.iter().filter(|r| r.comment.as_deref() == Some(owner.container.as_str())).count();
            if found < wanted {
                return Err(Failure::check(format!(
                    "chain {chain} of nf_tables table {} has {found} of the container's {wanted} rules",
                    table(v4)
                )));
            }
        }
    }
    Ok(())
}

/// Removes the owner's rules; having none is fine.
pub fn tear_down(socket: &mut Socket, owner: &Owner) -> Result<(), Failure> {
    owned::retry(|| {
        let mut batch = Batch::new();
        for table in [V4, V6] {
            remove_rules(socket, &mut batch, table, owner)?;
        }
        batch.run(socket, None)
    })
    .map_err(Failure::from)
}

fn remove_rules(
    socket: &mut Socket,
    batch: &mut Batch,
    table: Table,
    owner: &Owner,
) -> keelson_netkit::Result<()> {
    for chain in [HOST_PORTS, HOST_IP_PORTS, MASQUERADING] {
        for rule in nft::list_rules(socket, table, chain)? {
            if rule.comment.as_deref() == Some(owner.container.as_str()) {
                batch.delete_rule(table, chain, rule.handle);
            }
        }
    }
    Ok(())
}

/// The rules of one family that our own backend would have, under the reference's chains. They begin with the family,
/// which a table of one family has no use for, and nft cannot list. Masquerading is found there by the container's
/// address in a map, and has to ask for it here: what is rewritten to lead elsewhere is none of its business.
fn rules(
    chains: &[owned::OwnedChain],
    owner: &Owner,
    v4: bool,
) -> impl Iterator<Item = (&'static str, Vec<Expr>)> {
    let family = plan::family(v4).len();
    let dnat = owner.chain(plan::DNAT);
    chains.iter().flat_map(move |chain| {
        let rewrites = chain.name == dnat;
        let of_family = move |rule: &&owned::Rule| rule.element.map.ends_with('4') == v4;
        chain.rules.iter().filter(of_family).map(move |rule| {
            let own = rule.exprs[family..].to_vec();
            match rewrites {
                true => (HOST_PORTS, own),
                false => (MASQUERADING, [plan::is_for(&rule.element.key), own].concat()),
            }
        })
    })
}

/// Adds what of the table all containers share, unless it is there.
fn add_base(socket: &mut Socket, batch: &mut Batch, table: Table, snat: bool) -> keelson_netkit::Result<()> {
    if !nft::chain_exists(socket, table, ALL)? {
        batch.table(table).chain(table, HOST_PORTS, None).chain(table, HOST_IP_PORTS, None);
        batch.chain(table, ALL, None);
        let jump = |chain: &str| Expr::Verdict(Verdict::Jump(chain.to_owned()));
        batch.rule(table, ALL, "", &[jump(HOST_IP_PORTS)]).rule(table, ALL, "", &[jump(HOST_PORTS)]);
        for (name, hook) in [("prerouting", PREROUTING), ("output", OUTPUT)] {
            // Of an older version of the reference there may be a chain that leads past the one in between.
            let there = nft::chain_exists(socket, table, name)?;
            if there {
                batch.flush(table, name);
            } else {
                batch.chain(table, name, Some(hook));
            }
            batch.rule(table, name, "", &plan::to_host(ALL));
        }
    }
    if snat && !nft::chain_exists(socket, table, MASQUERADING)? {
        batch.chain(table, MASQUERADING, Some(POSTROUTING));
    }
    Ok(())
}
