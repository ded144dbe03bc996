//! Neighbours: the link-layer address behind an IP address, or behind a tunnel's far end.

use std::net::IpAddr;

use crate::addr::{Family, addr_bytes, read_addr};
use crate::error::Result;
use crate::ids::{IfIndex, Mac};
use crate::monitor::NeighbourChange;
use crate::socket::{Request, Socket};
use crate::wire::{self, Message, flags};

const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const RTM_GETNEIGH: u16 = 30;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NDA_IFINDEX: u16 = 8;
const STATE_PERMANENT: u16 = 0x80;
/// The entry belongs to the device itself, as forwarding entries of a VXLAN do.
const FLAG_SELF: u8 = 2;
const FAMILY_BRIDGE: u8 = 7;

/// Says for good that `addr` is at `mac` on `link`.
pub fn set(link: IfIndex, addr: IpAddr, mac: Mac) -> Request {
    let fixed = header(Family::of(addr).number(), link, 0);
    let mut message = Message::new(RTM_NEWNEIGH, flags::CREATE | flags::REPLACE).fixed(&fixed);
    message.attr(NDA_DST, &addr_bytes(addr)).attr(NDA_LLADDR, &mac.0);
    Request::new(format!("set the neighbour {addr} to {mac}"), message)
}

pub fn remove(link: IfIndex, addr: IpAddr) -> Request {
    let mut message = Message::new(RTM_DELNEIGH, 0).fixed(&header(Family::of(addr).number(), link, 0));
    message.attr(NDA_DST, &addr_bytes(addr));
    Request::new(format!("remove the neighbour {addr}"), message)
}

/// Says that frames to `mac` leave the tunnel device `link` towards `remote`.
pub fn set_forwarding(link: IfIndex, mac: Mac, remote: IpAddr) -> Request {
    let fixed = header(FAMILY_BRIDGE, link, FLAG_SELF);
    let mut message = Message::new(RTM_NEWNEIGH, flags::CREATE | flags::REPLACE).fixed(&fixed);
    message.attr(NDA_LLADDR, &mac.0).attr(NDA_DST, &addr_bytes(remote));
    Request::new(format!("forward {mac} to {remote}"), message)
}

pub fn remove_forwarding(link: IfIndex, mac: Mac, remote: IpAddr) -> Request {
    let mut message = Message::new(RTM_DELNEIGH, 0).fixed(&header(FAMILY_BRIDGE, link, FLAG_SELF));
    message.attr(NDA_LLADDR, &mac.0).attr(NDA_DST, &addr_bytes(remote));
    Request::new(format!("stop forwarding {mac} to {remote}"), message)
}

/// A neighbour or a forwarding entry that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub addr: IpAddr,
    pub mac: Mac,
    /// Whether it is there for good, rather than learned.
    pub permanent: bool,
}

/// The neighbours of a link, of both families, whose link-layer address is known.
pub fn list(socket: &mut Socket, link: IfIndex) -> Result<Vec<Entry>> {
    dump(socket, link, 0, "list the neighbours")
}

/// The forwarding entries of a tunnel device that lead to an address.
pub fn list_forwarding(socket: &mut Socket, link: IfIndex) -> Result<Vec<Entry>> {
    dump(socket, link, FAMILY_BRIDGE, "list the forwarding entries")
}

fn dump(socket: &mut Socket, link: IfIndex, family: u8, op: &str) -> Result<Vec<Entry>> {
    let mut fixed = [0; 12];
    fixed[0] = family;
    let mut message = Message::new(RTM_GETNEIGH, 0).fixed(&fixed);
    message.attr_u32(NDA_IFINDEX, link.0);
    let request = Request::new(format!("{op} of the link with index {}", link.0), message);
    // Kernels without strict checking ignore the index and send those of all links.
    socket.dump(&request, |kind, payload| {
        let own = kind == RTM_NEWNEIGH && wire::read_u32(payload, 4) == Some(link.0);
        own.then(|| parse(payload)).flatten()
    })
}

fn parse(payload: &[u8]) -> Option<Entry> {
    let state = wire::read_u16(payload, 8)?;
    let attributes = payload.get(12..)?;
    Some(Entry {
        addr: wire::find(attributes, NDA_DST).and_then(read_addr)?,
        mac: wire::find(attributes, NDA_LLADDR).and_then(|v| v.try_into().ok().map(Mac))?,
        permanent: state & STATE_PERMANENT != 0,
    })
}

pub(crate) fn parse_change(payload: &[u8], gone: bool) -> Option<NeighbourChange> {
    let attributes = payload.get(12..)?;
    Some(NeighbourChange {
        link: IfIndex(wire::read_u32(payload, 4)?),
        forwarding: *payload.first()? == FAMILY_BRIDGE,
        addr: wire::find(attributes, NDA_DST).and_then(read_addr),
        mac: wire::find(attributes, NDA_LLADDR).and_then(|v| v.try_into().ok().map(Mac)),
        permanent: wire::read_u16(payload, 8)? & STATE_PERMANENT != 0,
        gone,
    })
}

/// struct ndmsg.
fn header(family: u8, link: IfIndex, flags: u8) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[0] = family;
    bytes[4..8].copy_from_slice(&link.0.to_ne_bytes());
    bytes[8..10].copy_from_slice(&STATE_PERMANENT.to_ne_bytes());
    bytes[10] = flags;
    bytes
}
