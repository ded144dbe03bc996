//! The UDP sockets, and the raw ones that ICMP goes out by.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use keelson_netkit::sockopt::{IpMtuDiscover, Ipv6MtuDiscover};
use nix::errno::Errno;
use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, bind, ipproto, sendto, socket_with};

use crate::error::Error;
use crate::sys::options::{IcmpFilter, Icmpv6Filter, Ipv6Mtu};

/// What a burst may queue up in the kernel; it is memory only while it is full.
const BUFFER: usize = 4 << 20;

/// Binds one socket of those that share `address`. The kernel spreads peers over them by their address.
pub fn open(address: SocketAddr, shared: bool) -> Result<OwnedFd, Error> {
    let failed = |op: &'static str| move |source: io::Error| Error::Socket { op, address, source };
    let v4 = address.is_ipv4();
    let family = if v4 { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| failed("open a UDP socket for")(errno.into()))?;
    let refused = |op| move |errno: Errno| failed(op)(errno.into());
    if shared {
        setsockopt(&fd, sockopt::ReusePort, &true).map_err(refused("share the port of"))?;
    }
    // These options are optional: a kernel or privileges without them are no reason to fail.
    let _ = setsockopt(&fd, sockopt::RcvBufForce, &BUFFER);
    let _ = setsockopt(&fd, sockopt::SndBufForce, &BUFFER);
    let _ = setsockopt(&fd, sockopt::UdpGroSegment, &true);
    if v4 {
        let _ = setsockopt(&fd, sockopt::Ipv4RecvErr, &true);
        let _ = setsockopt(&fd, sockopt::IpRecvTos, &true);
        // As flanneld's: datagrams may not be split on the way, but are split here when the way is known to need it.
        let _ = setsockopt(&fd, IpMtuDiscover, &libc::IP_PMTUDISC_WANT);
    } else {
        setsockopt(&fd, sockopt::Ipv6V6Only, &true).map_err(refused("restrict to IPv6"))?;
        let _ = setsockopt(&fd, sockopt::Ipv6RecvErr, &true);
        let _ = setsockopt(&fd, sockopt::Ipv6RecvTClass, &true);
        let _ = setsockopt(&fd, Ipv6MtuDiscover, &libc::IPV6_PMTUDISC_WANT);
    }
    bind(&fd, &address).map_err(|errno| failed("listen on")(errno.into()))?;
    Ok(fd)
}

/// The size that the kernel knows the way to `endpoint` to take.
pub fn route_mtu(endpoint: SocketAddr) -> io::Result<u32> {
    let any: SocketAddr = if endpoint.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(endpoint)?;
    let mtu = match endpoint {
        SocketAddr::V4(_) => getsockopt(&socket, sockopt::IpMtu)?,
        SocketAddr::V6(_) => getsockopt(&socket, Ipv6Mtu)?,
    };
    u32::try_from(mtu).map_err(|_| io::Error::other("a negative MTU"))
}

/// What IP and UDP add to a packet on its way to `endpoint`.
pub fn overhead(endpoint: SocketAddr) -> u32 {
    if endpoint.is_ipv4() { 28 } else { 48 }
}

/// Sends ICMP messages as the host itself would. Without a socket, no errors are sent in its family.
#[derive(Debug)]
pub struct IcmpSocket {
    v4: Option<OwnedFd>,
    v6: Option<OwnedFd>,
}

impl IcmpSocket {
    pub fn open() -> IcmpSocket {
        let raw = |family, protocol| {
            socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, Some(protocol))
                .ok()
        };
        let v4 = raw(AddressFamily::INET, ipproto::ICMP);
        let v6 = raw(AddressFamily::INET6, ipproto::ICMPV6);
        // These are for sending: without a filter every ICMP packet of the host would be queued on them.
        const ALL: [u32; 8] = [u32::MAX; 8];
        let _ = v4.as_ref().map(|fd| setsockopt(fd, IcmpFilter, &ALL));
        let _ = v6.as_ref().map(|fd| setsockopt(fd, Icmpv6Filter, &ALL));
        IcmpSocket { v4, v6 }
    }

    pub fn send(&self, to: IpAddr, message: &[u8]) -> bool {
        let fd = if to.is_ipv4() { &self.v4 } else { &self.v6 };
        let Some(fd) = fd else { return false };
        sendto(fd, message, SendFlags::DONTWAIT, &SocketAddr::new(to, 0)).is_ok()
    }
}
