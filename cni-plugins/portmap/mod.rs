//! Ports of the host, led to a container.

mod conditions;
mod conf;
mod iptables;
mod localnet;
mod nftables;
mod nftables_reference;
mod plan;

use keelson_kit::cidr::IpNetwork;
use keelson_netkit::addr::Family;
use keelson_netkit::{Socket, conntrack, link, route, sysctl};

pub use conf::{Backend, Mapping, PortmapConf, Protocol, Release};

use crate::owner::Owner;
use crate::skel::{Attachment, Call, CniResult, Failure, Plugin};

pub struct Portmap;

impl Plugin for Portmap {
    fn name(&self) -> &'static str {
        "portmap"
    }

    fn enters_netns(&self) -> bool {
        false
    }

    fn add(&self, call: &Call, at: &Attachment) -> Result<CniResult, Failure> {
        let conf = PortmapConf::load(call)?;
        let Some(result) = call.previous_result()? else {
            return Err(Failure::config(
                "portmap runs after another plugin, whose result is missing: \"prevResult\"",
            ));
        };
        if conf.mappings.is_empty() {
            return Ok(result);
        }
        let owner = Owner::new(call, at);
        let containers = containers(&result, at);
        let mut rules = Socket::netfilter().map_err(Failure::from);
        let made = match (conf.backend, &mut rules) {
            (Backend::Iptables, _) => iptables::set_up(&owner, &conf, &containers),
            (Backend::Own, Ok(socket)) => nftables::set_up(socket, &owner, &conf, &containers),
            (Backend::Nftables, Ok(socket)) => nftables_reference::set_up(socket, &owner, &conf, &containers),
            (_, Err(failure)) => Err(failure.clone()),
        };
        let finished = made.and_then(|()| finish(&conf, &containers, rules.as_mut()));
        if let Err(failure) = finished {
            let _ = tear_down(&owner, conf.backend == Backend::Iptables, true);
            return Err(failure);
        }
        Ok(result)
    }

    fn del(&self, call: &Call, at: &Attachment) -> Result<(), Failure> {
        let release = Release::load(call);
        tear_down(&Owner::new(call, at), release.by_iptables, !release.mappings.is_empty())?;
        forget_connections(&release.mappings, true);
        forget_connections(&release.mappings, false);
        Ok(())
    }

    fn check(&self, call: &Call, at: &Attachment) -> Result<(), Failure> {
        let conf = PortmapConf::load(call)?;
        let Some(result) = call.previous_result()? else {
            return Err(Failure::config("CHECK needs \"prevResult\", the result of ADD"));
        };
        if conf.mappings.is_empty() {
            return Ok(());
        }
        let owner = Owner::new(call, at);
        match conf.backend {
            Backend::Own => nftables::check(&owner, &conf, &containers(&result, at)),
            Backend::Nftables => nftables_reference::check(&owner, &conf, &containers(&result, at)),
            Backend::Iptables => iptables::check(&owner, &conf, &containers(&result, at)),
        }
    }

    fn gc(&self, call: &Call) -> Result<(), Failure> {
        nftables::collect(call.network.as_str(), &call.valid_attachments()?)
    }

    fn status(&self, call: &Call) -> Result<(), Failure> {
        PortmapConf::load(call).map(drop)
    }
}

fn containers(result: &CniResult, at: &Attachment) -> Vec<IpNetwork> {
    let (v4, v6) = conf::container_addresses(result, at);
    v4.into_iter().chain(v6).collect()
}

/// What comes after the rules: stale connections go, and the loopback address may leave the host.
fn finish(
    conf: &PortmapConf,
    containers: &[IpNetwork],
    mut rules: Result<&mut Socket, &mut Failure>,
) -> Result<(), Failure> {
    for container in containers {
        forget_connections(&conf.mappings, container.is_ipv4());
        if conf.snat && container.is_ipv4() {
            let mut socket = Socket::route()?;
            if let Ok(Some(towards)) = route::link_towards(&mut socket, container.ip()) {
                let name = link::get_by_index(&mut socket, towards)?.name;
                let guarded = match &mut rules {
                    Ok(socket) => localnet::guard(socket),
                    Err(failure) => Err(failure.clone()),
                };
                match guarded {
                    // A kernel that has only what the older iptables programs use.
                    Err(_) if conf.backend == Backend::Iptables => localnet::guard_by_iptables()?,
                    other => other?,
                }
                sysctl::ensure(&format!("net/ipv4/conf/{name}/route_localnet"), "1")?;
            }
        }
    }
    Ok(())
}

/// UDP has no beginning: without this, a client that keeps sending stays with the container that had the
/// port before. It is worth a try and no more, as a connection may end any time.
fn forget_connections(mappings: &[Mapping], v4: bool) {
    let stale: Vec<&Mapping> =
        mappings.iter().filter(|m| m.protocol == Protocol::Udp && m.is_for(v4)).collect();
    if stale.is_empty() {
        return;
    }
    let family = if v4 { Family::V4 } else { Family::V6 };
    let Ok(mut socket) = Socket::netfilter() else { return };
    let _ = conntrack::delete(&mut socket, family, |original| {
        original.protocol == conntrack::UDP
            && stale.iter().any(|m| {
                m.host_port == original.dst_port && m.single_host_ip().is_none_or(|ip| ip == original.dst)
            })
    });
}

/// Removes the owner's rules of both backends, whoever made them and whatever the configuration says now.
fn tear_down(owner: &Owner, by_iptables: bool, mapped: bool) -> Result<(), Failure> {
    let mut failures = Vec::new();
    match Socket::netfilter() {
        Ok(mut socket) => {
            failures.extend(nftables::tear_down(&mut socket, owner).err());
            failures.extend(iptables::tear_down_if_there(&mut socket, owner, by_iptables).err());
        }
        Err(_) if !mapped => {}
        Err(error) => failures.push(error.into()),
    }
    Failure::all(failures)
}
