//! Addresses on links.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use keelson_kit::cidr::{self, IpNetwork};
use rtnetlink::AddressMessageBuilder;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};

use crate::error::Result;
use crate::link::{self, Link};
use crate::socket::{Request, Socket};
use crate::wire::{self, Message};

/// An address as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub net: IpNetwork,
    /// Duplicate address detection has not finished.
    pub tentative: bool,
    /// Duplicate address detection found another owner.
    pub duplicate: bool,
}

/// Which addresses to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Any,
    V4,
    V6,
}

impl Family {
    pub fn of(addr: IpAddr) -> Self {
        if addr.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    pub(crate) fn number(self) -> u8 {
        AddressFamily::from(self).into()
    }
}

impl From<Family> for AddressFamily {
    fn from(family: Family) -> Self {
        match family {
            Family::Any => AddressFamily::Unspec,
            Family::V4 => AddressFamily::Inet,
            Family::V6 => AddressFamily::Inet6,
        }
    }
}

pub fn add(link: &Link, net: IpNetwork) -> Request {
    add_request(link, net, &message(link, net))
}

/// Adds an address that is usable at once, because nobody is asked whether it is in use already.
pub fn add_undetected(link: &Link, net: IpNetwork) -> Request {
    let mut message = message(link, net);
    if net.is_ipv6() {
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    add_request(link, net, &message)
}

fn add_request(link: &Link, net: IpNetwork, message: &AddressMessage) -> Request {
    let op = format!("add address {net} to {}", link.name);
    Request::new(op, Message::of(libc::RTM_NEWADDR, link::CREATE, message))
}

pub fn remove(link: &Link, net: IpNetwork) -> Request {
    let op = format!("remove address {net} from {}", link.name);
    Request::new(op, Message::of(libc::RTM_DELADDR, 0, &message(link, net)))
}

fn message(link: &Link, net: IpNetwork) -> AddressMessage {
    let index = link.index.0;
    match net {
        IpNetwork::V4(net) => {
            AddressMessageBuilder::<Ipv4Addr>::new().index(index).address(net.ip(), net.prefix()).build()
        }
        IpNetwork::V6(net) => {
            AddressMessageBuilder::<Ipv6Addr>::new().index(index).address(net.ip(), net.prefix()).build()
        }
    }
}

/// The addresses of one link.
pub fn list(socket: &mut Socket, link: &Link, family: Family) -> Result<Vec<Address>> {
    let mut asked = AddressMessage::default();
    asked.header.family = family.into();
    asked.header.index = link.index.0;
    let op = format!("list the addresses of {}", link.name);
    let request = Request::new(op, Message::of(libc::RTM_GETADDR, 0, &asked));
    // Kernels without strict checking ignore the index and send the addresses of all links.
    socket.dump(&request, |kind, payload| {
        let own = kind == libc::RTM_NEWADDR && wire::read_u32(payload, 4) == Some(link.index.0);
        own.then(|| parse(payload)).flatten()
    })
}

fn parse(payload: &[u8]) -> Option<Address> {
    let prefix = *payload.get(1)?;
    let mut flags = u32::from(*payload.get(2)?);
    let mut address = None;
    let mut local = None;
    for (kind, value) in wire::attrs(payload.get(8..)?) {
        match kind {
            libc::IFA_ADDRESS => address = read_addr(value),
            libc::IFA_LOCAL => local = read_addr(value),
            libc::IFA_FLAGS => flags = wire::read_u32(value, 0)?,
            _ => {}
        }
    }
    Some(Address {
        net: cidr::with_length(local.or(address)?, prefix),
        tentative: flags & libc::IFA_F_TENTATIVE != 0,
        duplicate: flags & libc::IFA_F_DADFAILED != 0,
    })
}

/// An address of four or sixteen bytes.
pub(crate) fn read_addr(value: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(value) {
        return Some(IpAddr::from(v4));
    }
    <[u8; 16]>::try_from(value).ok().map(IpAddr::from)
}
