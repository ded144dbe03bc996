//! Masquerading by the iptables programs, with the reference plugins' chains.

use keelson_kit::cidr::IpNetwork;
use keelson_netkit::Socket;
use keelson_netkit::nft::{self, Family, Table};

use crate::iptables::{self, Iptables};
use crate::owner::{Owner, reference_chain};
use crate::skel::Failure;

/// The tables in which the iptables programs of today keep their chains.
const NAT4: Table = Table { family: Family::Ip, name: "nat" };
const NAT6: Table = Table { family: Family::Ip6, name: "nat" };

/// Masquerades what comes from the given addresses and leaves their networks.
pub fn set_up(owner: &Owner, nets: &[IpNetwork]) -> Result<(), Failure> {
    let _turn = iptables::take_turns(owner);
    let chain = reference_chain("", &owner.network, &owner.container);
    let comment = format!("name: {:?} id: {:?}", owner.network, owner.container);
    let remark = ["-m", "comment", "--comment", comment.as_str()];
    for net in nets {
        let iptables = Iptables::of(net.ip());
        let (network, addr) = (net.to_string(), net.ip().to_string());
        let multicast = if net.is_ipv4() { "224.0.0.0/4" } else { "ff00::/8" };
        iptables.ensure_chain(&chain)?;
        iptables.ensure_rule(&chain, &[&["-d", &network, "-j", "ACCEPT"][..], &remark].concat(), false)?;
        iptables.ensure_rule(
            &chain,
            &[&["!", "-d", multicast, "-j", "MASQUERADE"][..], &remark].concat(),
            false,
        )?;
        iptables.ensure_rule("POSTROUTING", &[&["-s", &addr, "-j", &chain][..], &remark].concat(), false)?;
    }
    Ok(())
}

/// Removes the owner's chain and what leads to it. A program that is not there made no rules.
pub fn tear_down(owner: &Owner) -> Result<(), Failure> {
    let _turn = iptables::take_turns(owner);
    let chain = reference_chain("", &owner.network, &owner.container);
    let mut failures = Vec::new();
    for iptables in [Iptables::V4, Iptables::V6] {
        if iptables.is_usable() {
            failures.extend(iptables.remove_chain(&chain, &["POSTROUTING"]).err());
        }
    }
    Failure::all(failures)
}

/// Removes the owner's chain if the backend is configured, or if the reference plugins, whose default it
/// is, left one. Looking costs two exchanges with the kernel and no process.
pub fn tear_down_if_there(socket: &mut Socket, owner: &Owner, configured: bool) -> Result<(), Failure> {
    if configured {
        return tear_down(owner);
    }
    let chain = reference_chain("", &owner.network, &owner.container);
    for table in [NAT4, NAT6] {
        if nft::chain_exists(socket, table, &chain)? {
            return tear_down(owner);
        }
    }
    Ok(())
}
