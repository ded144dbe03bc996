//! CHECK: is what ADD made still there?

use keelson_kit::cidr;
use keelson_netkit::addr::{self, Family};
use keelson_netkit::link::{self, Link};
use keelson_netkit::route;
use keelson_netkit::{NetNs, Socket};

use super::conf::BridgeConf;
use crate::delegate::Delegate;
use crate::skel::{Attachment, Call, CniResult, Failure, Interface};

pub fn check(call: &Call, at: &Attachment) -> Result<(), Failure> {
    let conf = BridgeConf::load(call)?;
    let Some(netns) = &call.netns else { return Err(Failure::environment("CHECK needs CNI_NETNS")) };
    if let Some(kind) = &conf.ipam {
        Delegate::find(call, kind)?.check(call, at)?;
    }
    let Some(result) = call.previous_result()? else {
        return Err(Failure::config("CHECK needs \"prevResult\", the result of ADD"));
    };
    let mut host = Socket::route()?;
    let mut inside = netns.run(Socket::route)?;
    let bridge = check_bridge(&mut host, &conf, &result)?;
    let inner = check_container(&mut inside, call, at, &result)?;
    check_port(&mut host, &result, &bridge, &inner, &conf, at)?;
    check_addresses(&mut inside, &inner, &result)?;
    check_routes(&mut inside, netns, &result)
}

fn check_bridge(host: &mut Socket, conf: &BridgeConf, result: &CniResult) -> Result<Link, Failure> {
    let name = conf.bridge.as_str();
    let reported = result.interfaces.iter().find(|i| i.name == name && i.sandbox.is_empty());
    let Some(reported) = reported else {
        return Err(Failure::check(format!("the previous result has no bridge {name} on the host")));
    };
    let Some(bridge) = link::find(host, name)?.filter(|l| l.is_kind("bridge")) else {
        return Err(Failure::check(format!("there is no bridge {name}")));
    };
    same_mac(reported, &bridge)?;
    if (bridge.promiscuity != 0) != conf.promiscuous {
        return Err(Failure::check(format!(
            "bridge {name} has promiscuity {}, \"promiscMode\" is {}",
            bridge.promiscuity, conf.promiscuous
        )));
    }
    Ok(bridge)
}

fn check_container(
    inside: &mut Socket,
    call: &Call,
    at: &Attachment,
    result: &CniResult,
) -> Result<Link, Failure> {
    let name = at.ifname.as_str();
    let reported = result.interfaces.iter().find(|i| i.name == name && i.sandbox == call.netns_path);
    let Some(reported) = reported else {
        return Err(Failure::check(format!(
            "the previous result has no interface {name} in {}",
            call.netns_path
        )));
    };
    let Some(inner) = link::find(inside, name)? else {
        return Err(Failure::check(format!("there is no interface {name} in {}", call.netns_path)));
    };
    if !inner.is_kind("veth") {
        return Err(Failure::check(format!("{name} in {} is not a veth", call.netns_path)));
    }
    same_mac(reported, &inner)?;
    Ok(inner)
}

/// The host's end is the one of the result's interfaces that is the container's peer.
fn check_port(
    host: &mut Socket,
    result: &CniResult,
    bridge: &Link,
    inner: &Link,
    conf: &BridgeConf,
    at: &Attachment,
) -> Result<(), Failure> {
    for reported in result.interfaces.iter().filter(|i| i.sandbox.is_empty() && i.name != bridge.name) {
        let Some(port) = link::find(host, &reported.name)?.filter(|l| l.is_kind("veth")) else { continue };
        if port.peer == Some(inner.index)
            && inner.peer == Some(port.index)
            && port.master == Some(bridge.index)
        {
            return same_mac(reported, &port);
        }
    }
    Err(Failure::check(format!("bridge {} has no port that leads to {}", conf.bridge, at.ifname)))
}

fn check_addresses(inside: &mut Socket, inner: &Link, result: &CniResult) -> Result<(), Failure> {
    let present = addr::list(inside, inner, Family::Any)?;
    for ip in &result.ips {
        if !present.iter().any(|a| a.net == ip.address) {
            return Err(Failure::check(format!("{} has not got the address {}", inner.name, ip.address)));
        }
    }
    Ok(())
}

fn check_routes(inside: &mut Socket, netns: &NetNs, result: &CniResult) -> Result<(), Failure> {
    for wanted in &result.routes {
        let present = route::list(inside, Family::of(wanted.dst.ip()))?;
        let matches = |r: &&route::Route| {
            cidr::truncated(r.dst) == cidr::truncated(wanted.dst)
                && wanted.gw.is_none_or(|gw| r.gateway == Some(gw))
                && wanted.table.is_none_or(|table| table == 0 || r.table == Some(table))
        };
        if !present.iter().any(|r| matches(&r)) {
            let via = wanted.gw.map(|gw| format!(" via {gw}")).unwrap_or_default();
            return Err(Failure::check(format!(
                "{} has no route to {}{via}",
                netns.path().display(),
                wanted.dst
            )));
        }
    }
    Ok(())
}

fn same_mac(reported: &Interface, found: &Link) -> Result<(), Failure> {
    let mac = found.mac.map(|m| m.to_string()).unwrap_or_default();
    if reported.mac.is_empty() || reported.mac == mac {
        return Ok(());
    }
    Err(Failure::check(format!("{} has the MAC {mac}, ADD gave it {}", found.name, reported.mac)))
}
