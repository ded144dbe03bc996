//! A listener for ICMP messages, as a sender's host would get them.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto, recvfrom, socket_with};

use super::{PATIENCE, TestNetns};

pub struct Listener {
    fd: OwnedFd,
    v6: bool,
}

/// A message: who sent it, its type and code, the word behind its checksum, and the packet that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IcmpMessage {
    pub from: IpAddr,
    pub kind: (u8, u8),
    pub word: u32,
    pub quoted: Vec<u8>,
}

impl Listener {
    pub fn new(netns: &TestNetns, v6: bool) -> Listener {
        let (family, protocol) =
            if v6 { (AddressFamily::INET6, ipproto::ICMPV6) } else { (AddressFamily::INET, ipproto::ICMP) };
        let fd =
            netns.run(|| socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol))).unwrap();
        Listener { fd, v6 }
    }

    /// The next message of the type and code, others being passed over.
    pub fn expect(&self, kind: (u8, u8)) -> IcmpMessage {
        loop {
            let message =
                self.next().unwrap_or_else(|| panic!("no ICMP message {kind:?} within {PATIENCE:?}"));
            if message.kind == kind {
                return message;
            }
        }
    }

    fn next(&self) -> Option<IcmpMessage> {
        let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let mut waited = [PollFd::new(&self.fd, PollFlags::IN)];
        if poll(&mut waited, Some(&limit)).unwrap() == 0 {
            return None;
        }
        let mut bytes = [0u8; 2048];
        let (length, _, from) = recvfrom(&self.fd, &mut bytes[..], RecvFlags::empty()).unwrap();
        // IPv4 shows the IP header too.
        let start = if self.v6 { 0 } else { usize::from(bytes[0] & 15) * 4 };
        let message = &bytes[start..length];
        let from = SocketAddr::try_from(from.unwrap()).unwrap().ip();
        Some(IcmpMessage {
            from,
            kind: (message[0], message[1]),
            word: u32::from_be_bytes(message[4..8].try_into().unwrap()),
            quoted: message[8..].to_vec(),
        })
    }
}
