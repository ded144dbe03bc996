//! What the path did, and what it refused and why.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a packet was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum DropReason {
    /// A datagram from an address that no peer holds.
    UnknownPeer,
    /// An inner source that the sending peer has no lease for.
    ForeignSource,
    /// An inner destination that is not ours.
    ForeignDestination,
    /// No peer holds the destination.
    NoRoute,
    /// The last hop was used up.
    HopsExceeded,
    /// Does not fit the path and may not be split.
    TooBig,
    /// Shorter than its header says.
    Truncated,
    /// Longer than its header says.
    Oversized,
    /// Neither IPv4 nor IPv6.
    NotIp,
    /// Offload data from the device that do not fit the packet.
    BadOffload,
    /// Congestion was marked on a packet that is not ECN-capable.
    Congested,
    /// The kernel would not send the datagram.
    SendFailed,
    /// The device would not take the packet.
    WriteFailed,
}

/// What is counted beside the drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Count {
    SentPackets,
    SentBytes,
    SentDatagramBatches,
    ReceivedPackets,
    ReceivedBytes,
    ReceivedDatagramBatches,
    DeviceReads,
    DeviceWrites,
    SendCalls,
    ReceiveCalls,
    IcmpSent,
    IcmpHeldBack,
}

const REASONS: [(DropReason, &str); 13] = [
    (DropReason::UnknownPeer, "dropped_unknown_peer"),
    (DropReason::ForeignSource, "dropped_foreign_source"),
    (DropReason::ForeignDestination, "dropped_foreign_destination"),
    (DropReason::NoRoute, "dropped_no_route"),
    (DropReason::HopsExceeded, "dropped_hops_exceeded"),
    (DropReason::TooBig, "dropped_too_big"),
    (DropReason::Truncated, "dropped_truncated"),
    (DropReason::Oversized, "dropped_oversized"),
    (DropReason::NotIp, "dropped_not_ip"),
    (DropReason::BadOffload, "dropped_bad_offload"),
    (DropReason::Congested, "dropped_congested"),
    (DropReason::SendFailed, "dropped_send_failed"),
    (DropReason::WriteFailed, "dropped_write_failed"),
];

const COUNTS: [(Count, &str); 12] = [
    (Count::SentPackets, "sent_packets"),
    (Count::SentBytes, "sent_bytes"),
    (Count::SentDatagramBatches, "sent_datagram_batches"),
    (Count::ReceivedPackets, "received_packets"),
    (Count::ReceivedBytes, "received_bytes"),
    (Count::ReceivedDatagramBatches, "received_datagram_batches"),
    (Count::DeviceReads, "device_reads"),
    (Count::DeviceWrites, "device_writes"),
    (Count::SendCalls, "send_calls"),
    (Count::ReceiveCalls, "receive_calls"),
    (Count::IcmpSent, "icmp_sent"),
    (Count::IcmpHeldBack, "icmp_held_back"),
];

/// One thread's counters. Only that thread writes them, so adding needs no locked instruction.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ThreadCounters {
    drops: [AtomicU64; REASONS.len()],
    counts: [AtomicU64; COUNTS.len()],
}

impl ThreadCounters {
    pub fn drop(&self, reason: DropReason, packets: u64) {
        bump(&self.drops[reason as usize], packets);
    }

    pub fn add(&self, count: Count, by: u64) {
        bump(&self.counts[count as usize], by);
    }
}

fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// The sums over all threads at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    drops: [u64; REASONS.len()],
    counts: [u64; COUNTS.len()],
}

impl Counters {
    pub(crate) fn sum<'a>(thread_counters: impl Iterator<Item = &'a ThreadCounters>) -> Counters {
        let mut sums = Counters::default();
        for counters in thread_counters {
            for (sum, counter) in sums.drops.iter_mut().zip(&counters.drops) {
                *sum += counter.load(Ordering::Relaxed);
            }
            for (sum, counter) in sums.counts.iter_mut().zip(&counters.counts) {
                *sum += counter.load(Ordering::Relaxed);
            }
        }
        sums
    }

    pub fn of(&self, count: Count) -> u64 {
        self.counts[count as usize]
    }

    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// Every counter with its name, in an order that does not change.
    pub fn rows(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counts = COUNTS.iter().map(|(count, name)| (*name, self.of(*count)));
        counts.chain(REASONS.iter().map(|(reason, name)| (*name, self.dropped(*reason))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_has_its_own_row() {
        let counters = ThreadCounters::default();
        for (at, (reason, _)) in REASONS.iter().enumerate() {
            assert_eq!(*reason as usize, at);
            counters.drop(*reason, 1000 + at as u64);
        }
        for (at, (count, _)) in COUNTS.iter().enumerate() {
            assert_eq!(*count as usize, at);
            counters.add(*count, 1 + at as u64);
        }
        let sums = Counters::sum([&counters, &counters].into_iter());
        let values: Vec<u64> = sums.rows().map(|(_, value)| value).collect();
        assert_eq!(values[..3], [2, 4, 6]);
        assert_eq!(values[COUNTS.len()..][..3], [2000, 2002, 2004]);
        assert_eq!(values.len(), REASONS.len() + COUNTS.len());
    }
}
