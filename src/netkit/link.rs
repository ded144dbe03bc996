//! Links: found by name, listed only where a daemon must choose; made in the namespace where they are needed.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::{Error, Result};
use crate::ids::{IfIndex, IfName, Mac};
use crate::socket::{Reply, Request, Socket};
use crate::wire::{self, Message, flags};

pub(crate) const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
pub(crate) const RTM_GETLINK: u16 = 18;

pub(crate) const IFLA_ADDRESS: u16 = 1;
pub(crate) const IFLA_IFNAME: u16 = 3;
pub(crate) const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_OPERSTATE: u16 = 16;
pub(crate) const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_PROMISCUITY: u16 = 30;

pub(crate) const IFLA_INFO_KIND: u16 = 1;
pub(crate) const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFLA_BR_VLAN_FILTERING: u16 = 7;

/// Leaves the counters out of the answer; nobody here reads them and they make up most of it.
const SKIP_STATISTICS: u32 = 8;
const OPER_UP: u8 = 6;

pub const IFF_UP: u32 = 0x1;
const IFF_PROMISC: u32 = 0x100;

/// A link as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub index: IfIndex,
    pub name: String,
    /// The kind of a virtual link: "bridge", "veth", ...
    pub kind: Option<String>,
    pub mac: Option<Mac>,
    pub mtu: u32,
    pub flags: u32,
    pub master: Option<IfIndex>,
    /// A veth's peer, as numbered in the peer's namespace.
    pub peer: Option<IfIndex>,
    /// Whether the link is up and has carrier.
    pub operational: bool,
    pub promiscuity: u32,
    /// Only bridges have this; false where the kernel does not tell.
    pub vlan_filtering: bool,
}

impl Link {
    pub fn is_up(&self) -> bool {
        self.flags & IFF_UP != 0
    }

    pub fn is_kind(&self, kind: &str) -> bool {
        self.kind.as_deref() == Some(kind)
    }
}

/// One end of a veth pair to be made.
pub struct VethEnd<'a> {
    pub name: &'a IfName,
    pub mac: Option<Mac>,
    /// None leaves the MTU to the kernel.
    pub mtu: Option<u32>,
}

/// The link of that name, or None.
pub fn find(socket: &mut Socket, name: &str) -> Result<Option<Link>> {
    found(socket.call(get(name)))
}

/// The link of that name; not having it is an error.
pub fn get_by_name(socket: &mut Socket, name: &str) -> Result<Link> {
    let request = get(name);
    let op = request.op.clone();
    single(&op, socket.call(request)?)
}

pub fn get_by_index(socket: &mut Socket, index: IfIndex) -> Result<Link> {
    let mut message = Message::new(RTM_GETLINK, 0).fixed(&header(index.0, 0, 0));
    message.attr_u32(IFLA_EXT_MASK, SKIP_STATISTICS);
    let op = format!("look up the link with index {}", index.0);
    single(&op, socket.call(Request::new(&op, message))?)
}

/// The request behind [`find`], for use in a pipeline.
pub fn get(name: &str) -> Request {
    let mut message = Message::new(RTM_GETLINK, 0).fixed(&header(0, 0, 0));
    message.attr_u32(IFLA_EXT_MASK, SKIP_STATISTICS).attr_str(IFLA_IFNAME, name);
    Request::new(format!("look up link {name}"), message)
}

/// What a pipelined [`get`] came back with.
pub fn found(outcome: Result<Vec<Reply>>) -> Result<Option<Link>> {
    match outcome {
        Ok(replies) => single("look up a link", replies).map(Some),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error),
    }
}

/// All links. Plugins never ask for this: a host may have thousands.
pub fn list(socket: &mut Socket) -> Result<Vec<Link>> {
    let mut message = Message::new(RTM_GETLINK, 0).fixed(&header(0, 0, 0));
    message.attr_u32(IFLA_EXT_MASK, SKIP_STATISTICS);
    let request = Request::new("list links", message);
    socket.dump(&request, |kind, payload| (kind == RTM_NEWLINK).then(|| parse(payload)).flatten())
}

