//! What the threads of a path have in common.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::counters::{Count, Reason, Tally};
use crate::icmp::{Message, Pace};
use crate::peers::{Peers, Table};
use crate::socket::{self, Icmp};
use crate::sys::errors;
use crate::wait::Stop;

#[derive(Debug)]
pub struct Shared {
    pub peers: Peers,
    pub stop: Stop,
    pub icmp: Icmp,
    pub pace: Mutex<Pace>,
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

impl Shared {
    /// Seconds since the path was started: the clock of everything that is forgotten or paced.
    pub fn second(&self) -> u32 {
        self.begun.elapsed().as_secs() as u32
    }

    /// Counts a dropped packet, and tells its sender if there is something to tell.
    pub fn dropped(&self, tally: &Tally, reason: Reason, message: Option<Message>) {
        tally.drop(reason, 1);
        let Some(message) = message else { return };
        let allowed = self.pace.lock().unwrap_or_else(PoisonError::into_inner).allows(self.second());
        if allowed && self.icmp.send(message.to, message.bytes()) {
            tally.add(Count::IcmpSent, 1);
        } else {
            tally.add(Count::IcmpHeldBack, 1);
        }
    }

    /// Reads what the network answered to datagrams of this socket, and notes it with the peers concerned.
    pub fn note_refusals(&self, socket: BorrowedFd<'_>, table: &Table) {
        while let Some(refusal) = errors::take(socket) {
            let Some(entry) = table.find_endpoint(refusal.to).and_then(|n| table.entry(n)) else { continue };
            match refusal.mtu {
                Some(mtu) => {
                    let inner = mtu.saturating_sub(socket::overhead(refusal.to)).max(LEAST_MTU);
                    entry.state.learn_path_mtu(inner, self.second());
                }
                None => entry.state.count_refused(),
            }
        }
    }

    pub fn fail(&self, reason: String) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
    }
}

/// No path is believed to be narrower: the least that the kernel believes (552), without its headers.
const LEAST_MTU: u32 = 524;

pub type Handle = Arc<Shared>;
