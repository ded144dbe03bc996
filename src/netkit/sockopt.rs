//! Socket options, by nix; those that it does not name are declared with its macro.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;

use nix::sys::socket::{setsockopt, sockopt};
use nix::{setsockopt_impl, sockopt_impl};

use crate::error::{Error, Result};
use crate::ids::IfName;

sockopt_impl!(ExtendedAck, SetOnly, libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, bool);
sockopt_impl!(StrictChecks, SetOnly, libc::SOL_NETLINK, libc::NETLINK_GET_STRICT_CHK, bool);
sockopt_impl!(
    /// Whether packets may be cut, and what becomes of those that are too large.
    IpMtuDiscover,
    SetOnly,
    libc::IPPROTO_IP,
    libc::IP_MTU_DISCOVER,
    libc::c_int
);
sockopt_impl!(
    /// The same for IPv6.
    Ipv6MtuDiscover,
    SetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_MTU_DISCOVER,
    libc::c_int
);

/// Asks for errors in words, and for dumps to honour the filter in their request.
///
/// Old kernels lack one or both. Callers cope with that, so failures are not reported.
pub(crate) fn ask_for_details(fd: BorrowedFd<'_>) {
    let _ = setsockopt(&fd, ExtendedAck, &true);
    let _ = setsockopt(&fd, StrictChecks, &true);
}

/// Beyond the system's limit, which an administrator of the network may.
pub(crate) fn enlarge_send_buffer(fd: BorrowedFd<'_>, bytes: usize) {
    if setsockopt(&fd, sockopt::SndBufForce, &bytes).is_err() {
        let _ = setsockopt(&fd, sockopt::SndBuf, &bytes);
    }
}

/// What is sent on this socket leaves by the given link, whatever the routes say.
pub fn bind_to_device(fd: BorrowedFd<'_>, link: &IfName) -> Result<()> {
    setsockopt(&fd, sockopt::BindToDevice, &OsString::from(link.as_str()))
        .map_err(|errno| Error::nix(format!("bind a socket to {link}"), errno))
}

/// Nothing that is sent on this socket is cut into fragments, nor held back because it was too large for the path before.
pub fn never_fragment(fd: BorrowedFd<'_>, v4: bool) -> Result<()> {
    let set = match v4 {
        true => setsockopt(&fd, IpMtuDiscover, &libc::IP_PMTUDISC_PROBE),
        false => setsockopt(&fd, Ipv6MtuDiscover, &libc::IPV6_PMTUDISC_PROBE),
    };
    set.map_err(|errno| Error::nix("forbid fragments on a socket", errno))
}
