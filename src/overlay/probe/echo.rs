//! ICMP echo on raw sockets: requests of any size out, replies in.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use keelson_netkit::{IfName, sockopt};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recv, sendto, socket_with,
};

const HEADER: usize = 8;
const COOKIE: usize = 8;

/// What sets our replies apart from those to other programs on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub id: u16,
    pub cookie: [u8; COOKIE],
}

/// One raw socket of one family.
pub struct Echo {
    fd: OwnedFd,
    v4: bool,
}

impl Echo {
    /// With a device, what is sent leaves by it; such a socket hears only what comes in by it.
    pub fn open(v4: bool, device: Option<&IfName>) -> io::Result<Self> {
        let (family, protocol) = match v4 {
            true => (AddressFamily::INET, ipproto::ICMP),
            false => (AddressFamily::INET6, ipproto::ICMPV6),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(family, SocketType::RAW, flags, Some(protocol))?;
        sockopt::never_fragment(fd.as_fd(), v4).map_err(io::Error::other)?;
        if let Some(device) = device {
            sockopt::bind_to_device(fd.as_fd(), device).map_err(io::Error::other)?;
        }
        Ok(Echo { fd, v4 })
    }

    /// Sends a request that is `size` bytes as an IP packet. What cannot be sent is as good as lost.
    pub fn send(&self, to: IpAddr, mark: Mark, seq: u16, size: u32) -> bool {
        let ip_header = if self.v4 { 20 } else { 40 };
        let len = usize::try_from(size).unwrap_or(0).saturating_sub(ip_header).max(HEADER + COOKIE);
        let packet = request(self.v4, mark, seq, len);
        sendto(&self.fd, &packet, SendFlags::empty(), &SocketAddr::new(to, 0)).is_ok()
    }

    /// Hands the number of every reply of ours that is waiting to `each`.
    pub fn drain(&self, buffer: &mut [u8], mark: Mark, mut each: impl FnMut(u16)) {
        loop {
            match recv(&self.fd, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((_, len)) => {
                    if let Some(seq) = buffer.get(..len).and_then(|packet| reply(self.v4, mark, packet)) {
                        each(seq);
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

impl AsFd for Echo {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn request(v4: bool, mark: Mark, seq: u16, len: usize) -> Vec<u8> {
    let mut packet = vec![0; len];
    packet[0] = if v4 { 8 } else { 128 };
    packet[4..6].copy_from_slice(&mark.id.to_be_bytes());
    packet[6..8].copy_from_slice(&seq.to_be_bytes());
    packet[HEADER..HEADER + COOKIE].copy_from_slice(&mark.cookie);
    if v4 {
        // The kernel computes this for IPv6, whose checksum covers the addresses.
        let sum = checksum(&packet);
        packet[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    packet
}

/// The number in a reply of ours. Raw IPv4 sockets hand out the IP header too.
fn reply(v4: bool, mark: Mark, packet: &[u8]) -> Option<u16> {
    let skip = if v4 { usize::from(packet.first()? & 0xf) * 4 } else { 0 };
    let body = packet.get(skip..)?;
    let expected = if v4 { 0 } else { 129 };
    let own = *body.first()? == expected
        && body.get(4..6)? == mark.id.to_be_bytes()
        && body.get(HEADER..HEADER + COOKIE)? == mark.cookie;
    own.then(|| Some(u16::from_be_bytes([*body.get(6)?, *body.get(7)?]))).flatten()
}

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: Mark = Mark { id: 7, cookie: *b"12345678" };

    #[test]
    fn a_request_turned_into_a_reply_is_recognised_and_nothing_else_is() {
        let mut packet = request(true, MARK, 513, 64);
        assert_eq!(checksum(&packet), 0, "a packet with its checksum sums to nothing");
        assert_eq!(reply(true, MARK, &[&[0x45; 20][..], &packet].concat()), None, "a request is no reply");
        packet[0] = 0;
        let whole = [&[0x45; 20][..], &packet].concat();
        assert_eq!(reply(true, MARK, &whole), Some(513));
        assert_eq!(reply(true, Mark { id: 8, ..MARK }, &whole), None);
        assert_eq!(reply(true, Mark { cookie: [0; 8], ..MARK }, &whole), None);
        for cut in 0..whole.len().min(36) {
            assert_eq!(reply(true, MARK, &whole[..cut]), None, "cut at {cut}");
        }
    }
}
