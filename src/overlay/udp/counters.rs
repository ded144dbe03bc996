//! What the path did, and what it refused and why.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a packet was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Reason {
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
    /// Congestion was marked on a packet that cannot tell it on.
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

const REASONS: [(Reason, &str); 13] = [
    (Reason::UnknownPeer, "dropped_unknown_peer"),
    (Reason::ForeignSource, "dropped_foreign_source"),
    (Reason::ForeignDestination, "dropped_foreign_destination"),
    (Reason::NoRoute, "dropped_no_route"),
    (Reason::HopsExceeded, "dropped_hops_exceeded"),
    (Reason::TooBig, "dropped_too_big"),
    (Reason::Truncated, "dropped_truncated"),
    (Reason::Oversized, "dropped_oversized"),
    (Reason::NotIp, "dropped_not_ip"),
    (Reason::BadOffload, "dropped_bad_offload"),
    (Reason::Congested, "dropped_congested"),
    (Reason::SendFailed, "dropped_send_failed"),
    (Reason::WriteFailed, "dropped_write_failed"),
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
pub struct Tally {
    drops: [AtomicU64; REASONS.len()],
    counts: [AtomicU64; COUNTS.len()],
}

impl Tally {
    pub fn drop(&self, reason: Reason, packets: u64) {
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
    pub(crate) fn sum<'a>(tallies: impl Iterator<Item = &'a Tally>) -> Counters {
        let mut sums = Counters::default();
        for tally in tallies {
            for (sum, counter) in sums.drops.iter_mut().zip(&tally.drops) {
                *sum += counter.load(Ordering::Relaxed);
            }
            for (sum, counter) in sums.counts.iter_mut().zip(&tally.counts) {
                *sum += counter.load(Ordering::Relaxed);
            }
        }
        sums
    }

    pub fn of(&self, count: Count) -> u64 {
        self.counts[count as usize]
    }

    pub fn dropped(&self, reason: Reason) -> u64 {
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
        let tally = Tally::default();
        for (at, (reason, _)) in REASONS.iter().enumerate() {
            assert_eq!(*reason as usize, at);
            tally.drop(*reason, 1000 + at as u64);
        }
        for (at, (count, _)) in COUNTS.iter().enumerate() {
            assert_eq!(*count as usize, at);
            tally.add(*count, 1 + at as u64);
        }
        let sums = Counters::sum([&tally, &tally].into_iter());
        let values: Vec<u64> = sums.rows().map(|(_, value)| value).collect();
        assert_eq!(values[..3], [2, 4, 6]);
        assert_eq!(values[COUNTS.len()..][..3], [2000, 2002, 2004]);
        assert_eq!(values.len(), REASONS.len() + COUNTS.len());
    }
}
