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
//! Architecture invariant: a packet is accepted only from a peer's own endpoint, with a source in its own lease.

mod batching;
mod carry_loop;
mod checksum;
mod counters;
mod error;
mod flow;
mod header;
mod icmp_reply;
mod inbound;
mod merge;
mod offload;
mod outbound;
mod outgoing;
mod path;
mod path_shared;
mod peer;
mod peers;
mod prefix_table;
mod receive_loop;
mod segment;
mod send_loop;
mod socket;
mod sys;
#[cfg(test)]
mod testing;
mod wait;

#[cfg(test)]
mod carry_tests;

pub use counters::{Count, Counters, DropReason};
pub use error::Error;
pub use path::{Config, Leave, Path};
pub use peers::{Peer, Peers, SubnetConflict};

/// The port that flannel's udp backend uses.
pub const PORT: u16 = 8285;
