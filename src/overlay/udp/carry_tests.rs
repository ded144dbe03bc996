//! Both halves of the path without the kernel: whatever is read, at most what came in goes out, and nothing allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};

use keelson_kit::cidr::{IpNetwork, with_length};
use proptest::prelude::*;

use crate::header::Header;
use crate::inbound::Inbound;
use crate::offload::{self, OffloadWork, Transport};
use crate::outbound::{Outbound, PacketOutcome};
use crate::outgoing::Slices;
use crate::peers::{Peer, PeerTable, Peers};
use crate::segment::{MOST_HEADER, Segments};
use crate::testing::{Shape, packet, transport_is_right};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts what the calling thread allocates.
struct Counting;

#[allow(unsafe_code)] // An allocator is unsafe to write; this one hands everything on.
// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps alloc's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps dealloc's contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    work();
    ALLOCATIONS.with(Cell::get) - before
}

/// Peer 1 holds 10.1.1.0/24 and fd00:1::/64, peer 2 the same with 2.
fn peers() -> Peers {
    let peers = Peers::default();
    for n in 1..=2u8 {
        let nets = [with_length(IpAddr::from([10, 1, n, 0]), 24), format!("fd00:{n}::/64").parse().unwrap()];
        peers.set(Peer { endpoint: SocketAddr::from(([192, 0, 2, n], 8285)), subnets: nets.to_vec() });
    }
    peers
}

/// Reads one packet, with its offload header, and returns the datagrams that go out.
fn send(
    outbound: &mut Outbound,
    table: &PeerTable,
    read: &[u8],
    out: &mut Vec<(u32, Vec<u8>)>,
) -> PacketOutcome {
    outbound.begin(table);
    let room = outbound.room().unwrap();
    room[..read.len()].copy_from_slice(read);
    let mut outcome = outbound.accept(table, read.len(), 0);
    loop {
        let (arena, messages, slices) = outbound.pack();
        for message in messages {
            for Slices { head, tail } in &slices[message.slices.clone()] {
                let bytes = |(at, length): (u32, u32)| &arena[at as usize..(at + length) as usize];
                out.push((message.peer, [bytes(*head), bytes(*tail)].concat()));
            }
        }
        outbound.clear();
        if outcome != PacketOutcome::Unfinished {
            return outcome;
        }
        outcome = outbound.resume();
    }
}

/// Takes datagrams from one peer, and returns the packets that the kernel would see.
fn receive(inbound: &mut Inbound, table: &PeerTable, datagrams: &[Vec<u8>], congested: bool) -> Vec<Vec<u8>> {
    let mut arena = datagrams.concat();
    inbound.begin();
    let mut at = 0;
    for bytes in datagrams {
        inbound.accept(table, &mut arena, at..at + bytes.len(), 0, congested);
        at += bytes.len();
    }
    let mut out = Vec::new();
    for n in 0..inbound.groups() {
        let (header, slices) = inbound.group(n, &mut arena);
        let slices = slices.to_vec();
        let whole: Vec<u8> = slices.iter().flat_map(|range| arena[range.clone()].to_vec()).collect();
        if let OffloadWork::Segments { transport, start, size } = OffloadWork::read(&header) {
            let ip = Header::read(&whole).unwrap();
            let mut segments = Segments::new(&whole, &ip, transport, start, size).unwrap();
            let mut room = [0; MOST_HEADER];
            while let Some(range) = segments.next(&whole, &mut room) {
                out.push([&room[..segments.headers()], &whole[range]].concat());
            }
        } else {
            out.push(whole);
        }
    }
    inbound.clear();
    out
}

fn with_header(header: [u8; offload::LENGTH], packet: &[u8]) -> Vec<u8> {
    [&header, packet].concat()
}

