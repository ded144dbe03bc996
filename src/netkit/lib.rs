//! The kernel's networking, in one place: netlink, network namespaces, nf_tables, conntrack, sysctls.
//!
//! Everything here is blocking and allocates little, because its first users are CNI plugins that live
//! for a few milliseconds. A netlink socket belongs to the namespace it was opened in, so a program that
//! works in two namespaces opens one socket in each and never has to switch again.
//!
//! Architecture invariant: nothing here decides anything. Callers plan, this crate carries out, and its
//! errors name the operation and the object in the words of whoever asked for it.

pub mod addr;
pub mod bridge;
pub mod conntrack;
pub mod error;
pub mod ethtool;
pub mod ids;
pub mod link;
mod link_reader;
pub mod monitor;
pub mod multicast;
pub mod neigh;
pub mod netns;
pub mod nft;
pub mod route;
pub mod socket;
pub mod sockopt;
pub mod sysctl;
pub mod vxlan;
pub mod wire;

pub use error::{Error, Result};
pub use ids::{IfIndex, IfName, IfNameError, Mac};
pub use monitor::Monitor;
pub use netns::NetNs;
pub use socket::Socket;
