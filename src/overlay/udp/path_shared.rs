//! What the threads of a path have in common.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::counters::{Count, DropReason, ThreadCounters};
use crate::icmp_reply::{IcmpRateLimit, IcmpReply};
use crate::peers::{PeerTable, Peers};
use crate::socket::{self, IcmpSocket};
use crate::sys::errors;
use crate::wait::StopEvent;

#[derive(Debug)]
pub struct PathShared {
    pub peers: Peers,
    pub stop: StopEvent,
    pub icmp: IcmpSocket,
    pub icmp_limit: Mutex<IcmpRateLimit>,
    pub begun: Instant,
    pub failure: Mutex<Option<String>>,
}

/// One queue of the device with its sockets, for one thread.
#[derive(Debug)]
pub struct Queue {
    pub device: OwnedFd,
    pub v4: Option<OwnedFd>,
    pub v6: Option<OwnedFd>,
}

impl Queue {
    /// The device and a socket of each family.
    pub const MOST_SOURCES: usize = 3;

    pub fn socket(&self, to: SocketAddr) -> Option<BorrowedFd<'_>> {
        if to.is_ipv4() { self.v4.as_ref() } else { self.v6.as_ref() }.map(AsFd::as_fd)
    }

    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.v4.iter().chain(&self.v6).map(AsFd::as_fd)
    }

    /// Everything that there is to read from.
    pub fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.device.as_fd()).chain(self.sockets())
    }
}

impl PathShared {
    /// Seconds since the path was started: the clock of everything that is forgotten or paced.
    pub fn second(&self) -> u32 {
        self.begun.elapsed().as_secs() as u32
    }

    /// Counts a dropped packet, and sends the ICMP reply, if any.
    pub fn dropped(&self, counters: &ThreadCounters, reason: DropReason, reply: Option<IcmpReply>) {
        counters.drop(reason, 1);
        let Some(reply) = reply else { return };
        let allowed = self.icmp_limit.lock().unwrap_or_else(PoisonError::into_inner).allows(self.second());
        if allowed && self.icmp.send(reply.to, reply.bytes()) {
            counters.add(Count::IcmpSent, 1);
        } else {
            counters.add(Count::IcmpHeldBack, 1);
        }
    }

    /// Reads the errors about datagrams of this socket, and stores the path MTUs in them with their peers.
    pub fn read_errors(&self, socket: BorrowedFd<'_>, table: &PeerTable) {
        while let Some(error) = errors::take(socket) {
            let Some(entry) = table.find_endpoint(error.to).and_then(|n| table.entry(n)) else { continue };
            if let Some(mtu) = error.mtu {
                let inner = mtu.saturating_sub(socket::overhead(error.to)).max(LEAST_MTU);
                entry.state.learn_path_mtu(inner, self.second());
            }
        }
    }

    pub fn fail(&self, reason: String) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
    }
}

/// Smaller path MTUs are not accepted: the kernel's own minimum (552), without its headers.
const LEAST_MTU: u32 = 524;

pub type PathHandle = Arc<PathShared>;
