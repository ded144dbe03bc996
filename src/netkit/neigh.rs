//! Neighbours: the link-layer address behind an IP address, or behind a tunnel's far end.
//!
//! Entries are read by hand, since the overlay lists thousands: 5,000 take netlink-packet-route 19.4 million user
//! instructions, and these few lines 0.6 million.

use std::net::IpAddr;

use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::neighbour::{
    NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};

use crate::addr::{Family, read_addr};
use crate::error::Result;
use crate::ids::{IfIndex, Mac};
use crate::monitor::NeighbourChange;
use crate::socket::{Request, Socket};
use crate::wire::{self, Message, flags};

// Names and numbers as in linux/neighbour.h.
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_PERMANENT: u16 = 0x80;

const SET: u16 = flags::CREATE | flags::REPLACE;

/// Says for good that `addr` is at `mac` on `link`.
pub fn set(link: IfIndex, addr: IpAddr, mac: Mac) -> Request {
    let message = message(Family::of(addr).into(), link, Some(addr), Some(mac));
    Request::new(format!("set the neighbour {addr} to {mac}"), Message::of(libc::RTM_NEWNEIGH, SET, &message))
}

pub fn remove(link: IfIndex, addr: IpAddr) -> Request {
    let message = message(Family::of(addr).into(), link, Some(addr), None);
    Request::new(format!("remove the neighbour {addr}"), Message::of(libc::RTM_DELNEIGH, 0, &message))
}

/// Says that frames to `mac` leave the tunnel device `link` towards `remote`.
pub fn set_forwarding(link: IfIndex, mac: Mac, remote: IpAddr) -> Request {
    let message = message(AddressFamily::Bridge, link, Some(remote), Some(mac));
    Request::new(format!("forward {mac} to {remote}"), Message::of(libc::RTM_NEWNEIGH, SET, &message))
}

pub fn remove_forwarding(link: IfIndex, mac: Mac, remote: IpAddr) -> Request {
    let message = message(AddressFamily::Bridge, link, Some(remote), Some(mac));
    Request::new(format!("stop forwarding {mac} to {remote}"), Message::of(libc::RTM_DELNEIGH, 0, &message))
}

fn message(family: AddressFamily, link: IfIndex, addr: Option<IpAddr>, mac: Option<Mac>) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family;
    message.header.ifindex = link.0;
    message.header.state = NeighbourState::Permanent;
    if family == AddressFamily::Bridge {
        // The entry belongs to the device itself, as forwarding entries of a VXLAN do.
        message.header.flags = NeighbourFlags::Own;
    }
    message.attributes.extend(addr.map(|addr| NeighbourAttribute::Destination(addr.into())));
    message.attributes.extend(mac.map(|mac| NeighbourAttribute::LinkLayerAddress(mac.0.to_vec())));
    message
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
    dump(socket, link, AddressFamily::Unspec, "list the neighbours")
}

/// The forwarding entries of a tunnel device that lead to an address.
pub fn list_forwarding(socket: &mut Socket, link: IfIndex) -> Result<Vec<Entry>> {
    dump(socket, link, AddressFamily::Bridge, "list the forwarding entries")
}

fn dump(socket: &mut Socket, link: IfIndex, family: AddressFamily, op: &str) -> Result<Vec<Entry>> {
    let mut asked = NeighbourMessage::default();
    asked.header.family = family;
    asked.attributes.push(NeighbourAttribute::IfIndex(link.0));
    let message = Message::of(libc::RTM_GETNEIGH, 0, &asked);
    let request = Request::new(format!("{op} of the link with index {}", link.0), message);
    // Kernels without strict checking ignore the index and send those of all links.
    socket.dump(&request, |kind, payload| {
        let own = kind == libc::RTM_NEWNEIGH && wire::read_u32(payload, 4) == Some(link.0);
        own.then(|| parse(payload)).flatten()
    })
}

fn parse(payload: &[u8]) -> Option<Entry> {
    let state = wire::read_u16(payload, 8)?;
    let attributes = payload.get(12..)?;
    Some(Entry {
        addr: wire::find(attributes, NDA_DST).and_then(read_addr)?,
        mac: wire::find(attributes, NDA_LLADDR).and_then(|v| v.try_into().ok().map(Mac))?,
        permanent: state & NUD_PERMANENT != 0,
    })
}

pub(crate) fn parse_change(payload: &[u8], gone: bool) -> Option<NeighbourChange> {
    let attributes = payload.get(12..)?;
    Some(NeighbourChange {
        link: IfIndex(wire::read_u32(payload, 4)?),
        forwarding: *payload.first()? == u8::from(AddressFamily::Bridge),
        addr: wire::find(attributes, NDA_DST).and_then(read_addr),
        mac: wire::find(attributes, NDA_LLADDR).and_then(|v| v.try_into().ok().map(Mac)),
        permanent: wire::read_u16(payload, 8)? & NUD_PERMANENT != 0,
        gone,
    })
}
