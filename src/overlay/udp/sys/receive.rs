//! Datagrams in, many in one call, and many that the kernel has put together.
#![allow(unsafe_code)] // recvmmsg takes arrays of structures that point at each other.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::sys::sockaddr;

/// What fits one slot: the longest datagram.
pub const SLOT: usize = 65_536;

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; 128]);

/// Room for the structures of a call over a number of slots.
pub struct DatagramReceiver {
    headers: Vec<libc::mmsghdr>,
    slices: Vec<libc::iovec>,
    names: Vec<libc::sockaddr_storage>,
    controls: Vec<Control>,
}

/// What was received into one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedDatagrams {
    pub from: Option<SocketAddr>,
    pub length: usize,
    /// The size of the datagrams that are in it; the last may be shorter.
    pub size: usize,
    /// Whether the outer packets came with a mark that some router on the way is congested.
    pub congested: bool,
    pub truncated: bool,
}

impl DatagramReceiver {
    pub fn new(slots: usize) -> DatagramReceiver {
        // SAFETY: all zeros is valid for these plain structures.
        let (header, name) = unsafe { (mem::zeroed(), mem::zeroed()) };
        DatagramReceiver {
            headers: vec![header; slots],
            slices: vec![libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; slots],
            names: vec![name; slots],
            controls: vec![Control([0; 128]); slots],
        }
    }

    /// Receives what is pending, without waiting, into up to `most` slots of `arena`; returns how many were used.
    pub fn receive(&mut self, fd: BorrowedFd<'_>, arena: &mut [u8], most: usize) -> io::Result<usize> {
        let slots = arena.chunks_exact_mut(SLOT).take(most.min(self.headers.len()));
        let mut count = 0;
        for (n, slot) in slots.enumerate() {
            self.slices[n] = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() };
            let message = &mut self.headers[n].msg_hdr;
            message.msg_name = std::ptr::from_mut(&mut self.names[n]).cast();
            message.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            message.msg_iov = &mut self.slices[n];
            message.msg_iovlen = 1;
            message.msg_control = std::ptr::from_mut(&mut self.controls[n]).cast();
            message.msg_controllen = size_of::<Control>();
            message.msg_flags = 0;
            count = n + 1;
        }
        // SAFETY: every header points at entries of this structure's lists, and every slice at a slot of `arena` that
        // no other slice overlaps; all of them live until the call returns.
        let received = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                self.headers.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        if received < 0 { Err(io::Error::last_os_error()) } else { Ok(received as usize) }
    }

    /// What the last call put into slot `n`.
    pub fn get(&self, n: usize) -> ReceivedDatagrams {
        let header = &self.headers[n];
        let length = header.msg_len as usize;
        let mut received = ReceivedDatagrams {
            from: sockaddr::from_kernel(&self.names[n]),
            length,
            size: length.max(1),
            congested: false,
            truncated: header.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
        };
        let message = &header.msg_hdr;
        // SAFETY: the kernel has filled in the control buffer that the header points at and set its length; the macros
        // stay within it. The buffer is an entry of `self.controls`, which has not moved since.
        unsafe {
            let mut control = libc::CMSG_FIRSTHDR(message);
            while !control.is_null() {
                let data = libc::CMSG_DATA(control);
                match ((*control).cmsg_level, (*control).cmsg_type) {
                    (libc::SOL_UDP, libc::UDP_GRO) => {
                        let size = data.cast::<libc::c_int>().read_unaligned();
                        received.size = usize::try_from(size).unwrap_or(0).max(1);
                    }
                    (libc::IPPROTO_IP, libc::IP_TOS) => received.congested = data.read() & 3 == 3,
                    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                        received.congested = data.cast::<libc::c_int>().read_unaligned() & 3 == 3;
                    }
                    _ => {}
                }
                control = libc::CMSG_NXTHDR(message, control);
            }
        }
        received
    }
}
