//! The one device feature that tunnels need switched: checksums left to the hardware.
#![allow(unsafe_code)] // SIOCETHTOOL takes a pointer inside a structure; there is no safe wrapper.

use std::os::fd::AsRawFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::error::{Error, Result};
use crate::ids::IfName;

const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_STXCSUM: u32 = 0x17;

/// struct ethtool_value.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Whether packets that leave by this link may have their checksums filled in later, by hardware.
pub fn tx_checksum_offload(link: &IfName) -> Result<bool> {
    ask(link, ETHTOOL_GTXCSUM, 0, "read the checksum offload of").map(|data| data != 0)
}

/// Switches that on or off.
pub fn set_tx_checksum_offload(link: &IfName, on: bool) -> Result<()> {
    ask(link, ETHTOOL_STXCSUM, u32::from(on), "switch the checksum offload of").map(drop)
}

fn ask(link: &IfName, command: u32, data: u32, verb: &str) -> Result<u32> {
    let op = || format!("{verb} {link}");
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| Error::system(op(), errno))?;
    let mut value = Value { command, data };
    // SAFETY: ifreq is plain data, for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(link.as_str().bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = std::ptr::from_mut(&mut value).cast();
    // SAFETY: the request and the value that it points to outlive the call; the name is shorter than its field.
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, std::ptr::from_mut(&mut request)) };
    if answer < 0 {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        return Err(Error::system(op(), Errno::from_raw_os_error(errno)));
    }
    Ok(value.data)
}
