//! Links: found by name, listed only where a daemon must choose; made in the namespace where they are needed.

use std::os::fd::{AsRawFd, BorrowedFd};

use rtnetlink::packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkExtentMask, LinkMessage,
};
use rtnetlink::{LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVeth};

use crate::error::{Error, Result};
use crate::ids::{IfIndex, IfName, Mac};
use crate::link_reader::parse;
use crate::socket::{Reply, Request, Socket};
use crate::wire::{Message, flags};

pub(crate) const CREATE: u16 = flags::CREATE | flags::EXCL;
pub const IFF_UP: u32 = libc::IFF_UP as u32;

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
    /// Only bridges have this; false where the kernel does not report it.
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
    let message = Message::of(libc::RTM_GETLINK, 0, &look_up().index(index.0).build());
    let op = format!("look up the link with index {}", index.0);
    single(&op, socket.call(Request::new(&op, message))?)
}

/// The request behind [`find`], for use in a pipeline.
pub fn get(name: &str) -> Request {
    let message = Message::of(libc::RTM_GETLINK, 0, &look_up().name(name).build());
    Request::new(format!("look up link {name}"), message)
}

/// Leaves the counters out of the answer; nobody here reads them and they make up most of it.
fn look_up() -> LinkMessageBuilder<LinkUnspec> {
    LinkMessageBuilder::<LinkUnspec>::new()
        .append_extra_attribute(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]))
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
    let request = Request::new("list links", Message::of(libc::RTM_GETLINK, 0, &look_up().build()));
    socket.dump(&request, |kind, payload| (kind == libc::RTM_NEWLINK).then(|| parse(payload)).flatten())
}

/// Makes a bridge that is up from the start. A MAC given here stays, whatever ports come and go.
pub fn new_bridge(name: &IfName, mac: Option<Mac>, mtu: Option<u32>, vlan_filtering: bool) -> Request {
    let mut bridge = properties(LinkBridge::new(name.as_str()), mac, mtu);
    if vlan_filtering {
        bridge = bridge.vlan_filtering(true);
    }
    Request::new(format!("create bridge {name}"), Message::of(libc::RTM_NEWLINK, CREATE, &bridge.build()))
}

/// Turns a bridge's VLAN filtering on.
pub fn enable_vlan_filtering(bridge: &Link) -> Request {
    // By its index alone: a name beside it would be taken for a new one.
    let changed =
        LinkMessageBuilder::<LinkBridge>::new_with_info_kind(InfoKind::Bridge).index(bridge.index.0);
    change(&format!("enable VLAN filtering on bridge {}", bridge.name), changed.vlan_filtering(true))
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
    let mut peer = properties(LinkUnspec::new_with_name(far.name.as_str()), far.mac, far.mtu);
    if let Some(netns) = netns {
        peer = peer.setns_by_fd(netns.as_raw_fd());
    }
    let pair = LinkVeth::new(near.name.as_str(), far.name.as_str()).up();
    let mut pair =
        properties(pair, near.mac, near.mtu).set_info_data(InfoData::Veth(InfoVeth::Peer(peer.build())));
    if let Some(master) = master {
        pair = pair.controller(master.0);
    }
    let message = Message::of(libc::RTM_NEWLINK, CREATE, &pair.build());
    Request::new(format!("create veth pair {} - {}", near.name, far.name), message)
}

pub fn set_up(link: &Link) -> Request {
    change(&format!("set {} up", link.name), of(link).up())
}

pub fn set_down(link: &Link) -> Request {
    change(&format!("set {} down", link.name), of(link).down())
}

pub fn set_promiscuous(link: &Link) -> Request {
    change(&format!("make {} promiscuous", link.name), of(link).promiscuous(true))
}

pub fn set_mac(link: &Link, mac: Mac) -> Request {
    change(&format!("set the address of {} to {mac}", link.name), of(link).address(mac.0.to_vec()))
}

pub fn set_mtu(link: &Link, mtu: u32) -> Request {
    change(&format!("set the MTU of {} to {mtu}", link.name), of(link).mtu(mtu))
}

/// Gives a link another name. Kernels before 6.2 take this only while it is down.
pub fn rename(link: &Link, name: &IfName) -> Request {
    change(&format!("rename {} to {name}", link.name), of(link).name(name.as_str()))
}

/// Deletes a link by name; returns whether it was there.
pub fn delete(socket: &mut Socket, name: &str) -> Result<bool> {
    let message = Message::of(libc::RTM_DELLINK, 0, &LinkUnspec::new_with_name(name).build());
    match socket.call(Request::new(format!("delete link {name}"), message)) {
        Ok(_) => Ok(true),
        Err(error) if error.is_missing() => Ok(false),
        Err(error) => Err(error),
    }
}

fn of(link: &Link) -> LinkMessageBuilder<LinkUnspec> {
    LinkUnspec::new_with_index(link.index.0)
}

fn change<T>(op: &str, changed: LinkMessageBuilder<T>) -> Request {
    let changed: LinkMessage = changed.build();
    Request::new(op, Message::of(libc::RTM_NEWLINK, 0, &changed))
}

/// What any link can be made with; the kernel decides what is not given.
pub(crate) fn properties<T>(
    link: LinkMessageBuilder<T>,
    mac: Option<Mac>,
    mtu: Option<u32>,
) -> LinkMessageBuilder<T> {
    let link = if let Some(mtu) = mtu { link.mtu(mtu) } else { link };
    if let Some(mac) = mac { link.address(mac.0.to_vec()) } else { link }
}

fn single(op: &str, replies: Vec<Reply>) -> Result<Link> {
    let malformed = |what| Error::Malformed { op: op.to_owned(), what };
    let reply =
        replies.into_iter().find(|r| r.kind == libc::RTM_NEWLINK).ok_or(malformed("no link in it"))?;
    parse(&reply.payload).ok_or(malformed("the link is cut short"))
}
