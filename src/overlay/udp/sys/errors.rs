//! What became of datagrams that were sent earlier: the socket's queue of errors.
#![allow(unsafe_code)] // The error comes in a control message, which is a structure behind a pointer.

use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::sys::sockaddr;

/// An error about a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramError {
    /// Where it was sent to.
    pub to: SocketAddr,
    /// The size that the way there takes, when that was what was wrong.
    pub mtu: Option<u32>,
}

#[repr(C, align(8))]
struct Control([u8; 256]);

/// Takes the oldest error from the queue; None when there is none, or none that is understood.
pub fn take(fd: BorrowedFd<'_>) -> Option<DatagramError> {
    let mut control = Control([0; 256]);
    let mut payload = [0u8; 1];
    let mut slice = libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() };
    // SAFETY: all zeros is valid for these plain structures.
    let (mut name, mut message): (libc::sockaddr_storage, libc::msghdr) = unsafe { mem::zeroed() };
    message.msg_name = std::ptr::from_mut(&mut name).cast();
    message.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    message.msg_iov = &mut slice;
    message.msg_iovlen = 1;
    message.msg_control = std::ptr::from_mut(&mut control).cast();
    message.msg_controllen = size_of::<Control>();
    // SAFETY: the header points at local variables that live until the end of this function.
    let status =
        unsafe { libc::recvmsg(fd.as_raw_fd(), &mut message, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) };
    if status < 0 {
        return None;
    }
    let to = sockaddr::from_kernel(&name)?;
    let mut mtu = None;
    // SAFETY: the kernel has filled in the control buffer and set its length; the macros stay within it.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(&message);
        while !control.is_null() {
            let kind = ((*control).cmsg_level, (*control).cmsg_type);
            if matches!(kind, (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR))
            {
                let error = libc::CMSG_DATA(control).cast::<libc::sock_extended_err>().read_unaligned();
                mtu = (error.ee_errno == libc::EMSGSIZE as u32).then_some(error.ee_info);
            }
            control = libc::CMSG_NXTHDR(&message, control);
        }
    }
    Some(DatagramError { to, mtu })
}
