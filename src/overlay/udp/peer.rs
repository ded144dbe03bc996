//! What is learned of one peer while packets are sent to it: the size that its path takes.

use std::sync::atomic::{AtomicU32, Ordering};

/// How long a path MTU is cached, as in the kernel.
const PATH_MTU_SECONDS: u32 = 600;
/// How long it is before messages are tried again on an interface that refused one.
const SINGLE_SECONDS: u32 = 60;

#[derive(Debug, Default)]
pub struct PeerState {
    /// 0: nothing known.
    path_mtu: AtomicU32,
    /// The second at which it was found, on the path's clock.
    path_mtu_since: AtomicU32,
    /// Until which second datagrams go one by one, because the interface to the peer cannot cut messages.
    single_until: AtomicU32,
}

impl PeerState {
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
}
