//! A model of the kernel, on which plans are carried out until nothing is left.

mod converge;
mod lease_changes;

use keelson_kit::cidr::IpNetwork;
use keelson_netkit::neigh::Entry;
use keelson_netkit::{IfIndex, Mac};

use super::*;
use crate::config::{Backend, NetConf};
use crate::lease::{Lease, LeasedSubnet, Vtep};

fn net(text: &str) -> IpNetwork {
    text.parse().unwrap()
}

fn backend(json: &str) -> Backend {
    NetConf::parse(&format!(r#"{{"Network": "10.244.0.0/16", "Backend": {json}}}"#), None).unwrap().backend
}

fn mac(last: u8) -> Mac {
    Mac([0x6a, 0, 0, 0, 0, last])
}

fn peer(number: u8) -> Lease {
    let leased = |subnet: String, public: String| LeasedSubnet {
        subnet: net(&subnet),
        public: public.parse().unwrap(),
        vtep: Some(Vtep { vni: 1, mac: mac(number) }),
    };
    let v4 = leased(format!("10.244.{number}.0/24"), format!("192.0.2.{number}"));
    let v6 = leased(format!("fd00:0:0:{number}::/64"), format!("2001:db8::{number}"));
    Lease::new(&format!("n{number}"), "vxlan", Some(v4), Some(v6))
}

fn setup(json: &str) -> HostSetup {
    HostSetup {
        backend: backend(json),
        networks: vec![net("10.244.0.0/16"), net("fd00::/56")],
        subnets: vec![net("10.244.1.0/24"), net("fd00:0:0:1::/64")],
        underlay: IfIndex(2),
        underlay_mtu: 1500,
        underlay_nets: vec![net("192.0.2.1/24"), net("2001:db8::1/64")],
        macs: (mac(1), mac(101)),
        local4: "192.0.2.1".parse().ok(),
        local6: "2001:db8::1".parse().ok(),
        checksum_offload: true,
    }
}

fn wanted(json: &str, peers: &[u8]) -> Desired {
    desired(&setup(json), peers.iter().map(|n| peer(*n)), &FallbackPeers::new())
}

/// Carries actions out on the observed state, as the kernel would.
fn carry_out(observed: &mut Observed, actions: &[KernelAction]) {
    for action in actions {
        let free = (10..).find(|i| observed.devices.iter().all(|d| d.index != IfIndex(*i))).unwrap();
        let device = |observed: &mut Observed, name: &keelson_netkit::IfName| -> usize {
            observed.devices.iter().position(|d| d.name == name.as_str()).unwrap()
        };
        match action.clone() {
            KernelAction::CreateVxlan { name, tunnel, mac, mtu } => {
                assert!(observed.device(name.as_str()).is_none(), "{name} is there already");
                observed.devices.push(ObservedDevice {
                    name: name.to_string(),
                    index: IfIndex(free),
                    kind: Some("vxlan".into()),
                    tunnel: Some(tunnel),
                    mac: Some(mac),
                    mtu,
                    up: false,
                    checksum_offload: Some(true),
                    addresses: vec![],
                    neighbours: vec![],
                    forwarding: vec![],
                });
            }
            KernelAction::DeleteLink { name } => {
                let index = observed.device(&name).map(|d| d.index);
                observed.devices.retain(|d| d.name != name);
                observed.routes.retain(|r| r.link != index);
            }
            KernelAction::Rename { from, to } => {
                let found = observed.devices.iter_mut().find(|d| d.name == from).unwrap();
                found.name = to.to_string();
            }
            KernelAction::SetMac { device: name, mac } => {
                let at = device(observed, &name);
                observed.devices[at].mac = Some(mac);
            }
            KernelAction::SetMtu { device: name, mtu } => {
                let at = device(observed, &name);
                observed.devices[at].mtu = mtu;
            }
            KernelAction::SetUp { device: name } => {
                let at = device(observed, &name);
                observed.devices[at].up = true;
            }
            KernelAction::StopChecksumOffload { device: name } => {
                let at = device(observed, &name);
                observed.devices[at].checksum_offload = Some(false);
            }
            KernelAction::AddAddress { device: name, net } => {
                let at = device(observed, &name);
                observed.devices[at].addresses.push(net);
            }
            KernelAction::RemoveAddress { device: name, net } => {
                let at = device(observed, &name);
                observed.devices[at].addresses.retain(|n| *n != net);
            }
            KernelAction::SetNeighbour { device: name, addr, mac, .. } => {
                let at = device(observed, &name);
                let list = &mut observed.devices[at].neighbours;
                list.retain(|e| e.addr != addr);
                list.push(Entry { addr, mac, permanent: true });
            }
            KernelAction::RemoveNeighbour { device: name, addr, .. } => {
                let at = device(observed, &name);
                observed.devices[at].neighbours.retain(|e| e.addr != addr);
            }
            KernelAction::SetForwarding { device: name, mac, remote, .. } => {
                let at = device(observed, &name);
                let list = &mut observed.devices[at].forwarding;
                list.retain(|e| e.mac != mac);
                list.push(Entry { addr: remote, mac, permanent: true });
            }
            KernelAction::RemoveForwarding { device: name, mac, remote, .. } => {
                let at = device(observed, &name);
                observed.devices[at].forwarding.retain(|e| (e.mac, e.addr) != (mac, remote));
            }
            KernelAction::SetRoute(route) => {
                observed.routes.retain(|r| r.dst != route.dst);
                observed.routes.push(route);
            }
            KernelAction::RemoveRoute(route) => observed.routes.retain(|r| r != &route),
        }
    }
}

fn converge(desired: &Desired, observed: &mut Observed) -> Vec<KernelAction> {
    let mut taken = Vec::new();
    for _ in 0..6 {
        let actions = plan(desired, observed);
        if actions.is_empty() {
            return taken;
        }
        carry_out(observed, &actions);
        taken.extend(actions);
    }
    panic!("no end: {:?}", plan(desired, observed));
}

fn empty() -> Observed {
    Observed { underlay: Some(IfIndex(2)), ..Observed::default() }
}

const VXLAN: &str = r#"{"Type": "vxlan"}"#;
const HOST_GW: &str = r#"{"Type": "host-gw"}"#;
const DIRECT: &str = r#"{"Type": "vxlan", "DirectRouting": true}"#;
const FALLBACK: &str = r#"{"Type": "vxlan", "Fallback": "udp"}"#;

/// The state in an order that does not depend on how it came about.
fn sorted(observed: &Observed) -> (Vec<String>, Vec<String>) {
    let mut routes: Vec<String> =
        observed.routes.iter().map(|r| format!("{} {:?} {:?}", r.dst, r.gateway, r.link)).collect();
    routes.sort();
    let device = |d: &ObservedDevice| {
        let mut lists = (d.neighbours.clone(), d.forwarding.clone());
        lists.0.sort_by_key(|e| (e.mac.0, e.addr));
        lists.1.sort_by_key(|e| (e.mac.0, e.addr));
        format!("{} {:?} {} {} {:?} {lists:?}", d.name, d.mac, d.mtu, d.up, d.addresses)
    };
    let mut devices: Vec<String> = observed.devices.iter().map(device).collect();
    devices.sort();
    (devices, routes)
}
