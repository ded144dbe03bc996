//! The TUN device: made or taken over, one descriptor for each queue.
#![allow(unsafe_code)] // The device is controlled by ioctl, whose third argument is untyped.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::offload;

const FLAGS: libc::c_int = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_MULTI_QUEUE;
const CHECKSUM_AND_TCP: libc::c_ulong =
    (libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN) as libc::c_ulong;
const UDP: libc::c_ulong = (libc::TUN_F_USO4 | libc::TUN_F_USO6) as libc::c_ulong;

/// Opens one more queue of the device `name`, which is made if it is not there yet. Reads do not block.
pub fn open_queue(name: &str) -> io::Result<OwnedFd> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")?;
    let fd = OwnedFd::from(file);
    let mut request = named(name);
    request.ifr_ifru.ifru_flags = FLAGS as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes an ifreq, which `request` is.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &mut request) })?;
    let size = offload::LENGTH as libc::c_int;
    // SAFETY: TUNSETVNETHDRSZ reads an int.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &size) })?;
    Ok(fd)
}

/// Has the kernel hand over large packets and unfinished checksums. Returns whether that goes for UDP too, which kernels
/// before 6.2 do not know.
pub fn enable_offloads(queue: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: TUNSETOFFLOAD takes its flags by value.
    let set =
        |flags: libc::c_ulong| check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETOFFLOAD, flags) });
    if set(CHECKSUM_AND_TCP | UDP).is_ok() {
        return Ok(true);
    }
    set(CHECKSUM_AND_TCP)?;
    Ok(false)
}

/// Whether the device outlives the last descriptor.
pub fn set_persistent(queue: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    // SAFETY: TUNSETPERSIST takes its argument by value.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETPERSIST, libc::c_ulong::from(on)) })
}

/// The device's number in the namespace of the socket.
pub fn index(socket: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    let mut request = named(name);
    // SAFETY: SIOCGIFINDEX reads the name in an ifreq and writes its index.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFINDEX, &mut request) })?;
    // SAFETY: the call succeeded, so this is the member that was written.
    Ok(unsafe { request.ifr_ifru.ifru_ifindex } as u32)
}

fn named(name: &str) -> libc::ifreq {
    // SAFETY: all zeros is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte is left for the terminating zero.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

fn check(status: libc::c_int) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
