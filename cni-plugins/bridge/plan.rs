//! What addresses, routes and VLANs there should be. Nothing here touches the machine.

use keelson_kit::cidr::{self, IpNetwork};
use keelson_netkit::IfIndex;
use keelson_netkit::addr::Address;
use keelson_netkit::bridge::Vlan;
use keelson_netkit::route::{self, SCOPE_UNIVERSE};

use super::conf::{BridgeConf, Vlans};
use crate::skel::{CniResult, Route};

/// The container's interface is third in the result, after the bridge and the host's end of the veth.
pub const CONTAINER_INTERFACE: usize = 2;

/// Completes what IPAM gave: which interface the addresses are on, missing gateways, default routes.
/// Returns the addresses that the bridge itself should have.
pub fn complete(result: &mut CniResult, conf: &BridgeConf) -> Vec<IpNetwork> {
    let mut gateways = Vec::new();
    let mut routed = [false, false];
    for ip in &mut result.ips {
        ip.interface = Some(CONTAINER_INTERFACE);
        if !conf.is_gateway {
            continue;
        }
        let gateway = *ip.gateway.get_or_insert_with(|| cidr::next(ip.address.network()));
        gateways.push(cidr::with_length(gateway, ip.address.prefix()));
        let default = cidr::everything(ip.address.is_ipv4());
        let routed = &mut routed[usize::from(ip.address.is_ipv4())];
        if conf.is_default_gateway && !*routed {
            *routed = true;
            if !result.routes.iter().any(|r| r.gw.is_some() && r.dst == default) {
                result.routes.push(Route {
                    dst: default,
                    gw: Some(gateway),
                    mtu: None,
                    advmss: None,
                    priority: None,
                    table: None,
                    scope: None,
                });
            }
        }
    }
    // IPv4 first, as the addresses are put on the bridge in this order.
    gateways.sort_by_key(|g| !g.is_ipv4());
    gateways
}

/// The routes for the kernel. A route without a gateway takes that of the family's first address. Routes
/// that come out the same are made once.
pub fn routes(result: &CniResult, link: IfIndex) -> Vec<route::Route> {
    let gateway_of = |v4: bool| result.ips.iter().filter_map(|ip| ip.gateway).find(|g| g.is_ipv4() == v4);
    let mut routes: Vec<route::Route> = Vec::new();
    for wanted in &result.routes {
        let route = route::Route {
            gateway: wanted.gw.or_else(|| gateway_of(wanted.dst.is_ipv4())),
            link: Some(link),
            priority: wanted.priority.filter(|p| *p > 0),
            table: wanted.table.filter(|t| *t > 0),
            scope: wanted.scope.unwrap_or(SCOPE_UNIVERSE),
            mtu: wanted.mtu.filter(|m| *m > 0),
            advmss: wanted.advmss.filter(|m| *m > 0),
            ..route::Route::to(wanted.dst)
        };
        if !routes.contains(&route) {
            routes.push(route);
        }
    }
    routes
}

/// How an address gets onto the bridge.
#[derive(Debug, PartialEq, Eq)]
pub enum GatewayPlan {
    /// It is there.
    Keep,
    /// It is added after others are removed.
    Add { remove: Vec<IpNetwork> },
}

/// Decides what becomes of the bridge's addresses. The bridge has one IPv4 address, and IPv6 addresses of
/// networks that do not overlap; what is in the way is removed only if the configuration forces it.
pub fn gateway(
    present: &[Address],
    wanted: IpNetwork,
    force: bool,
    bridge: &str,
) -> Result<GatewayPlan, String> {
    let same_family = || present.iter().map(|a| a.net).filter(|net| net.is_ipv4() == wanted.is_ipv4());
    if same_family().any(|net| net == wanted) {
        return Ok(GatewayPlan::Keep);
    }
    let in_the_way: Vec<IpNetwork> =
        same_family().filter(|net| net.is_ipv4() || cidr::overlap(*net, wanted)).collect();
    if let (Some(other), false) = (in_the_way.first(), force) {
        return Err(format!(
            "bridge {bridge} has the address {other} and should have {wanted}; \"forceAddress\": true replaces it"
        ));
    }
    Ok(GatewayPlan::Add { remove: in_the_way })
}

/// The VLANs a port should carry, after those it got by default are removed or not.
pub fn port_vlans(vlans: &Vlans) -> Vec<Vlan> {
    let mut plan = Vec::new();
    if let Some(id) = vlans.access {
        plan.push(Vlan { id, pvid: true, untagged: true });
    }
    let trunk = vlans.trunk.as_deref().unwrap_or_default();
    plan.extend(trunk.iter().map(|id| Vlan { id: *id, pvid: false, untagged: false }));
    if vlans.access.is_none() && !trunk.is_empty() {
        // A trunk alone carries untagged frames in VLAN 1, as it always did.
        plan.push(Vlan { id: 1, pvid: true, untagged: true });
    }
    plan
}

/// Whether the VLANs that the bridge gave the port have to go.
pub fn drops_default_vlans(vlans: &Vlans) -> bool {
    !vlans.preserve_default && !port_vlans(vlans).is_empty()
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
