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

/// Tells our replies from those to other programs on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EchoId {
    pub id: u16,
    pub cookie: [u8; COOKIE],
}

/// One raw socket of one family.
pub struct EchoSocket {
    fd: OwnedFd,
    v4: bool,
}

impl EchoSocket {
    /// With a device, packets leave by it, and only packets that come in by it are received.
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
        Ok(EchoSocket { fd, v4 })
    }

    /// Sends a request that is `size` bytes as an IP packet. False where it cannot be sent, which counts as lost.
    pub fn send(&self, to: IpAddr, echo_id: EchoId, seq: u16, size: u32) -> bool {
        let ip_header = if self.v4 { 20 } else { 40 };
        let len = usize::try_from(size).unwrap_or(0).saturating_sub(ip_header).max(HEADER + COOKIE);
        let packet = request(self.v4, echo_id, seq, len);
        sendto(&self.fd, &packet, SendFlags::empty(), &SocketAddr::new(to, 0)).is_ok()
    }

    /// Passes the sequence number of every pending reply of ours to `each`.
    pub fn drain(&self, buffer: &mut [u8], echo_id: EchoId, mut each: impl FnMut(u16)) {
        loop {
            match recv(&self.fd, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((_, len)) => {
                    if let Some(seq) = buffer.get(..len).and_then(|packet| reply(self.v4, echo_id, packet)) {
                        each(seq);
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

impl AsFd for EchoSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn request(v4: bool, echo_id: EchoId, seq: u16, len: usize) -> Vec<u8> {
    let mut packet = vec![0; len];
    packet[0] = if v4 { 8 } else { 128 };
    packet[4..6].copy_from_slice(&echo_id.id.to_be_bytes());
    packet[6..8].copy_from_slice(&seq.to_be_bytes());
    packet[HEADER..HEADER + COOKIE].copy_from_slice(&echo_id.cookie);
    if v4 {
        // For IPv6 the kernel computes it, because it covers the addresses.
        let sum = checksum(&packet);
        packet[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    packet
}

/// The sequence number of a reply of ours. Raw IPv4 sockets deliver the IP header too.
fn reply(v4: bool, echo_id: EchoId, packet: &[u8]) -> Option<u16> {
    let skip = if v4 { usize::from(packet.first()? & 0xf) * 4 } else { 0 };
    let body = packet.get(skip..)?;
    let expected = if v4 { 0 } else { 129 };
    let own = *body.first()? == expected
        && body.get(4..6)? == echo_id.id.to_be_bytes()
        && body.get(HEADER..HEADER + COOKIE)? == echo_id.cookie;
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

    const ECHO_ID: EchoId = EchoId { id: 7, cookie: *b"12345678" };

    #[test]
    fn a_request_turned_into_a_reply_is_recognised_and_nothing_else_is() {
        let mut packet = request(true, ECHO_ID, 513, 64);
        assert_eq!(checksum(&packet), 0, "a packet with its checksum sums to nothing");
        assert_eq!(reply(true, ECHO_ID, &[&[0x45; 20][..], &packet].concat()), None, "a request is no reply");
        packet[0] = 0;
        let whole = [&[0x45; 20][..], &packet].concat();
        assert_eq!(reply(true, ECHO_ID, &whole), Some(513));
        assert_eq!(reply(true, EchoId { id: 8, ..ECHO_ID }, &whole), None);
        assert_eq!(reply(true, EchoId { cookie: [0; 8], ..ECHO_ID }, &whole), None);
        for cut in 0..whole.len().min(36) {
            assert_eq!(reply(true, ECHO_ID, &whole[..cut]), None, "cut at {cut}");
        }
    }
}
