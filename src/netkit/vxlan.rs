//! VXLAN devices: Ethernet over UDP, one device for each network and underlay family.

use std::net::IpAddr;

use rtnetlink::packet_route::link::InfoVxlan;
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVxlan};

use crate::addr::read_addr;
use crate::error::Result;
use crate::ids::{IfIndex, IfName, Mac};
use crate::link::{self, Link};
use crate::link_reader;
use crate::socket::{Request, Socket};
use crate::wire::{self, Message};

// Names and numbers as in linux/if_link.h.
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
    let mut device = link::properties(LinkVxlan::new(name.as_str(), tunnel.vni), Some(mac), Some(mtu))
        .learning(tunnel.learning)
        .port(tunnel.port);
    if let Some(underlay) = tunnel.underlay {
        device = device.dev(underlay.0);
    }
    device = match tunnel.local {
        Some(IpAddr::V4(local)) => device.local(local),
        Some(IpAddr::V6(local)) => device.local6(local),
        None => device,
    };
    if tunnel.group_policy {
        device = device.append_info_data(InfoVxlan::Gbp);
    }
    let message = Message::of(libc::RTM_NEWLINK, link::CREATE, &device.build());
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
    let all = LinkMessageBuilder::<LinkUnspec>::new().build();
    let request = Request::new("list links", Message::of(libc::RTM_GETLINK, 0, &all));
    socket.dump(&request, |kind, payload| (kind == libc::RTM_NEWLINK).then(|| parse(payload)).flatten())
}

/// None for a link of another kind.
fn parse(payload: &[u8]) -> Option<Vxlan> {
    let link = link_reader::parse(payload)?;
    if !link.is_kind("vxlan") {
        return None;
    }
    let info = wire::find(payload.get(16..)?, libc::IFLA_LINKINFO)?;
    let data = wire::find(info, libc::IFLA_INFO_DATA)?;
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
