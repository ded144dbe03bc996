//! Ports of the host, led to a container.

mod conditions;
mod conf;
mod iptables;
mod nftables;
mod plan;

use keelson_netkit::addr::Family;
use keelson_netkit::{IpNet, Socket, conntrack, link, route, sysctl};

pub use conf::{Backend, Mapping, PortmapConf, Protocol};

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
        let made = match conf.backend {
            Backend::Nftables => nftables::set_up(&owner, &conf, &containers),
            Backend::Iptables => iptables::set_up(&owner, &conf, &containers),
        };
        let finished = made.and_then(|()| finish(&conf, &containers));
        if let Err(failure) = finished {
            let _ = tear_down(&owner, &conf);
            return Err(failure);
        }
        Ok(result)
    }

    fn del(&self, call: &Call, at: &Attachment) -> Result<(), Failure> {
        let conf = PortmapConf::load(call)?;
        tear_down(&Owner::new(call, at), &conf)?;
        forget_connections(&conf, true);
        forget_connections(&conf, false);
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
            Backend::Nftables => nftables::check(&owner, &conf, &containers(&result, at)),
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

fn containers(result: &CniResult, at: &Attachment) -> Vec<IpNet> {
    let (v4, v6) = conf::container_addresses(result, at);
    v4.into_iter().chain(v6).collect()
}

/// What comes after the rules: stale connections go, and the loopback address may leave the host.
fn finish(conf: &PortmapConf, containers: &[IpNet]) -> Result<(), Failure> {
    for container in containers {
        forget_connections(conf, container.is_v4());
        if conf.snat && container.is_v4() {
            let mut socket = Socket::route()?;
            if let Ok(Some(towards)) = route::link_towards(&mut socket, container.addr) {
                let name = link::get_by_index(&mut socket, towards)?.name;
                sysctl::ensure(&format!("net/ipv4/conf/{name}/route_localnet"), "1")?;
            }
        }
    }
    Ok(())
}

/// UDP has no beginning: without this, a client that keeps sending stays with the container that had the
/// port before. It is worth a try and no more, as a connection may end any time.
fn forget_connections(conf: &PortmapConf, v4: bool) {
    let stale: Vec<&Mapping> =
        conf.mappings.iter().filter(|m| m.protocol == Protocol::Udp && m.is_for(v4)).collect();
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
fn tear_down(owner: &Owner, conf: &PortmapConf) -> Result<(), Failure> {
    let mut failures = Vec::new();
    match Socket::netfilter() {
        Ok(mut socket) => {
            failures.extend(nftables::tear_down(&mut socket, owner).err());
            failures.extend(
                iptables::tear_down_if_there(&mut socket, owner, conf.backend == Backend::Iptables).err(),
            );
        }
        Err(_) if conf.mappings.is_empty() => {}
        Err(error) => failures.push(error.into()),
    }
    Failure::all(failures)
}
