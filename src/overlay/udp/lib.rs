//! The udp backend's data path: IP packets between a TUN device and UDP datagrams, in flannel's format.
//!
//! On the wire one datagram is one inner IP packet and nothing else, so a flanneld at the other end need not know how it
//! came about. Here packets travel in bulk: the kernel hands over large TCP and UDP packets uncut, they are cut in memory
//! by writing headers only, and go out as one message that the kernel cuts into datagrams. On the way in it is the other
//! way round. Payload is copied by the kernel alone.
//!
//! Architecture invariant: `outbound` and `inbound` decide what becomes of each packet and make no system call; the loops
//! around them do nothing else. No packet allocates memory.
//!
//! Architecture invariant: nothing is heard but what a peer sends from its own endpoint, with a source in its own lease.

mod carry_loop;
mod checksum;
mod counters;
mod error;
mod flow;
mod gather;
mod header;
mod icmp;
mod inbound;
mod merge;
mod offload;
mod outbound;
mod outgoing;
mod path;
mod peer;
mod peers;
mod prefix;
mod receive_loop;
mod segment;
mod send_loop;
mod shared;
mod socket;
mod sys;
#[cfg(test)]
mod testing;
mod wait;

#[cfg(test)]
mod carry_tests;

pub use counters::{Count, Counters, Reason};
pub use error::Error;
pub use path::{Config, Leave, Path};
pub use peer::PeerCounters;
pub use peers::{Conflict, Peer, Peers};

/// The port that flannel's udp backend uses.
pub const PORT: u16 = 8285;

/// The device's MTU over an interface with `mtu`: what IP and UDP add is taken off.
pub fn mtu_for(mtu: u32, v6: bool) -> u32 {
    mtu.saturating_sub(if v6 { 48 } else { 28 })
}