/// Makes a bridge that is up from the start. A MAC given here stays, whatever ports come and go.
pub fn new_bridge(name: &IfName, mac: Option<Mac>, mtu: Option<u32>, vlan_filtering: bool) -> Request {
    let mut message =
        Message::new(RTM_NEWLINK, flags::CREATE | flags::EXCL).fixed(&header(0, IFF_UP, IFF_UP));
    message.attr_str(IFLA_IFNAME, name.as_str());
    if let Some(mtu) = mtu {
        message.attr_u32(IFLA_MTU, mtu);
    }
    if let Some(mac) = mac {
        message.attr(IFLA_ADDRESS, &mac.0);
    }
    message.nest(IFLA_LINKINFO, |m| {
        m.attr_str(IFLA_INFO_KIND, "bridge");
        if vlan_filtering {
            m.nest(IFLA_INFO_DATA, |m| {
                m.attr_u8(IFLA_BR_VLAN_FILTERING, 1);
            });
        }
    });
    Request::new(format!("create bridge {name}"), message)
}

/// Turns a bridge's VLAN filtering on.
pub fn enable_vlan_filtering(bridge: &Link) -> Request {
    let mut message = Message::new(RTM_NEWLINK, 0).fixed(&header(bridge.index.0, 0, 0));
    message.nest(IFLA_LINKINFO, |m| {
        m.attr_str(IFLA_INFO_KIND, "bridge").nest(IFLA_INFO_DATA, |m| {
            m.attr_u8(IFLA_BR_VLAN_FILTERING, 1);
        });
    });
    Request::new(format!("enable VLAN filtering on bridge {}", bridge.name), message)
}

/// Makes a veth pair with the near end here, up and attached to `master`, and the far end in `netns`, down.
///
/// The far end is born where it belongs, so no link is ever moved or renamed.
pub fn new_veth(
    near: &VethEnd<'_>,
    master: Option<IfIndex>,
    far: &VethEnd<'_>,
    netns: Option<BorrowedFd<'_>>,
) -> Request {
    let mut message =
        Message::new(RTM_NEWLINK, flags::CREATE | flags::EXCL).fixed(&header(0, IFF_UP, IFF_UP));
    end(&mut message, near);
    if let Some(master) = master {
        message.attr_u32(IFLA_MASTER, master.0);
    }
    message.nest(IFLA_LINKINFO, |m| {
        m.attr_str(IFLA_INFO_KIND, "veth").nest(IFLA_INFO_DATA, |m| {
            m.nest(VETH_INFO_PEER, |m| {
                m.raw(&header(0, 0, 0));
                end(m, far);
                if let Some(netns) = netns {
                    m.attr_u32(IFLA_NET_NS_FD, netns.as_raw_fd() as u32);
                }
            });
        });
    });
    Request::new(format!("create veth pair {} - {}", near.name, far.name), message)
}

pub fn set_up(link: &Link) -> Request {
    change_flags(link.index, &format!("set {} up", link.name), IFF_UP, IFF_UP)
}

pub fn set_down(link: &Link) -> Request {
    change_flags(link.index, &format!("set {} down", link.name), 0, IFF_UP)
}

pub fn set_promiscuous(link: &Link) -> Request {
    change_flags(link.index, &format!("make {} promiscuous", link.name), IFF_PROMISC, IFF_PROMISC)
}

pub fn set_mac(link: &Link, mac: Mac) -> Request {
    let mut message = Message::new(RTM_NEWLINK, 0).fixed(&header(link.index.0, 0, 0));
    message.attr(IFLA_ADDRESS, &mac.0);
    Request::new(format!("set the address of {} to {mac}", link.name), message)
}

pub fn set_mtu(link: &Link, mtu: u32) -> Request {
    let mut message = Message::new(RTM_NEWLINK, 0).fixed(&header(link.index.0, 0, 0));
    message.attr_u32(IFLA_MTU, mtu);
    Request::new(format!("set the MTU of {} to {mtu}", link.name), message)
}

/// Gives a link another name. Kernels before 6.2 take this only while it is down.
pub fn rename(link: &Link, name: &IfName) -> Request {
    let mut message = Message::new(RTM_NEWLINK, 0).fixed(&header(link.index.0, 0, 0));
    message.attr_str(IFLA_IFNAME, name.as_str());
    Request::new(format!("rename {} to {name}", link.name), message)
}

