//! Datagrams out, many in one call, and many made of one message by the kernel.
#![allow(unsafe_code)] // sendmmsg takes arrays of structures that point at each other.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::outgoing::Slices;
use crate::sys::sockaddr;

/// The most messages that one call takes.
const MOST_MESSAGES: usize = 64;
/// The most slices that they have together.
const MOST_SLICES: usize = 1024;
const SEGMENT_SIZE: libc::c_int = libc::UDP_SEGMENT;

/// A control message with the segment size.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control {
    header: libc::cmsghdr,
    size: u16,
    padding: [u8; 6],
}

/// Room for the structures of a call. What they point at is filled in anew for each one.
pub struct DatagramSender {
    headers: Vec<libc::mmsghdr>,
    slices: Vec<libc::iovec>,
    names: Vec<libc::sockaddr_storage>,
    controls: Vec<Control>,
}

/// A message: where it goes, into what size the kernel cuts it (0: not at all), and what is in it.
pub type DatagramBatch<'a> = (SocketAddr, u16, &'a [Slices]);

impl Default for DatagramSender {
    fn default() -> Self {
        DatagramSender {
            headers: Vec::with_capacity(MOST_MESSAGES),
            slices: Vec::with_capacity(MOST_SLICES),
            names: Vec::with_capacity(MOST_MESSAGES),
            controls: Vec::with_capacity(MOST_MESSAGES),
        }
    }
}

impl DatagramSender {
    /// Sends some messages from the front of `messages`; returns how many. An error is about the first one.
    pub fn send<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        arena: &[u8],
        messages: impl Iterator<Item = DatagramBatch<'a>>,
    ) -> io::Result<usize> {
        self.headers.clear();
        self.slices.clear();
        self.names.clear();
        self.controls.clear();
        for (to, size, slices) in messages.take(MOST_MESSAGES) {
            if self.slices.len() + 2 * slices.len() > MOST_SLICES && !self.headers.is_empty() {
                break;
            }
            self.add(arena, to, size, slices);
        }
        // The lists do not grow any more, so now their places are known.
        let mut first = 0;
        for (n, header) in self.headers.iter_mut().enumerate() {
            let message = &mut header.msg_hdr;
            message.msg_name = std::ptr::from_mut(&mut self.names[n]).cast();
            message.msg_iov = self.slices[first..].as_mut_ptr();
            first += message.msg_iovlen;
            if message.msg_controllen > 0 {
                message.msg_control = std::ptr::from_mut(&mut self.controls[n]).cast();
            }
        }
        // SAFETY: every header points at entries of this structure's lists, and every slice into `arena`; all of
        // them live until the call returns, and sending changes none of what they point at.
        let sent = unsafe {
            libc::sendmmsg(fd.as_raw_fd(), self.headers.as_mut_ptr(), self.headers.len() as libc::c_uint, 0)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }

    fn add(&mut self, arena: &[u8], to: SocketAddr, size: u16, slices: &[Slices]) {
        let before = self.slices.len();
        for part in slices.iter().flat_map(|s| [s.head, s.tail]).filter(|(_, length)| *length > 0) {
            // Bounds are checked here: an iovec is only ever made of a slice of the arena.
            let Some(bytes) = arena.get(part.0 as usize..(part.0 + part.1) as usize) else { continue };
            self.slices
                .push(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
        }
        let (name, length) = sockaddr::to_kernel(to);
        self.names.push(name);
        // SAFETY: all zeros is a valid cmsghdr.
        let mut control = Control { header: unsafe { mem::zeroed() }, size, padding: [0; 6] };
        control.header.cmsg_level = libc::SOL_UDP;
        control.header.cmsg_type = SEGMENT_SIZE;
        control.header.cmsg_len = size_of::<libc::cmsghdr>() + size_of::<u16>();
        self.controls.push(control);
        // SAFETY: all zeros is a valid mmsghdr.
        let mut header: libc::mmsghdr = unsafe { mem::zeroed() };
        header.msg_hdr.msg_namelen = length;
        header.msg_hdr.msg_iovlen = self.slices.len() - before;
        header.msg_hdr.msg_controllen = if size > 0 { size_of::<Control>() } else { 0 };
        self.headers.push(header);
    }
}
