//! ADD: what is made, in which order, and how it is undone when a later step fails.

use keelson_netkit::link::{self, Link};
use keelson_netkit::{NetNs, Socket};

use super::conf::{BridgeConf, MasqueradeBackend};
use super::{container, gateway, masquerade, masquerade_iptables, masquerade_reference, plan, port, spoof};
use crate::delegate::Delegate;
use crate::owner::Owner;
use crate::skel::{Attachment, Call, CniResult, Dns, Failure, Interface};

/// What this call has made so far; only that is undone.
#[derive(Default)]
struct Made {
    addresses: bool,
    port: Option<String>,
    masquerading: bool,
    spoof_check: bool,
}

/// What all steps work with.
struct Work<'a> {
    call: &'a Call,
    at: &'a Attachment,
    conf: BridgeConf,
    owner: Owner,
    netns: &'a NetNs,
    host: Socket,
    inside: Socket,
}

pub fn add(call: &Call, at: &Attachment) -> Result<CniResult, Failure> {
    let conf = BridgeConf::load(call)?;
    conf.check_combinations()?;
    let Some(netns) = &call.netns else { return Err(Failure::environment("ADD needs CNI_NETNS")) };
    let ipam = conf.ipam.as_deref().map(|kind| Delegate::find(call, kind)).transpose()?;
    let owner = Owner::new(call, at);
    let host = Socket::route()?;
    let inside = netns.run(Socket::route)?;
    let mut work = Work { call, at, conf, owner, netns, host, inside };
    let mut made = Made::default();
    let outcome = attach(&mut work, ipam.as_ref(), &mut made);
    if outcome.is_err() {
        undo(&mut work, ipam.as_ref(), &made);
    }
    outcome
}

fn attach(work: &mut Work<'_>, ipam: Option<&Delegate>, made: &mut Made) -> Result<CniResult, Failure> {
    let name = work.at.ifname.as_str();
    if link::find(&mut work.inside, name)?.is_some() {
        return Err(Failure::internal(format!(
            "container {} has an interface {name} already; an interface is added once and then deleted",
            work.at.container
        )));
    }
    let mut result = match ipam {
        Some(ipam) => addresses(work, ipam, made)?,
        None => CniResult::default(),
    };
    let gateways = plan::complete(&mut result, &work.conf);

    let bridge = port::ensure_bridge(&mut work.host, &work.conf)?;
    let port = port::create(&mut work.host, &bridge, &work.conf, work.netns, work.at, &work.owner)?;
    made.port = Some(port.name.clone());
    port::configure(&mut work.host, &port, &work.conf)?;
    let inner = link::get_by_name(&mut work.inside, name)?;
    if work.conf.mac_spoof_check {
        made.spoof_check = true;
        spoof::set_up(&work.owner, &port.name, inner.mac)?;
    }

    let mut vlan = None;
    if ipam.is_some() {
        container::configure(work.netns, &mut work.inside, &inner, &work.conf, &result)?;
        vlan = gateway::ensure(&mut work.host, &bridge, &work.conf, &gateways)?;
        masquerade(work, &result, made)?;
        if result.ips.iter().any(|ip| !ip.address.is_ipv4()) {
            container::settle(&mut work.inside, &inner, &work.conf)?;
        }
    } else if work.conf.container_interface {
        work.inside.call(link::set_up(&inner))?;
    }

    let port = match work.conf.container_interface {
        true => port::wait_until_forwarding(&mut work.host, &port.name)?,
        false => port,
    };
    let bridge = link::get_by_name(&mut work.host, &bridge.name)?;
    result.interfaces = vec![host_interface(&bridge), host_interface(&port)];
    result.interfaces.push(Interface {
        name: name.to_owned(),
        mac: inner.mac.map(|m| m.to_string()).unwrap_or_default(),
        sandbox: work.call.netns_path.clone(),
        ..Default::default()
    });
    result.interfaces.extend(vlan.as_ref().map(host_interface));
    if work.conf.dns != Dns::default() {
        result.dns = work.conf.dns.clone();
    }
    Ok(result)
}

fn addresses(work: &Work<'_>, ipam: &Delegate, made: &mut Made) -> Result<CniResult, Failure> {
    // A foreign plugin that failed may have kept something, so it is asked to let go. Ours never does.
    made.addresses = matches!(ipam, Delegate::Foreign(_));
    let result = ipam.add(work.call, work.at)?;
    made.addresses = true;
    if result.ips.is_empty() {
        return Err(Failure::internal("the IPAM plugin gave no address"));
    }
    Ok(CniResult { interfaces: Vec::new(), ..result })
}

fn masquerade(work: &Work<'_>, result: &CniResult, made: &mut Made) -> Result<(), Failure> {
    let Some(backend) = work.conf.masquerade else { return Ok(()) };
    let nets: Vec<_> = result.ips.iter().map(|ip| ip.address).collect();
    made.masquerading = true;
    match backend {
        MasqueradeBackend::Own => masquerade::set_up(&work.owner, &nets),
        MasqueradeBackend::Nftables => masquerade_reference::set_up(&work.owner, &nets),
        MasqueradeBackend::Iptables => masquerade_iptables::set_up(&work.owner, &nets),
    }
}

/// Undoes what was made, newest first. The failure that led here is the one to be reported.
fn undo(work: &mut Work<'_>, ipam: Option<&Delegate>, made: &Made) {
    if let Some(port) = &made.port {
        let _ = link::delete(&mut work.host, port);
    }
    if let (true, Ok(mut socket)) = (made.masquerading || made.spoof_check, Socket::netfilter()) {
        let _ = masquerade::tear_down(&mut socket, &work.owner);
        if work.conf.masquerade == Some(MasqueradeBackend::Iptables) {
            let _ = masquerade_iptables::tear_down(&work.owner);
        }
        if made.spoof_check {
            let _ = spoof::tear_down(&mut socket, &work.owner);
        }
    }
    if let (Some(ipam), true) = (ipam, made.addresses) {
        let _ = ipam.del(work.call, work.at);
    }
}

fn host_interface(link: &Link) -> Interface {
    Interface {
        name: link.name.clone(),
        mac: link.mac.map(|m| m.to_string()).unwrap_or_default(),
        ..Default::default()
    }
}
