//! VXLAN devices: Ethernet over UDP, one device for each network and underlay family.

use std::net::IpAddr;

use crate::addr::{addr_bytes, read_addr};
use crate::error::Result;
use crate::ids::{IfIndex, IfName, Mac};
use crate::link::{self, Link};
use crate::socket::{Request, Socket};
use crate::wire::{self, Message, flags};

const IFLA_VXLAN_ID: u16 = 1;
const IFLA_VXLAN_LINK: u16 = 3;
const IFLA_VXLAN_LOCAL: u16 = 4;
const IFLA_VXLAN_LEARNING: u16 = 7;
const IFLA_VXLAN_PORT: u16 = 15;
const IFLA_VXLAN_LOCAL6: u16 = 17;
const IFLA_VXLAN_GBP: u16 = 23;

/// What makes a VXLAN device the one it is: none of this can be changed while it lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunnel {
    pub vni: u32,
    pub port: u16,
    /// The address that packets leave from.
    pub local: Option<IpAddr>,
    /// The interface that packets leave by.
    pub underlay: Option<IfIndex>,
    pub learning: bool,
    pub group_policy: bool,
}

/// A device that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vxlan {
    pub link: Link,
    pub tunnel: Tunnel,
}

/// Makes a VXLAN device, down. A MAC that is given is kept by whoever else manages addresses on this machine.
pub fn create(name: &IfName, tunnel: &Tunnel, mac: Mac, mtu: u32) -> Request {
    let mut message =
        Message::new(link::RTM_NEWLINK, flags::CREATE | flags::EXCL).fixed(&link::header(0, 0, 0));
    message.attr_str(link::IFLA_IFNAME, name.as_str()).attr_u32(link::IFLA_MTU, mtu);
    message.attr(link::IFLA_ADDRESS, &mac.0);
    message.nest(link::IFLA_LINKINFO, |m| {
        m.attr_str(link::IFLA_INFO_KIND, "vxlan").nest(link::IFLA_INFO_DATA, |m| {
            m.attr_u32(IFLA_VXLAN_ID, tunnel.vni);
            m.attr_u8(IFLA_VXLAN_LEARNING, u8::from(tunnel.learning));
            m.attr(IFLA_VXLAN_PORT, &tunnel.port.to_be_bytes());
            if let Some(underlay) = tunnel.underlay {
                m.attr_u32(IFLA_VXLAN_LINK, underlay.0);
            }
            if let Some(local) = tunnel.local {
                let kind = if local.is_ipv4() { IFLA_VXLAN_LOCAL } else { IFLA_VXLAN_LOCAL6 };
                m.attr(kind, &addr_bytes(local));
            }
            if tunnel.group_policy {
                m.attr(IFLA_VXLAN_GBP, &[]);
            }
        });
    });
    Request::new(format!("create VXLAN device {name}"), message)
}

/// The VXLAN device of that name; None also when the name is another kind of link's.
pub fn find(socket: &mut Socket, name: &str) -> Result<Option<Vxlan>> {
    match socket.call(link::get(name)) {
        Ok(replies) => Ok(replies.iter().find_map(|reply| parse(&reply.payload))),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error),
    }
}

/// All VXLAN devices of this namespace.
pub fn list(socket: &mut Socket) -> Result<Vec<Vxlan>> {
    let request =
        Request::new("list links", Message::new(link::RTM_GETLINK, 0).fixed(&link::header(0, 0, 0)));
    socket.dump(&request, |kind, payload| (kind == link::RTM_NEWLINK).then(|| parse(payload)).flatten())
}

/// None for a link of another kind.
fn parse(payload: &[u8]) -> Option<Vxlan> {
    let link = link::parse(payload)?;
    if !link.is_kind("vxlan") {
        return None;
    }
    let info = wire::find(payload.get(16..)?, link::IFLA_LINKINFO)?;
    let data = wire::find(info, link::IFLA_INFO_DATA)?;
    let mut tunnel =
        Tunnel { vni: 0, port: 0, local: None, underlay: None, learning: false, group_policy: false };
    for (kind, value) in wire::attrs(data) {
        match kind {
            IFLA_VXLAN_ID => tunnel.vni = wire::read_u32(value, 0)?,
            IFLA_VXLAN_LINK => tunnel.underlay = wire::read_u32(value, 0).filter(|i| *i > 0).map(IfIndex),
            IFLA_VXLAN_LOCAL | IFLA_VXLAN_LOCAL6 => tunnel.local = read_addr(value),
            IFLA_VXLAN_LEARNING => tunnel.learning = value.first() == Some(&1),
            IFLA_VXLAN_PORT => tunnel.port = u16::from_be_bytes(value.try_into().ok()?),
            IFLA_VXLAN_GBP => tunnel.group_policy = true,
            _ => {}
        }
    }
    Some(Vxlan { link, tunnel })
}
