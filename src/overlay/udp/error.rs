//! What can keep a path from starting.

use std::io;
use std::net::SocketAddr;

use keelson_netkit::IfName;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {op} the TUN device {device}: {source}{}", hint(source))]
    Device { op: &'static str, device: IfName, source: io::Error },
    #[error("cannot {op} {address}: {source}")]
    Socket { op: &'static str, address: SocketAddr, source: io::Error },
    #[error("cannot start the thread {name}: {source}")]
    Thread { name: String, source: io::Error },
    #[error("cannot make an event to stop by: {0}")]
    Event(io::Error),
    #[error("no address to listen on: one of this host's own is needed, with port 8285 by flannel's habit")]
    NoAddress,
    #[error("{0} is no address to listen on: peers could not tell whether datagrams come from this host")]
    Wildcard(SocketAddr),
    #[error("two addresses of one family to listen on, {0} and {1}: peers know only one")]
    TwoAddresses(SocketAddr, SocketAddr),
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EINVAL) => "; one of that name is there but is no multi-queue TUN device: remove it",
        Some(libc::EBUSY) => "; another program has it",
        Some(libc::EPERM) => "; CAP_NET_ADMIN is needed",
        Some(libc::ENOENT) => "; /dev/net/tun is missing",
        _ => "",
    }
}
