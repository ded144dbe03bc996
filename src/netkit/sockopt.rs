//! The netlink socket options, which rustix does not offer yet.
#![allow(unsafe_code)] // setsockopt takes a pointer; there is no safe wrapper for SOL_NETLINK.

use std::os::fd::{AsRawFd, BorrowedFd};

/// Asks for errors in words, and for dumps to honour the filter in their request.
///
/// Old kernels lack one or both. Callers cope with that, so failures are not reported.
pub(crate) fn ask_for_details(fd: BorrowedFd<'_>) {
    for option in [libc::NETLINK_EXT_ACK, libc::NETLINK_GET_STRICT_CHK] {
        let on: libc::c_int = 1;
        // SAFETY: the pointer and length describe `on`, which lives until the call returns.
        unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_NETLINK,
                option,
                std::ptr::from_ref(&on).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            );
        }
    }
}
