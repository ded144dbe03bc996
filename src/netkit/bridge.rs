//! What can be set on a port of a bridge.

use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::link::{BridgeVlanInfoFlags, LinkAttribute, LinkExtentMask};
use rtnetlink::{LinkBridgePort, LinkBridgeVlan, LinkMessageBuilder, LinkUnspec};

use crate::error::Result;
use crate::ids::IfIndex;
use crate::link::Link;
use crate::socket::{Request, Socket};
use crate::wire::{self, Message};

/// Name and number as in linux/if_bridge.h.
const IFLA_BRIDGE_VLAN_INFO: u16 = 2;

/// How a VLAN is carried on a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vlan {
    pub id: u16,
    /// Frames without a tag belong to this VLAN.
    pub pvid: bool,
    /// Frames of this VLAN leave the port without a tag.
    pub untagged: bool,
}

/// Sends frames back out of the port they came in by, so that a container can reach itself.
pub fn set_hairpin(port: &Link, on: bool) -> Request {
    set_port(
        LinkBridgePort::new(port.index.0).hairpin(on),
        &format!("set hairpin mode of {} to {on}", port.name),
    )
}

/// Keeps the port from talking to other isolated ports.
pub fn set_isolated(port: &Link, on: bool) -> Request {
    set_port(
        LinkBridgePort::new(port.index.0).isolated(on),
        &format!("set isolation of {} to {on}", port.name),
    )
}

pub fn add_vlan(port: &Link, vlan: Vlan) -> Request {
    vlan_request(libc::RTM_SETLINK, port, vlan, &format!("add VLAN {} to {}", vlan.id, port.name))
}

pub fn remove_vlan(port: &Link, id: u16) -> Request {
    let vlan = Vlan { id, pvid: false, untagged: false };
    vlan_request(libc::RTM_DELLINK, port, vlan, &format!("remove VLAN {id} from {}", port.name))
}

/// The VLANs of a port.
pub fn vlans(socket: &mut Socket, port: IfIndex) -> Result<Vec<u16>> {
    let vlans = LinkMessageBuilder::<LinkUnspec>::new()
        .interface_family(AddressFamily::Bridge)
        .append_extra_attribute(LinkAttribute::ExtMask(vec![LinkExtentMask::Brvlan]));
    let message = Message::of(libc::RTM_GETLINK, 0, &vlans.build());
    let lists = socket.dump(&Request::new("list the VLANs of bridge ports", message), |kind, payload| {
        let own = kind == libc::RTM_NEWLINK && wire::read_u32(payload, 4) == Some(port.0);
        own.then(|| wire::find(payload.get(16..)?, libc::IFLA_AF_SPEC)).flatten().map(|spec| {
            wire::attrs(spec)
                .filter(|(kind, _)| *kind == IFLA_BRIDGE_VLAN_INFO)
                .filter_map(|(_, info)| wire::read_u16(info, 2))
                .collect::<Vec<u16>>()
        })
    })?;
    Ok(lists.into_iter().flatten().collect())
}

fn set_port(port: LinkMessageBuilder<LinkBridgePort>, op: &str) -> Request {
    Request::new(op, Message::of(libc::RTM_NEWLINK, 0, &port.build()))
}

/// Acts on the port's master, the bridge, and not on the device's own filter.
fn vlan_request(kind: u16, port: &Link, vlan: Vlan, op: &str) -> Request {
    let mut flags = BridgeVlanInfoFlags::empty();
    flags.set(BridgeVlanInfoFlags::Pvid, vlan.pvid);
    flags.set(BridgeVlanInfoFlags::Untagged, vlan.untagged);
    let message = LinkBridgeVlan::new(port.index.0).vlan(vlan.id, flags).build();
    Request::new(op, Message::of(kind, 0, &message))
}
