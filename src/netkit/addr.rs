//! Addresses on links.

use std::net::IpAddr;

use crate::error::Result;
use crate::ids::{IfIndex, IpNet};
use crate::link::Link;
use crate::socket::{Request, Socket};
use crate::wire::{self, Message, flags};

const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const IFA_FLAGS: u16 = 8;

const FLAG_NO_DAD: u32 = 0x02;
const FLAG_TENTATIVE: u32 = 0x40;
const FLAG_DAD_FAILED: u32 = 0x08;

/// An address as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub net: IpNet,
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
        match self {
            Family::Any => 0,
            Family::V4 => 2,
            Family::V6 => 10,
        }
    }
}

pub fn add(link: &Link, net: IpNet) -> Request {
    Request::new(format!("add address {net} to {}", link.name), add_message(link, net))
}

/// Adds an address that is usable at once, because nobody is asked whether it is in use already.
pub fn add_undetected(link: &Link, net: IpNet) -> Request {
    let mut message = add_message(link, net);
    if !net.is_v4() {
        message.attr_u32(IFA_FLAGS, FLAG_NO_DAD);
    }
    Request::new(format!("add address {net} to {}", link.name), message)
}

fn add_message(link: &Link, net: IpNet) -> Message {
    let mut message = Message::new(RTM_NEWADDR, flags::CREATE | flags::EXCL).fixed(&header(link.index, &net));
    put_address(&mut message, &net);
    if let IpAddr::V4(addr) = net.addr
        && net.prefix < 31
    {
        let host_bits = u32::MAX.checked_shr(u32::from(net.prefix)).unwrap_or(0);
        message.attr(IFA_BROADCAST, &(addr.to_bits() | host_bits).to_be_bytes());
    }
    message
}

pub fn remove(link: &Link, net: IpNet) -> Request {
    let mut message = Message::new(RTM_DELADDR, 0).fixed(&header(link.index, &net));
    put_address(&mut message, &net);
    Request::new(format!("remove address {net} from {}", link.name), message)
}

/// The addresses of one link.
pub fn list(socket: &mut Socket, link: &Link, family: Family) -> Result<Vec<Address>> {
    let mut fixed = [0; 8];
    fixed[0] = family.number();
    fixed[4..8].copy_from_slice(&link.index.0.to_ne_bytes());
    let request = Request::new(
        format!("list the addresses of {}", link.name),
        Message::new(RTM_GETADDR, 0).fixed(&fixed),
    );
    // Kernels without strict checking ignore the index and send the addresses of all links.
    socket.dump(&request, |kind, payload| {
        let own = kind == RTM_NEWADDR && wire::read_u32(payload, 4) == Some(link.index.0);
        own.then(|| parse(payload)).flatten()
    })
}

fn put_address(message: &mut Message, net: &IpNet) {
    match net.addr {
        IpAddr::V4(a) => message.attr(IFA_LOCAL, &a.octets()).attr(IFA_ADDRESS, &a.octets()),
        IpAddr::V6(a) => message.attr(IFA_LOCAL, &a.octets()).attr(IFA_ADDRESS, &a.octets()),
    };
}

/// struct ifaddrmsg.
fn header(index: IfIndex, net: &IpNet) -> [u8; 8] {
    let i = index.0.to_ne_bytes();
    [Family::of(net.addr).number(), net.prefix, 0, 0, i[0], i[1], i[2], i[3]]
}

fn parse(payload: &[u8]) -> Option<Address> {
    let prefix = *payload.get(1)?;
    let mut flags = u32::from(*payload.get(2)?);
    let mut address = None;
    let mut local = None;
    for (kind, value) in wire::attrs(payload.get(8..)?) {
        match kind {
            IFA_ADDRESS => address = read_addr(value),
            IFA_LOCAL => local = read_addr(value),
            IFA_FLAGS => flags = wire::read_u32(value, 0)?,
            _ => {}
        }
    }
    Some(Address {
        net: IpNet::new(local.or(address)?, prefix),
        tentative: flags & FLAG_TENTATIVE != 0,
        duplicate: flags & FLAG_DAD_FAILED != 0,
    })
}

/// An address of four or sixteen bytes.
pub(crate) fn read_addr(value: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(value) {
        return Some(IpAddr::from(v4));
    }
    <[u8; 16]>::try_from(value).ok().map(IpAddr::from)
}

/// An address as the bytes that go on the wire.
pub(crate) fn addr_bytes(addr: IpAddr) -> Vec<u8> {
    match addr {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}