pub fn set_master(link: &Link, master: &Link) -> Request {
    let mut message = Message::new(RTM_NEWLINK, 0).fixed(&header(link.index.0, 0, 0));
    message.attr_u32(IFLA_MASTER, master.index.0);
    Request::new(format!("attach {} to {}", link.name, master.name), message)
}

/// Moves a link into another namespace. Its addresses, routes and bridge port are gone afterwards.
pub fn move_to(link: &Link, netns: BorrowedFd<'_>) -> Request {
    let mut message = Message::new(RTM_NEWLINK, 0).fixed(&header(link.index.0, 0, 0));
    message.attr_u32(IFLA_NET_NS_FD, netns.as_raw_fd() as u32);
    Request::new(format!("move {} to another network namespace", link.name), message)
}

/// Deletes a link by name; tells whether it was there.
pub fn delete(socket: &mut Socket, name: &str) -> Result<bool> {
    let mut message = Message::new(RTM_DELLINK, 0).fixed(&header(0, 0, 0));
    message.attr_str(IFLA_IFNAME, name);
    match socket.call(Request::new(format!("delete link {name}"), message)) {
        Ok(_) => Ok(true),
        Err(error) if error.is_missing() => Ok(false),
        Err(error) => Err(error),
    }
}

fn change_flags(index: IfIndex, op: &str, values: u32, mask: u32) -> Request {
    Request::new(op, Message::new(RTM_NEWLINK, 0).fixed(&header(index.0, values, mask)))
}

fn end(message: &mut Message, end: &VethEnd<'_>) {
    message.attr_str(IFLA_IFNAME, end.name.as_str());
    if let Some(mtu) = end.mtu {
        message.attr_u32(IFLA_MTU, mtu);
    }
    if let Some(mac) = end.mac {
        message.attr(IFLA_ADDRESS, &mac.0);
    }
}

/// struct ifinfomsg with the family left open.
pub(crate) fn header(index: u32, values: u32, mask: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[4..8].copy_from_slice(&index.to_ne_bytes());
    bytes[8..12].copy_from_slice(&values.to_ne_bytes());
    bytes[12..16].copy_from_slice(&mask.to_ne_bytes());
    bytes
}

fn single(op: &str, replies: Vec<Reply>) -> Result<Link> {
    let malformed = |what| Error::Malformed { op: op.to_owned(), what };
    let reply = replies.into_iter().find(|r| r.kind == RTM_NEWLINK).ok_or(malformed("no link in it"))?;
    parse(&reply.payload).ok_or(malformed("the link is cut short"))
}

pub(crate) fn parse(payload: &[u8]) -> Option<Link> {
    let mut link = Link {
        index: IfIndex(wire::read_u32(payload, 4)?),
        name: String::new(),
        kind: None,
        mac: None,
        mtu: 0,
        flags: wire::read_u32(payload, 8)?,
        master: None,
        peer: None,
        operational: false,
        promiscuity: 0,
        vlan_filtering: false,
    };
    for (kind, value) in wire::attrs(payload.get(16..)?) {
        match kind {
            IFLA_IFNAME => link.name = wire::text(value),
            IFLA_ADDRESS => link.mac = value.try_into().ok().map(Mac),
            IFLA_MTU => link.mtu = wire::read_u32(value, 0)?,
            IFLA_MASTER => link.master = wire::read_u32(value, 0).map(IfIndex),
            IFLA_LINK => link.peer = wire::read_u32(value, 0).filter(|i| *i > 0).map(IfIndex),
            IFLA_OPERSTATE => link.operational = value.first() == Some(&OPER_UP),
            IFLA_PROMISCUITY => link.promiscuity = wire::read_u32(value, 0)?,
            IFLA_LINKINFO => {
                link.kind = wire::find(value, IFLA_INFO_KIND).map(wire::text);
                if link.kind.as_deref() == Some("bridge") {
                    link.vlan_filtering = wire::find(value, IFLA_INFO_DATA)
                        .and_then(|data| wire::find(data, IFLA_BR_VLAN_FILTERING))
                        .is_some_and(|on| on.first() == Some(&1));
                }
            }
            _ => {}
        }
    }
    Some(link)
}
