//! Reads from the device and sends to peers.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, read};

use crate::batching::BatchSize;
use crate::counters::{Count, DropReason, ThreadCounters};
use crate::outbound::{Outbound, PacketOutcome};
use crate::outgoing::{OutgoingMessage, Slices};
use crate::path_shared::{PathHandle, Queue};
use crate::peers::PeerTable;
use crate::socket;
use crate::sys::send::{DatagramBatch, DatagramSender};

pub struct SendLoop<'a> {
    shared: &'a PathHandle,
    queue: &'a Queue,
    counters: &'a ThreadCounters,
    outbound: Outbound,
    send: DatagramSender,
}

/// The kernel's errors when a large message is more than the device or the path can take.
const NOT_IN_ONE: [i32; 3] = [libc::EIO, libc::EINVAL, libc::EMSGSIZE];
/// Errors that are about some earlier datagram: the one at hand has not been tried.
const ABOUT_ANOTHER: [i32; 4] = [libc::ECONNREFUSED, libc::EMSGSIZE, libc::EHOSTUNREACH, libc::ENETUNREACH];

impl<'a> SendLoop<'a> {
    pub fn new(shared: &'a PathHandle, queue: &'a Queue, counters: &'a ThreadCounters) -> Self {
        SendLoop { shared, queue, counters, outbound: Outbound::new(), send: DatagramSender::default() }
    }

    /// Reads until there is nothing more or no more room, and sends it all. An error means that the device is gone.
    pub fn batch(&mut self) -> Result<BatchSize, Errno> {
        let mut table = None;
        let mut second = 0;
        let mut round = BatchSize::default();
        while let Some(room) = self.outbound.room() {
            let length = match read(&self.queue.device, room) {
                Ok(length) => length,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            };
            round += BatchSize { packets: 1, bytes: length };
            let table = &*table.get_or_insert_with(|| {
                let table = self.shared.peers.load();
                self.outbound.begin(&table);
                second = self.shared.second();
                table
            });
            let mut outcome = self.outbound.accept(table, length, second);
            while outcome == PacketOutcome::Unfinished {
                self.flush(table);
                outcome = self.outbound.resume();
            }
            if let PacketOutcome::Dropped(reason) = outcome {
                self.shared.dropped(self.counters, reason, self.outbound.icmp_reply.take());
            }
        }
        self.counters.add(Count::DeviceReads, round.packets as u64);
        if let Some(table) = table {
            self.flush(&table);
        }
        Ok(round)
    }

    fn flush(&mut self, table: &PeerTable) {
        if !self.outbound.is_empty() {
            let (arena, messages, slices) = self.outbound.pack();
            let batch = SendBatch {
                shared: self.shared,
                queue: self.queue,
                counters: self.counters,
                table,
                arena,
                slices,
            };
            batch.send_all(&mut self.send, messages);
        }
        self.outbound.clear();
    }
}

/// Messages that are ready to go out.
struct SendBatch<'a> {
    shared: &'a PathHandle,
    queue: &'a Queue,
    counters: &'a ThreadCounters,
    table: &'a PeerTable,
    arena: &'a [u8],
    slices: &'a [Slices],
}

impl SendBatch<'_> {
    fn send_all(&self, send: &mut DatagramSender, messages: &[OutgoingMessage]) {
        let mut at = 0;
        while at < messages.len() {
            // A run of messages by the same socket; nearly always that is all of them.
            let v4 = self.is_v4(&messages[at]);
            let run = messages[at..].iter().take_while(|m| self.is_v4(m) == v4).count();
            self.send_run(send, &messages[at..at + run]);
            at += run;
        }
    }

    fn is_v4(&self, message: &OutgoingMessage) -> bool {
        self.table.entry(message.peer).is_none_or(|entry| entry.endpoint.is_ipv4())
    }

    fn send_run(&self, send: &mut DatagramSender, messages: &[OutgoingMessage]) {
        let socket = messages.first().and_then(|m| self.table.entry(m.peer)).map(|entry| entry.endpoint);
        let Some(socket) = socket.and_then(|endpoint| self.queue.socket(endpoint)) else {
            return messages
                .iter()
                .for_each(|m| self.counters.drop(DropReason::SendFailed, m.slices.len() as u64));
        };
        let (mut at, mut tries) = (0, 0);
        while at < messages.len() {
            self.counters.add(Count::SendCalls, 1);
            let rest = &messages[at..];
            let error = match send.send(socket, self.arena, rest.iter().filter_map(|m| self.whole(m))) {
                Ok(sent) => {
                    rest.iter().take(sent).for_each(|m| self.count(m.slices.len(), m.bytes));
                    at += sent.max(1);
                    tries = 0;
                    continue;
                }
                Err(error) => error.raw_os_error().unwrap_or_default(),
            };
            if error == libc::EINTR {
                continue;
            }
            if ABOUT_ANOTHER.contains(&error) {
                self.shared.read_errors(socket, self.table);
            }
            tries += 1;
            if tries < 2 && ABOUT_ANOTHER.contains(&error) {
                continue;
            }
            if NOT_IN_ONE.contains(&error) && rest[0].slices.len() > 1 {
                self.send_singly(send, &rest[0], socket, error);
            } else {
                self.counters.drop(DropReason::SendFailed, rest[0].slices.len() as u64);
            }
            at += 1;
            tries = 0;
        }
    }

    /// Sends each packet of a message by itself, which the kernel may do in fragments.
    fn send_singly(
        &self,
        send: &mut DatagramSender,
        message: &OutgoingMessage,
        socket: BorrowedFd<'_>,
        error: i32,
    ) {
        let Some(entry) = self.table.entry(message.peer) else { return };
        if error == libc::EIO {
            // Older kernels cut nothing for an interface that leaves checksums to them.
            entry.state.send_singly(self.shared.second());
        } else if let Ok(mtu) = socket::route_mtu(entry.endpoint) {
            // Most likely the path's MTU is smaller than the device's. Then senders should get an ICMP error.
            let inner = mtu.saturating_sub(socket::overhead(entry.endpoint));
            if inner > 0 && (inner as usize) < message.size {
                entry.state.learn_path_mtu(inner, self.shared.second());
            }
        }
        let slices = &self.slices[message.slices.clone()];
        let mut at = 0;
        while at < slices.len() {
            let singles = slices[at..].iter().map(|s| (entry.endpoint, 0, std::slice::from_ref(s)));
            self.counters.add(Count::SendCalls, 1);
            match send.send(socket, self.arena, singles) {
                Ok(sent) => {
                    let sent = sent.max(1).min(slices.len() - at);
                    let bytes = slices[at..at + sent].iter().map(Slices::len).sum();
                    self.count(sent, bytes);
                    at += sent;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.counters.drop(DropReason::SendFailed, 1);
                    at += 1;
                }
            }
        }
    }

    fn whole(&self, message: &OutgoingMessage) -> Option<DatagramBatch<'_>> {
        let slices = self.slices.get(message.slices.clone())?;
        let size = if slices.len() > 1 { message.size as u16 } else { 0 };
        Some((self.table.entry(message.peer)?.endpoint, size, slices))
    }

    fn count(&self, packets: usize, bytes: usize) {
        self.counters.add(Count::SentDatagramBatches, 1);
        self.counters.add(Count::SentPackets, packets as u64);
        self.counters.add(Count::SentBytes, bytes as u64);
    }
}
