//! What can be set on a port of a bridge.

use crate::error::Result;
use crate::ids::IfIndex;
use crate::link::{Link, header};
use crate::socket::{Request, Socket};
use crate::wire::{self, Message};

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
const RTM_DELLINK: u16 = 17;
const FAMILY_BRIDGE: u8 = 7;

const IFLA_PROTINFO: u16 = 12;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_EXT_MASK: u16 = 29;
const LIST_VLANS: u32 = 2;

const PORT_MODE: u16 = 4;
const PORT_ISOLATED: u16 = 33;
const BRIDGE_FLAGS: u16 = 0;
const BRIDGE_VLAN_INFO: u16 = 2;
/// Act on the port's master, the bridge, and not on the device's own filter.
const FLAG_MASTER: u16 = 1;

/// How a VLAN is carried on a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vlan {
    pub id: u16,
    /// Frames without a tag belong to this VLAN.
    pub pvid: bool,
    /// Frames of this VLAN leave the port without a tag.
    pub untagged: bool,
}

const VLAN_PVID: u16 = 2;
const VLAN_UNTAGGED: u16 = 4;

/// Sends frames back out of the port they came in by, so that a container can reach itself.
pub fn set_hairpin(port: &Link, on: bool) -> Request {
    set_port(port, PORT_MODE, on, &format!("set hairpin mode of {} to {on}", port.name))
}

/// Keeps the port from talking to other isolated ports.
pub fn set_isolated(port: &Link, on: bool) -> Request {
    set_port(port, PORT_ISOLATED, on, &format!("set isolation of {} to {on}", port.name))
}

pub fn add_vlan(port: &Link, vlan: Vlan) -> Request {
    vlan_request(RTM_SETLINK, port, vlan, &format!("add VLAN {} to {}", vlan.id, port.name))
}

pub fn remove_vlan(port: &Link, id: u16) -> Request {
    let vlan = Vlan { id, pvid: false, untagged: false };
    vlan_request(RTM_DELLINK, port, vlan, &format!("remove VLAN {id} from {}", port.name))
}

/// The VLANs of a port.
pub fn vlans(socket: &mut Socket, port: IfIndex) -> Result<Vec<u16>> {
    let mut fixed = header(0, 0, 0);
    fixed[0] = FAMILY_BRIDGE;
    let mut message = Message::new(RTM_GETLINK, 0).fixed(&fixed);
    message.attr_u32(IFLA_EXT_MASK, LIST_VLANS);
    let lists = socket.dump(&Request::new("list the VLANs of bridge ports", message), |kind, payload| {
        let own = kind == RTM_NEWLINK && wire::read_u32(payload, 4) == Some(port.0);
        own.then(|| wire::find(payload.get(16..)?, IFLA_AF_SPEC)).flatten().map(|spec| {
            wire::attrs(spec)
                .filter(|(kind, _)| *kind == BRIDGE_VLAN_INFO)
                .filter_map(|(_, info)| wire::read_u16(info, 2))
                .collect::<Vec<u16>>()
        })
    })?;
    Ok(lists.into_iter().flatten().collect())
}

fn set_port(port: &Link, attribute: u16, on: bool, op: &str) -> Request {
    let mut fixed = header(port.index.0, 0, 0);
    fixed[0] = FAMILY_BRIDGE;
    let mut message = Message::new(RTM_SETLINK, 0).fixed(&fixed);
    message.nest(IFLA_PROTINFO, |m| {
        m.attr_u8(attribute, u8::from(on));
    });
    Request::new(op, message)
}

fn vlan_request(kind: u16, port: &Link, vlan: Vlan, op: &str) -> Request {
    let mut fixed = header(port.index.0, 0, 0);
    fixed[0] = FAMILY_BRIDGE;
    let mut flags = 0;
    if vlan.pvid {
        flags |= VLAN_PVID;
    }
    if vlan.untagged {
        flags |= VLAN_UNTAGGED;
    }
    let mut info = [0; 4];
    info[0..2].copy_from_slice(&u16::to_ne_bytes(flags));
    info[2..4].copy_from_slice(&vlan.id.to_ne_bytes());
    let mut message = Message::new(kind, 0).fixed(&fixed);
    message.nest(IFLA_AF_SPEC, |m| {
        m.attr_u16(BRIDGE_FLAGS, FLAG_MASTER).attr(BRIDGE_VLAN_INFO, &info);
    });
    Request::new(op, message)
}
