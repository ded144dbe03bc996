//! Socket options that rustix does not offer yet: netlink's, and those that probes need.
#![allow(unsafe_code)] // setsockopt takes a pointer; there is no safe wrapper for these.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::ids::IfName;

/// Asks for errors in words, and for dumps to honour the filter in their request.
///
/// Old kernels lack one or both. Callers cope with that, so failures are not reported.
pub(crate) fn ask_for_details(fd: BorrowedFd<'_>) {
    for option in [libc::NETLINK_EXT_ACK, libc::NETLINK_GET_STRICT_CHK] {
        let _ = set(fd, libc::SOL_NETLINK, option, &1i32.to_ne_bytes());
    }
}

/// Beyond the system's limit, which an administrator of the network may.
pub(crate) fn enlarge_send_buffer(fd: BorrowedFd<'_>, bytes: usize) {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX).to_ne_bytes();
    if set(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes).is_err() {
        let _ = set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes);
    }
}

/// What is sent on this socket leaves by the given link, whatever the routes say.
pub fn bind_to_device(fd: BorrowedFd<'_>, link: &IfName) -> Result<()> {
    set(fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, link.as_str().as_bytes())
        .map_err(|errno| Error::system(format!("bind a socket to {link}"), errno))
}

/// Nothing that is sent on this socket is cut into fragments, nor held back because it was too large for the path before.
pub fn never_fragment(fd: BorrowedFd<'_>, v4: bool) -> Result<()> {
    let (level, option, value) = match v4 {
        true => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE),
        false => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE),
    };
    set(fd, level, option, &value.to_ne_bytes())
        .map_err(|errno| Error::system("forbid fragments on a socket", errno))
}

fn set(fd: BorrowedFd<'_>, level: i32, option: i32, value: &[u8]) -> std::result::Result<(), Errno> {
    // SAFETY: the pointer and length describe `value`, which lives until the call returns.
    let outcome = unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, option, value.as_ptr().cast(), value.len() as libc::socklen_t)
    };
    if outcome < 0 {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        return Err(Errno::from_raw_os_error(errno));
    }
    Ok(())
}
