//! What is remembered of one peer beside its lease: traffic, and the size its path takes.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What went to and came from one peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerCounters {
    pub endpoint: SocketAddr,
    pub sent_packets: u64,
    pub sent_bytes: u64,
    pub received_packets: u64,
    pub received_bytes: u64,
    /// How often its host said that nobody listens on the port, or that it cannot be reached.
    pub refused: u64,
    /// The largest inner packet that its path takes whole, when smaller than the device's MTU was found.
    pub path_mtu: Option<u32>,
}

/// How long a path's size is believed, as the kernel does.
const PATH_MTU_SECONDS: u32 = 600;
/// How long it is before messages are tried again on an interface that refused one.
const SINGLE_SECONDS: u32 = 60;

#[derive(Debug, Default)]
pub struct PeerState {
    sent_packets: AtomicU64,
    sent_bytes: AtomicU64,
    received_packets: AtomicU64,
    received_bytes: AtomicU64,
    refused: AtomicU64,
    /// 0: nothing known.
    path_mtu: AtomicU32,
    /// The second at which it was found, on the path's clock.
    path_mtu_since: AtomicU32,
    /// Until which second datagrams go one by one, because the interface to the peer cannot cut messages.
    single_until: AtomicU32,
}

impl PeerState {
    pub fn count_sent(&self, packets: u64, bytes: u64) {
        self.sent_packets.fetch_add(packets, Ordering::Relaxed);
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn count_received(&self, packets: u64, bytes: u64) {
        self.received_packets.fetch_add(packets, Ordering::Relaxed);
        self.received_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Remembers the largest inner packet that the path takes.
    pub fn learn_path_mtu(&self, mtu: u32, second: u32) {
        self.path_mtu_since.store(second, Ordering::Relaxed);
        self.path_mtu.store(mtu, Ordering::Relaxed);
    }

    pub fn path_mtu(&self, second: u32) -> Option<u32> {
        let mtu = self.path_mtu.load(Ordering::Relaxed);
        if mtu == 0 {
            return None;
        }
        if second.saturating_sub(self.path_mtu_since.load(Ordering::Relaxed)) > PATH_MTU_SECONDS {
            self.path_mtu.store(0, Ordering::Relaxed);
            return None;
        }
        Some(mtu)
    }

    /// Remembers that the interface to this peer takes no messages that it would have to cut.
    pub fn send_singly(&self, second: u32) {
        self.single_until.store(second + SINGLE_SECONDS, Ordering::Relaxed);
    }

    pub fn is_single(&self, second: u32) -> bool {
        second < self.single_until.load(Ordering::Relaxed)
    }

    pub fn counters(&self, endpoint: SocketAddr, second: u32) -> PeerCounters {
        PeerCounters {
            endpoint,
            sent_packets: self.sent_packets.load(Ordering::Relaxed),
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            received_packets: self.received_packets.load(Ordering::Relaxed),
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            path_mtu: self.path_mtu(second),
        }
    }
}
