//! The nf_tables backend of our own, the default.

use keelson_kit::cidr::IpNetwork;
use keelson_netkit::Socket;
use keelson_netkit::nft::Expr;

use super::conf::PortmapConf;
use super::{conditions, nftables_reference, plan};
use crate::owned;
use crate::owner::{Owner, network_prefix};
use crate::skel::{Failure, ValidAttachment};

pub fn set_up(
    socket: &mut Socket,
    owner: &Owner,
    conf: &PortmapConf,
    containers: &[IpNetwork],
) -> Result<(), Failure> {
    let chains = chains(owner, conf, containers)?;
    if chains.is_empty() {
        return Ok(());
    }
    owned::install(socket, plan::TABLE, &plan::BASE, owner, &chains).map_err(Failure::from)
}

pub fn check(owner: &Owner, conf: &PortmapConf, containers: &[IpNetwork]) -> Result<(), Failure> {
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
    nftables_reference::tear_down(socket, owner)
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

/// The owner's chains as they should be, in our own table.
pub fn chains(
    owner: &Owner,
    conf: &PortmapConf,
    containers: &[IpNetwork],
) -> Result<Vec<owned::OwnedChain>, Failure> {
    let translate = |key: &str, words: &[String]| -> Result<Vec<Expr>, Failure> {
        conditions::translate(words).map_err(|e| Failure::config(format!("{key:?}: {e}")))
    };
    let v4 = translate("conditionsV4", &conf.conditions_v4)?;
    let v6 = translate("conditionsV6", &conf.conditions_v6)?;
    Ok(plan::chains(owner, conf, containers, |is_v4| if is_v4 { v4.clone() } else { v6.clone() }))
}