/// Any bytes; half of them made to look like a packet between the two peers.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    (prop::collection::vec(any::<u8>(), 0..400), any::<bool>(), any::<bool>(), 0u8..4).prop_map(
        |(mut bytes, alike, v4, kind)| {
            let total = bytes.len() as u16;
            if alike && bytes.len() >= 40 {
                let protocol = [6, 17, 1, 58][usize::from(kind)];
                if v4 {
                    bytes[0] = 0x45;
                    bytes[2..4].copy_from_slice(&total.to_be_bytes());
                    bytes[6] &= 0x40;
                    bytes[9] = protocol;
                    bytes[12..20].copy_from_slice(&[10, 1, 1, 2, 10, 1, 2, 2]);
                } else {
                    bytes[0] = 0x60;
                    bytes[4..6].copy_from_slice(&(total - 40).to_be_bytes());
                    bytes[6] = protocol;
                    bytes[8..24].copy_from_slice(&[0xfd, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
                    bytes[24..40].copy_from_slice(&[0xfd, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
                }
            }
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1000, ..ProptestConfig::default() })]
    #[test]
    fn whatever_the_device_hands_over_goes_out_or_is_dropped(header: [u8; offload::LENGTH], plain: bool, bytes in bytes()) {
        let peers = peers();
        let table = peers.load();
        let header = if plain { offload::PLAIN } else { header };
        let mut out = Vec::new();
        let outcome = send(&mut Outbound::new(), &table, &with_header(header, &bytes), &mut out);
        match outcome {
            PacketOutcome::Dropped(_) => prop_assert!(out.is_empty()),
            _ => {
                let ip = Header::read(&bytes).unwrap();
                prop_assert!(!out.is_empty());
                for (peer, datagram) in &out {
                    prop_assert_eq!(table.find(ip.destination), Some(*peer));
                    let sent = Header::read(datagram).unwrap();
                    prop_assert_eq!((sent.source, sent.destination, sent.hops), (ip.source, ip.destination, ip.hops - 1));
                    prop_assert_eq!(sent.total, datagram.len());
                }
            }
        }
    }

    #[test]
    fn whatever_a_peer_sends_comes_in_as_it_was_or_not_at_all(datagrams in prop::collection::vec(bytes(), 0..30), congested: bool) {
        let peers = peers();
        let table = peers.load();
        let own: IpNetwork = "10.1.2.0/24".parse().unwrap();
        let mut inbound = Inbound::new(&[own, "fd00:2::/64".parse().unwrap()], true);
        let out = receive(&mut inbound, &table, &datagrams, congested);
        // All that may differ: a hop, the congestion mark, and numbers that whole packets do not need.
        let stripped = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            if bytes[0] >> 4 == 4 {
                bytes[1] &= !3;
                bytes[8] = 0;
                bytes[10..12].fill(0);
                if bytes[6] & 0x40 != 0 {
                    bytes[4..6].fill(0);
                }
            } else {
                bytes[1] &= !0x30;
                bytes[7] = 0;
            }
            bytes
        };
        let came: Vec<_> = datagrams.iter().filter(|d| Header::read(d).is_ok()).map(|d| stripped(d)).collect();
        for packet in &out {
            let ip = Header::read(packet).unwrap();
            prop_assert_eq!(table.find(ip.source), Some(0));
            prop_assert!(came.contains(&stripped(packet)));
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 100, ..ProptestConfig::default() })]
    #[test]
    fn a_large_packet_crosses_both_ends_and_is_the_same(
        v4: bool, tcp: bool, length in 1usize..60_000, size in 200usize..1400, fill: u8,
    ) {
        let peers = peers();
        let table = peers.load();
        let whole = packet(&Shape { v4, tcp, options: 3, flags: 0x10, ..Shape::default() }, &vec![fill; length]);
        let start = if v4 { 20 } else { 40 };
        let transport = if tcp { Transport::Tcp } else { Transport::Udp };
        let header = offload::merged(transport, v4, start, 0, size);
        let mut out = Vec::new();
        prop_assert_eq!(send(&mut Outbound::new(), &table, &with_header(header, &whole), &mut out), PacketOutcome::Taken);
        prop_assert!(out.iter().all(|(peer, datagram)| *peer == 1 && transport_is_right(datagram)));
        let datagrams: Vec<Vec<u8>> = out.into_iter().map(|(_, datagram)| datagram).collect();
        prop_assert_eq!(datagrams.len(), length.div_ceil(size));
        let mut inbound = Inbound::new(&[], true);
        let mut came = Vec::new();
        for batch in datagrams.chunks(500) {
            came.extend(receive(&mut inbound, &table, batch, false));
        }
        let headers = start + if tcp { 32 } else { 8 };
        let payload: Vec<u8> = came.iter().flat_map(|p| p[headers..].to_vec()).collect();
        prop_assert_eq!(payload, vec![fill; length]);
        prop_assert!(came.iter().all(|p| transport_is_right(p) && Header::read(p).unwrap().hops == 62));
    }
}

/// After the first batch has made room, neither half allocates, whatever it is fed.
#[test]
fn no_packet_allocates() {
    let peers = peers();
    let table = peers.load();
    let mut outbound = Outbound::new();
    let mut inbound = Inbound::new(&[], true);
    let whole = packet(&Shape { flags: 0x10, ..Shape::default() }, &[7; 60_000]);
    let large = with_header(offload::merged(Transport::Tcp, true, 20, 0, 1400), &whole);
    let small = with_header(offload::PLAIN, &packet(&Shape { tcp: false, ..Shape::default() }, &[1; 64]));
    let lost = with_header(offload::PLAIN, &packet(&Shape { hops: 1, ..Shape::default() }, &[1; 64]));
    let mut arena = packet(&Shape::default(), &[7; 1000]).repeat(40);
    let length = arena.len() / 40;
    let mut round = || {
        outbound.begin(&table);
        for read in [&large, &small, &lost, &small, &large] {
            let room = outbound.room().unwrap();
            room[..read.len()].copy_from_slice(read);
            outbound.accept(&table, read.len(), 0);
        }
        assert!(!outbound.pack().1.is_empty());
        outbound.clear();
        inbound.begin();
        for n in 0..40 {
            inbound.accept(&table, &mut arena, n * length..(n + 1) * length, 0, false);
        }
        for n in 0..inbound.groups() {
            inbound.group(n, &mut arena);
        }
        inbound.clear();
    };
    round();
    assert_eq!(allocations(|| (0..50).for_each(|_| round())), 0);
}

/// A packet of the smallest segments fills every list many times over, and still comes out whole.
#[test]
fn a_packet_of_very_many_segments_is_sent_in_turns() {
    let peers = peers();
    let table = peers.load();
    let whole = packet(&Shape::default(), &vec![5; 60_000]);
    let read = with_header(offload::merged(Transport::Tcp, true, 20, 0, 1), &whole);
    let mut out = Vec::new();
    assert_eq!(send(&mut Outbound::new(), &table, &read, &mut out), PacketOutcome::Taken);
    assert_eq!(out.len(), 60_000);
    assert!(out.iter().all(|(_, datagram)| datagram.len() == 41));
}
