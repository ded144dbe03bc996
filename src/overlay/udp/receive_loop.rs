//! Receives from peers and writes to the device.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use keelson_kit::cidr::IpNetwork;
use rustix::io::{Errno, writev};

use crate::batching::BatchSize;
use crate::counters::{Count, DropReason, ThreadCounters};
use crate::inbound::Inbound;
use crate::merge::MOST_MERGED;
use crate::outbound::PacketOutcome;
use crate::path_shared::{PathHandle, Queue};
use crate::peers::PeerTable;
use crate::sys::receive::{DatagramReceiver, ReceivedDatagrams, SLOT};

/// How many datagrams, each perhaps many put together, one call receives.
const SLOTS: usize = 16;
/// The same when they are large: enough for one call to be worth it, and few enough to stay in the cache.
const LARGE_SLOTS: usize = 3;
/// From which average on datagrams are large.
const LARGE: usize = 16 * 1024;

pub struct ReceiveLoop<'a> {
    shared: &'a PathHandle,
    queue: &'a Queue,
    counters: &'a ThreadCounters,
    inbound: Inbound,
    receive: DatagramReceiver,
    arena: Box<[u8]>,
    slots: usize,
}

impl<'a> ReceiveLoop<'a> {
    pub fn new(
        shared: &'a PathHandle,
        queue: &'a Queue,
        counters: &'a ThreadCounters,
        own: &[IpNetwork],
        udp: bool,
    ) -> Self {
        ReceiveLoop {
            shared,
            queue,
            counters,
            inbound: Inbound::new(own, udp),
            receive: DatagramReceiver::new(SLOTS),
            arena: vec![0; SLOTS * SLOT].into(),
            slots: SLOTS,
        }
    }

    /// Receives once and writes it all. An error means that the device or the socket is gone.
    pub fn batch(&mut self, socket: BorrowedFd<'_>) -> Result<BatchSize, Errno> {
        let count = match self.receive.receive(socket, &mut self.arena, self.slots) {
            Ok(count) => count,
            Err(error) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                // Errors about sent datagrams are reported to the next read, once each.
                self.shared.read_errors(socket, &self.shared.peers.load());
                return match errno {
                    Errno::BADF | Errno::NOTSOCK => Err(errno),
                    _ => Ok(BatchSize::default()),
                };
            }
        };
        self.counters.add(Count::ReceiveCalls, 1);
        let table = self.shared.peers.load();
        self.inbound.begin();
        let mut round = BatchSize::default();
        for slot in 0..count {
            let received = self.receive.get(slot);
            let packets = received.length.div_ceil(received.size).max(1);
            round += BatchSize { packets, bytes: received.length };
            self.take(&table, slot, received, packets)?;
        }
        self.write()?;
        self.slots = if round.bytes > LARGE * count { LARGE_SLOTS } else { SLOTS };
        Ok(round)
    }

    fn take(
        &mut self,
        table: &PeerTable,
        slot: usize,
        received: ReceivedDatagrams,
        packets: usize,
    ) -> Result<(), Errno> {
        let from = received.from.and_then(|from| table.find_endpoint(from));
        let Some(peer) = from else {
            self.counters.drop(DropReason::UnknownPeer, packets as u64);
            return Ok(());
        };
        if received.truncated {
            self.counters.drop(DropReason::Truncated, packets as u64);
            return Ok(());
        }
        let start = slot * SLOT;
        let mut taken = 0;
        for n in 0..packets {
            let at = start + n * received.size;
            let range = at..(at + received.size).min(start + received.length);
            if self.inbound.is_full() {
                self.write()?;
            }
            match self.inbound.accept(table, &mut self.arena, range, peer, received.congested) {
                PacketOutcome::Dropped(reason) => {
                    self.shared.dropped(self.counters, reason, self.inbound.icmp_reply.take())
                }
                _ => taken += 1,
            }
        }
        self.counters.add(Count::ReceivedDatagramBatches, 1);
        self.counters.add(Count::ReceivedPackets, taken);
        self.counters.add(Count::ReceivedBytes, received.length as u64);
        Ok(())
    }

    fn write(&mut self) -> Result<(), Errno> {
        if self.inbound.is_empty() {
            return Ok(());
        }
        for n in 0..self.inbound.groups() {
            let (header, slices) = self.inbound.group(n, &mut self.arena);
            let mut parts = [IoSlice::new(&[]); MOST_MERGED + 1];
            parts[0] = IoSlice::new(&header);
            let mut count = 1;
            for (part, range) in parts[1..].iter_mut().zip(slices) {
                *part = IoSlice::new(&self.arena[range.clone()]);
                count += 1;
            }
            match rustix::io::retry_on_intr(|| writev(&self.queue.device, &parts[..count])) {
                Ok(_) => {}
                Err(Errno::BADFD) => return Err(Errno::BADFD),
                Err(_) => self.counters.drop(DropReason::WriteFailed, count as u64 - 1),
            }
        }
        self.counters.add(Count::DeviceWrites, self.inbound.groups() as u64);
        self.inbound.clear();
        Ok(())
    }
}
