//! The UDP sockets, and the raw ones that ICMP goes out by.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, bind, ipproto, sendto, socket_with};

use crate::error::Error;
use crate::sys::options;

/// What a burst may queue up in the kernel; it is memory only while it is full.
const BUFFER: libc::c_int = 4 << 20;

/// Binds one socket of those that share `address`. The kernel spreads peers over them by their address.
pub fn open(address: SocketAddr, shared: bool) -> Result<OwnedFd, Error> {
    let failed = |op: &'static str| move |source: io::Error| Error::Socket { op, address, source };
    let v4 = address.is_ipv4();
    let family = if v4 { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| failed("open a UDP socket for")(errno.into()))?;
    let set = |level, option, value: libc::c_int| options::set(fd.as_fd(), level, option, value);
    if shared {
        set(libc::SOL_SOCKET, libc::SO_REUSEPORT, 1).map_err(failed("share the port of"))?;
    }
    // What follows makes things faster or tells more. Kernels or privileges that lack it are no reason to stop.
    let _ = set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, BUFFER);
    let _ = set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, BUFFER);
    let _ = set(libc::SOL_UDP, libc::UDP_GRO, 1);
    if v4 {
        let _ = set(libc::IPPROTO_IP, libc::IP_RECVERR, 1);
        let _ = set(libc::IPPROTO_IP, libc::IP_RECVTOS, 1);
        // As flanneld's: datagrams may not be split on the way, but are split here when the way is known to need it.
        let _ = set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_WANT);
    } else {
        set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1).map_err(failed("restrict to IPv6"))?;
        let _ = set(libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1);
        let _ = set(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1);
        let _ = set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_WANT);
    }
    bind(&fd, &address).map_err(|errno| failed("listen on")(errno.into()))?;
    Ok(fd)
}

/// The size that the kernel knows the way to `endpoint` to take.
pub fn route_mtu(endpoint: SocketAddr) -> io::Result<u32> {
    let any: SocketAddr = if endpoint.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(endpoint)?;
    let (level, option) = match endpoint {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let mtu = options::get_int(socket.as_fd(), level, option)?;
    u32::try_from(mtu).map_err(|_| io::Error::other("a negative MTU"))
}

/// What IP and UDP add to a packet on its way to `endpoint`.
pub fn overhead(endpoint: SocketAddr) -> u32 {
    if endpoint.is_ipv4() { 28 } else { 48 }
}

/// Sends ICMP messages as the host itself would. Either socket may be missing: then nothing is told in that family.
#[derive(Debug)]
pub struct Icmp {
    v4: Option<OwnedFd>,
    v6: Option<OwnedFd>,
}

impl Icmp {
    pub fn open() -> Icmp {
        let raw = |family, protocol| {
            socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, Some(protocol))
                .ok()
        };
        let v4 = raw(AddressFamily::INET, ipproto::ICMP);
        let v6 = raw(AddressFamily::INET6, ipproto::ICMPV6);
        // These are for sending: without a filter every ICMP packet of the host would be queued on them.
        let block = |fd: BorrowedFd<'_>, level, option| {
            let _ = options::set(fd, level, option, [u32::MAX; 8]);
        };
        if let Some(fd) = &v4 {
            block(fd.as_fd(), libc::SOL_RAW, ICMP_FILTER);
        }
        if let Some(fd) = &v6 {
            block(fd.as_fd(), libc::IPPROTO_ICMPV6, ICMP6_FILTER);
        }
        Icmp { v4, v6 }
    }

    pub fn send(&self, to: IpAddr, message: &[u8]) -> bool {
        let fd = if to.is_ipv4() { &self.v4 } else { &self.v6 };
        let Some(fd) = fd else { return false };
        sendto(fd, message, SendFlags::DONTWAIT, &SocketAddr::new(to, 0)).is_ok()
    }
}

const ICMP_FILTER: libc::c_int = 1;
const ICMP6_FILTER: libc::c_int = 1;
