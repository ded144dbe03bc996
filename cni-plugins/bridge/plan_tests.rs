use super::*;
use crate::bridge::conf::MasqueradeBackend;
use crate::skel::{Dns, IpConfig};
use keelson_netkit::IfName;

fn conf() -> BridgeConf {
    BridgeConf {
        bridge: IfName::try_from("cni0").unwrap(),
        is_gateway: true,
        is_default_gateway: false,
        force_address: false,
        masquerade: Some(MasqueradeBackend::Nftables),
        mtu: None,
        hairpin: false,
        promiscuous: false,
        vlans: Vlans { access: None, trunk: None, preserve_default: false },
        mac_spoof_check: false,
        duplicate_detection: false,
        container_interface: true,
        port_isolation: false,
        mac: None,
        ipam: Some("host-local".into()),
        dns: Dns::default(),
    }
}

fn ip(address: &str, gateway: Option<&str>) -> IpConfig {
    IpConfig {
        interface: None,
        address: address.parse().unwrap(),
        gateway: gateway.map(|g| g.parse().unwrap()),
    }
}

fn to(dst: &str, gw: Option<&str>) -> Route {
    let gw = gw.map(|g| g.parse().unwrap());
    Route { dst: dst.parse().unwrap(), gw, mtu: None, advmss: None, priority: None, table: None, scope: None }
}

fn shown(routes: &[Route]) -> Vec<String> {
    routes.iter().map(|r| format!("{} {}", r.dst, r.gw.map(|g| g.to_string()).unwrap_or_default())).collect()
}

#[test]
fn a_gateway_that_ipam_left_out_is_the_network_s_first_address() {
    let mut result = CniResult {
        ips: vec![ip("fd00::5/64", None), ip("10.1.2.3/24", None), ip("10.9.0.3/24", Some("10.9.0.254"))],
        ..Default::default()
    };
    let gateways: Vec<String> = complete(&mut result, &conf()).iter().map(ToString::to_string).collect();
    assert_eq!(gateways, ["10.1.2.1/24", "10.9.0.254/24", "fd00::1/64"]);
    assert!(result.ips.iter().all(|ip| ip.interface == Some(2) && ip.gateway.is_some()));
    assert_eq!(result.routes, []);

    let mut result = CniResult { ips: vec![ip("10.1.2.3/24", None)], ..Default::default() };
    assert_eq!(complete(&mut result, &BridgeConf { is_gateway: false, ..conf() }), []);
    assert_eq!(result.ips[0].gateway, None);
}

#[test]
fn a_default_gateway_adds_one_default_route_a_family_unless_there_is_one() {
    let conf = BridgeConf { is_default_gateway: true, ..conf() };
    for (name, routes, expected) in [
        ("nothing there", vec![], vec!["0.0.0.0/0 10.1.2.1", "::/0 fd00::1"]),
        (
            "another default with a gateway",
            vec![to("0.0.0.0/0", Some("10.1.2.9"))],
            vec!["0.0.0.0/0 10.1.2.9", "::/0 fd00::1"],
        ),
        (
            "a default without a gateway",
            vec![to("0.0.0.0/0", None)],
            vec!["0.0.0.0/0 ", "0.0.0.0/0 10.1.2.1", "::/0 fd00::1"],
        ),
    ] {
        let ips = vec![ip("10.1.2.3/24", None), ip("10.1.3.3/24", None), ip("fd00::5/64", None)];
        let mut result = CniResult { ips, routes, ..Default::default() };
        complete(&mut result, &conf);
        assert_eq!(shown(&result.routes), expected, "{name}");
    }
}

#[test]
fn routes_without_a_gateway_take_the_family_s_and_come_once() {
    let result = CniResult {
        ips: vec![ip("10.1.2.3/24", Some("10.1.2.1")), ip("fd00::5/64", None)],
        routes: vec![to("0.0.0.0/0", None), to("0.0.0.0/0", Some("10.1.2.1")), to("2001:db8::/32", None)],
        ..Default::default()
    };
    let made = routes(&result, IfIndex(7));
    let shown: Vec<_> = made.iter().map(|r| (r.dst.to_string(), r.gateway.map(|g| g.to_string()))).collect();
    assert_eq!(shown, [("0.0.0.0/0".into(), Some("10.1.2.1".into())), ("2001:db8::/32".into(), None)]);
}

#[test]
fn what_is_on_the_bridge_stays_unless_it_is_in_the_way_and_forced() {
    let on = |nets: &[&str]| -> Vec<Address> {
        nets.iter().map(|n| Address { net: n.parse().unwrap(), tentative: false, duplicate: false }).collect()
    };
    let add = |remove: &[&str]| {
        Ok(GatewayPlan::Add { remove: remove.iter().map(|n| n.parse().unwrap()).collect() })
    };
    for (name, present, wanted, force, expected) in [
        ("empty", on(&[]), "10.1.2.1/24", false, add(&[])),
        ("there", on(&["10.1.2.1/24"]), "10.1.2.1/24", false, Ok(GatewayPlan::Keep)),
        ("another IPv4 address", on(&["10.9.0.1/24"]), "10.1.2.1/24", false, Err(())),
        ("another IPv4 address, forced", on(&["10.9.0.1/24"]), "10.1.2.1/24", true, add(&["10.9.0.1/24"])),
        ("another prefix length", on(&["10.1.2.1/16"]), "10.1.2.1/24", true, add(&["10.1.2.1/16"])),
        ("another IPv6 network", on(&["fe80::1/64", "fd01::1/64"]), "fd00::1/64", false, add(&[])),
        ("an overlapping IPv6 network", on(&["fd00::9/48"]), "fd00::1/64", false, Err(())),
        (
            "an overlapping IPv6 network, forced",
            on(&["fd00::9/48"]),
            "fd00::1/64",
            true,
            add(&["fd00::9/48"]),
        ),
    ] {
        let got = gateway(&present, wanted.parse().unwrap(), force, "cni0");
        assert_eq!(got.map_err(|_| ()), expected, "{name}");
    }
}

#[test]
fn a_port_carries_its_own_vlan_untagged_and_the_trunk_s_tagged() {
    let plan = |access, trunk: Option<&[u16]>| {
        let vlans = Vlans { access, trunk: trunk.map(<[u16]>::to_vec), preserve_default: false };
        port_vlans(&vlans).into_iter().map(|v| (v.id, v.pvid && v.untagged)).collect::<Vec<_>>()
    };
    assert_eq!(plan(None, None), []);
    assert_eq!(plan(Some(100), None), [(100, true)]);
    assert_eq!(plan(Some(100), Some(&[101])), [(100, true), (101, false)]);
    assert_eq!(plan(None, Some(&[101, 102])), [(101, false), (102, false), (1, true)]);
    assert_eq!(plan(None, Some(&[])), []);
}
