//! The nf_tables backend.

use keelson_netkit::nft::{self, Batch, Expr, Family, Table};
use keelson_netkit::{IpNet, Socket};

use super::conf::PortmapConf;
use super::{conditions, plan};
use crate::owned;
use crate::owner::{Owner, network_prefix};
use crate::skel::{Failure, ValidAttachment};

/// Where the reference plugin keeps its rules, with the container's id as their comment.
const REFERENCE_TABLES: [Table; 2] =
    [Table { family: Family::Ip, name: "cni_hostport" }, Table { family: Family::Ip6, name: "cni_hostport" }];
const REFERENCE_CHAINS: [&str; 3] = ["hostports", "hostip_hostports", "masquerading"];

pub fn set_up(owner: &Owner, conf: &PortmapConf, containers: &[IpNet]) -> Result<(), Failure> {
    let chains = chains(owner, conf, containers)?;
    if chains.is_empty() {
        return Ok(());
    }
    let mut socket = Socket::netfilter()?;
    owned::install(&mut socket, plan::TABLE, plan::add_base, owner, &chains).map_err(Failure::from)
}

pub fn check(owner: &Owner, conf: &PortmapConf, containers: &[IpNet]) -> Result<(), Failure> {
    let mut socket = Socket::netfilter()?;
    for chain in chains(owner, conf, containers)? {
        if let Some(element) = owned::find_missing(&mut socket, plan::TABLE, &chain)? {
            return Err(Failure::check(format!(
                "map {} of nf_tables table {} does not lead to chain {} any more",
                element.map,
                plan::TABLE,
                chain.name
            )));
        }
    }
    Ok(())
}

/// Removes the owner's rules, and those that the reference plugin made for it.
pub fn tear_down(socket: &mut Socket, owner: &Owner) -> Result<(), Failure> {
    owned::remove(socket, plan::TABLE, &[owner.chain(plan::DNAT), owner.chain(plan::SNAT)])?;
    owned::retry(|| {
        let mut batch = Batch::new();
        for table in REFERENCE_TABLES {
            for chain in REFERENCE_CHAINS {
                for rule in nft::list_rules(socket, table, chain)? {
                    if rule.comment.as_deref() == Some(owner.container.as_str()) {
                        batch.delete_rule(table, chain, rule.handle);
                    }
                }
            }
        }
        batch.run(socket, None)
    })
    .map_err(Failure::from)
}

/// Removes the rules of all owners on a network but those to be kept.
pub fn collect(network: &str, keep: &[ValidAttachment]) -> Result<(), Failure> {
    let mut socket = Socket::netfilter()?;
    for prefix in [plan::DNAT, plan::SNAT] {
        let keep: Vec<String> = keep.iter().map(|a| Owner::kept(network, a).chain(prefix)).collect();
        owned::collect(&mut socket, plan::TABLE, &network_prefix(prefix, network), &keep)?;
    }
    Ok(())
}

fn chains(
    owner: &Owner,
    conf: &PortmapConf,
    containers: &[IpNet],
) -> Result<Vec<owned::OwnedChain>, Failure> {
    let translate = |key: &str, words: &[String]| -> Result<Vec<Expr>, Failure> {
        conditions::translate(words).map_err(|e| Failure::config(format!("{key:?}: {e}")))
    };
    let v4 = translate("conditionsV4", &conf.conditions_v4)?;
    let v6 = translate("conditionsV6", &conf.conditions_v6)?;
    Ok(plan::chains(owner, conf, containers, |is_v4| if is_v4 { v4.clone() } else { v6.clone() }))
}
