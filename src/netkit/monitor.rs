//! Word from the kernel that something changed: a socket that only listens.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use crate::error::{Error, Result};
use crate::ids::{IfIndex, Mac};
use crate::route::{self, Route};
use crate::{neigh, nft, wire};

/// RTMGRP_LINK, _NEIGH, _IPV4_IFADDR, _IPV4_ROUTE, _IPV6_IFADDR, _IPV6_ROUTE.
const ROUTE_GROUPS: u32 = 0x1 | 0x4 | 0x10 | 0x40 | 0x100 | 0x400;
/// RTMGRP_IPV4_IFADDR, _IPV6_IFADDR.
const ADDRESS_GROUPS: u32 = 0x10 | 0x100;
/// NFNLGRP_NFTABLES as a bit.
const NFTABLES_GROUP: u32 = 1 << 6;

const IPV6: u8 = 10;
const SCOPE_LINK: u8 = 253;

const RTM_LINK: std::ops::RangeInclusive<u16> = 16..=17;
const RTM_ADDR: std::ops::RangeInclusive<u16> = 20..=21;
const RTM_ROUTE: std::ops::RangeInclusive<u16> = 24..=25;
const RTM_NEIGH: std::ops::RangeInclusive<u16> = 28..=29;

/// Something that changed, with what the kernel reported of it, so that whoever listens need not list everything to
/// find out whether it matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Link(IfIndex),
    /// An address that more than the link knows.
    Address(IfIndex),
    /// Set, or gone.
    Route {
        route: Route,
        gone: bool,
    },
    /// A neighbour, or a forwarding entry of a tunnel device.
    Neighbour(NeighbourChange),
    /// Something in an nf_tables table, by the netlink port of whoever did it.
    Rules {
        table: String,
        by: u32,
    },
    /// So much at once that the kernel could not report it: list everything.
    Anything,
}

/// What is reported of a neighbour; one that is about to go has no link-layer address any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeighbourChange {
    pub link: IfIndex,
    /// A frame's address and where it is forwarded to, rather than an IP address and who has it.
    pub forwarding: bool,
    pub addr: Option<IpAddr>,
    pub mac: Option<Mac>,
    pub permanent: bool,
    pub gone: bool,
}

/// Listens in the namespace it was opened in, and never blocks.
pub struct Monitor {
    fd: OwnedFd,
    buf: Vec<u8>,
}

impl Monitor {
    /// Hears of links, addresses, routes and neighbours.
    pub fn route() -> Result<Self> {
        Self::open(None, ROUTE_GROUPS, "listen for changes of links and routes")
    }

    /// Hears of addresses alone.
    pub fn addresses() -> Result<Self> {
        Self::open(None, ADDRESS_GROUPS, "listen for changes of addresses")
    }

    /// Hears of nf_tables.
    pub fn nftables() -> Result<Self> {
        Self::open(Some(netlink::NETFILTER), NFTABLES_GROUP, "listen for changes of nf_tables")
    }

    fn open(protocol: Option<rustix::net::Protocol>, groups: u32, op: &str) -> Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)
            .map_err(|errno| Error::system(op, errno))?;
        bind(&fd, &SocketAddrNetlink::new(0, groups)).map_err(|errno| Error::system(op, errno))?;
        Ok(Monitor { fd, buf: vec![0; 32768] })
    }

    /// Takes everything that is waiting and hands it to `each`.
    pub fn drain(&mut self, mut each: impl FnMut(Change)) -> Result<()> {
        loop {
            match recv(&self.fd, &mut self.buf[..], RecvFlags::DONTWAIT) {
                Ok((_, len)) => {
                    wire::messages(&self.buf[..len.min(self.buf.len())])
                        .filter_map(|m| read(&m))
                        .for_each(&mut each);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                // Some were lost because they came faster than they were read.
                Err(Errno::NOBUFS) => each(Change::Anything),
                Err(errno) => return Err(Error::system("listen for changes", errno)),
            }
        }
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Monitor {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

fn read(message: &wire::Received<'_>) -> Option<Change> {
    let payload = message.payload;
    let index = || wire::read_u32(payload, 4).map(IfIndex);
    // Of each pair of kinds, the second reports what is gone.
    let gone = message.kind & 1 == 1;
    match message.kind {
        kind if RTM_LINK.contains(&kind) => index().map(Change::Link),
        // Every device gets a link-local address of its own a moment after it came up; nobody has a use for that.
        kind if RTM_ADDR.contains(&kind)
            && payload.first() == Some(&IPV6)
            && payload.get(3) == Some(&SCOPE_LINK) =>
        {
            None
        }
        kind if RTM_ADDR.contains(&kind) => index().map(Change::Address),
        kind if RTM_ROUTE.contains(&kind) => route::parse(payload).map(|route| Change::Route { route, gone }),
        kind if RTM_NEIGH.contains(&kind) => neigh::parse_change(payload, gone).map(Change::Neighbour),
        kind if kind >> 8 == nft::SUBSYSTEM => {
            nft::named_table(message).map(|table| Change::Rules { table, by: message.port })
        }
        _ => None,
    }
}
