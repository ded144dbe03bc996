//! Neighbours: the link-layer address behind an IP address, or behind a tunnel's far end.

use std::net::IpAddr;

use crate::addr::{Family, addr_bytes};
use crate::ids::{IfIndex, Mac};
use crate::socket::Request;
use crate::wire::{Message, flags};

const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
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

/// struct ndmsg.
fn header(family: u8, link: IfIndex, flags: u8) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[0] = family;
    bytes[4..8].copy_from_slice(&link.0.to_ne_bytes());
    bytes[8..10].copy_from_slice(&STATE_PERMANENT.to_ne_bytes());
    bytes[10] = flags;
    bytes
}
