//! The system calls that no safe wrapper offers: the TUN device's controls, and datagrams in batches.

pub mod errors;
pub mod options;
pub mod receive;
pub mod send;
pub mod sockaddr;
pub mod tun;
