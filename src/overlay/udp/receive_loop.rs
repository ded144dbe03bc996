//! Receives from peers and writes to the device.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use keelson_netkit::IpNet;
use rustix::io::{Errno, writev};

use crate::counters::{Count, Reason, Tally};
use crate::gather::Round;
use crate::inbound::Inbound;
use crate::merge::MOST_MERGED;
use crate::outbound::Outcome;
use crate::peers::Table;
use crate::shared::{Handle, Queue};
use crate::sys::receive::{Receive, Received, SLOT};

/// How many datagrams, each perhaps many put together, one call receives.
const SLOTS: usize = 16;
/// The same when they are large: enough for one call to be worth it, and few enough to stay in the cache.
const LARGE_SLOTS: usize = 3;
/// From which average on datagrams are large.
const LARGE: usize = 16 * 1024;

pub struct ReceiveLoop<'a> {
    shared: &'a Handle,
    queue: &'a Queue,
    tally: &'a Tally,
    inbound: Inbound,
    receive: Receive,
    arena: Box<[u8]>,
    slots: usize,
}

impl<'a> ReceiveLoop<'a> {
    pub fn new(shared: &'a Handle, queue: &'a Queue, tally: &'a Tally, own: &[IpNet], udp: bool) -> Self {
        ReceiveLoop {
            shared,
            queue,
            tally,
            inbound: Inbound::new(own, udp),
            receive: Receive::new(SLOTS),
            arena: vec![0; SLOTS * SLOT].into(),
            slots: SLOTS,
        }
    }

    /// Receives once and writes it all. An error means that the device or the socket is gone.
    pub fn batch(&mut self, socket: BorrowedFd<'_>) -> Result<Round, Errno> {
        let count = match self.receive.receive(socket, &mut self.arena, self.slots) {
            Ok(count) => count,
            Err(error) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                // Errors of datagrams that were sent are told to whoever reads, once each.
                self.shared.note_refusals(socket, &self.shared.peers.load());
                return match errno {
                    Errno::BADF | Errno::NOTSOCK => Err(errno),
                    _ => Ok(Round::default()),
                };
            }
        };
        self.tally.add(Count::ReceiveCalls, 1);
        let table = self.shared.peers.load();
        self.inbound.begin();
        let mut round = Round::default();
        for slot in 0..count {
            let received = self.receive.get(slot);
            let packets = received.length.div_ceil(received.size).max(1);
            round += Round { packets, bytes: received.length };
            self.take(&table, slot, received, packets)?;
        }
        self.write()?;
        self.slots = if round.bytes > LARGE * count { LARGE_SLOTS } else { SLOTS };
        Ok(round)
    }

    fn take(&mut self, table: &Table, slot: usize, received: Received, packets: usize) -> Result<(), Errno> {
        let from = received.from.and_then(|from| table.find_endpoint(from));
        let Some((peer, entry)) = from.and_then(|peer| Some((peer, table.entry(peer)?))) else {
            self.tally.drop(Reason::UnknownPeer, packets as u64);
            return Ok(());
        };
        if received.truncated {
            self.tally.drop(Reason::Truncated, packets as u64);
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
                Outcome::Dropped(reason) => self.shared.dropped(self.tally, reason, self.inbound.told.take()),
                _ => taken += 1,
            }
        }
        self.tally.add(Count::ReceivedDatagramBatches, 1);
        self.tally.add(Count::ReceivedPackets, taken);
        self.tally.add(Count::ReceivedBytes, received.length as u64);
        entry.state.count_received(taken, received.length as u64);
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
                Err(_) => self.tally.drop(Reason::WriteFailed, count as u64 - 1),
            }
        }
        self.tally.add(Count::DeviceWrites, self.inbound.groups() as u64);
        self.inbound.clear();
        Ok(())
    }
}
