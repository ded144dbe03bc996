use proptest::prelude::*;

use super::*;
use crate::header::Header;
use crate::offload::OffloadWork;
use crate::segment::{MOST_HEADER, Segments};
use crate::testing::{Shape, packet};

/// Merges packets, then cuts what came out, as the kernel would.
fn through(packets: &[Vec<u8>], udp: bool) -> (usize, Vec<Vec<u8>>) {
    let mut arena = packets.concat();
    let mut merge = Merge::new(udp);
    let mut at = 0;
    for bytes in packets {
        let ip = Header::read(bytes).unwrap();
        merge.push(&arena, at..at + bytes.len(), &ip);
        at += bytes.len();
    }
    let mut out = Vec::new();
    let mut slices = Vec::new();
    for number in 0..merge.groups() {
        let offload = merge.finish(number, &mut arena, &mut slices);
        let dont_fragment: Vec<u8> = slices.iter().flat_map(|range| arena[range.clone()].to_vec()).collect();
        match OffloadWork::read(&offload) {
            OffloadWork::Nothing => out.push(dont_fragment),
            OffloadWork::Segments { transport, start, size } => {
                let ip = Header::read(&dont_fragment).unwrap();
                assert_eq!(ip.total, dont_fragment.len());
                let mut segments = Segments::new(&dont_fragment, &ip, transport, start, size).unwrap();
                let mut room = [0; MOST_HEADER];
                while let Some(range) = segments.next(&dont_fragment, &mut room) {
                    out.push([&room[..segments.headers()], &dont_fragment[range]].concat());
                }
            }
            other => panic!("{other:?}"),
        }
    }
    (merge.groups(), out)
}

fn stream(count: usize, size: usize, shape: &Shape) -> Vec<Vec<u8>> {
    (0..count)
        .map(|n| {
            let shape = Shape {
                sequence: shape.sequence.wrapping_add((n * size) as u32),
                id: shape.id.wrapping_add(n as u16),
                flags: 0x10,
                ..shape.clone()
            };
            packet(&shape, &vec![n as u8; size])
        })
        .collect()
}

#[test]
fn a_batch_of_one_stream_becomes_one_packet() {
    for (v4, tcp) in [(true, true), (true, false), (false, true), (false, false)] {
        let packets = stream(44, 1400, &Shape { v4, tcp, options: 3, ..Shape::default() });
        let (groups, out) = through(&packets, true);
        assert_eq!(groups, 1, "v4 {v4} tcp {tcp}");
        assert_eq!(out, packets);
    }
}

#[test]
fn udp_stays_apart_where_the_kernel_cannot_cut_it() {
    let packets = stream(5, 64, &Shape { tcp: false, ..Shape::default() });
    let (groups, out) = through(&packets, false);
    assert_eq!((groups, out), (5, packets));
}

#[test]
fn two_streams_that_alternate_become_two_packets() {
    let a = stream(20, 1000, &Shape { port: 1, ..Shape::default() });
    let b = stream(20, 1000, &Shape { port: 2, ..Shape::default() });
    let packets: Vec<_> = a.iter().zip(&b).flat_map(|(a, b)| [a.clone(), b.clone()]).collect();
    assert_eq!(through(&packets, true).0, 2);
}

#[test]
fn a_packet_with_a_wrong_checksum_is_handed_on_alone_and_as_it_is() {
    for spoilt in 0..3 {
        let mut packets = stream(3, 1000, &Shape::default());
        packets[spoilt][500] ^= 1;
        let (groups, out) = through(&packets, true);
        assert!(groups >= 2, "packet {spoilt}");
        assert_eq!(out, packets);
    }
    let mut packets = stream(3, 1000, &Shape::default());
    packets[1][10] ^= 1; // the IP header's own
    assert_eq!(through(&packets, true).1, packets);
}

#[test]
fn what_is_more_than_data_is_never_merged() {
    for flags in [0x02, 0x12, 0x11, 0x14, 0x30, 0x90, 0x00] {
        let packets: Vec<_> = (0..2u32)
            .map(|n| {
                let sequence = 100 + n * 500;
                packet(&Shape { flags, sequence, ..Shape::default() }, &[7; 500])
            })
            .collect();
        assert_eq!(through(&packets, true), (2, packets), "flags {flags:#x}");
    }
}

fn shape() -> impl Strategy<Value = (Shape, Vec<u8>)> {
    let fields = (
        any::<(bool, bool, bool)>(),
        0usize..2,
        1u8..3,
        1u16..3,
        0u32..6,
        0u32..2,
        prop::sample::select(vec![0x10u8, 0x10, 0x10, 0x18, 0x11, 0x50, 0x90]),
        0u16..4,
        63u8..65,
    );
    let size = prop::sample::select(vec![0usize, 50, 100, 100, 100]);
    (fields, size, any::<u8>()).prop_map(|(fields, size, fill)| {
        let ((v4, tcp, dont_fragment), options, source, port, step, acknowledged, flags, id, hops) = fields;
        let shape = Shape {
            v4,
            tcp,
            options,
            source,
            port,
            sequence: step * 100,
            acknowledged,
            flags,
            id,
            dont_fragment,
            hops,
        };
        (shape, vec![fill; size])
    })
}

/// The packets of one stream in their order, without what the kernel may number anew.
fn of_stream(packets: &[Vec<u8>], stream: &[u8]) -> Vec<Vec<u8>> {
    let mine = packets.iter().filter(|p| stream_of(p) == stream);
    mine.map(|p| {
        let mut p = p.clone();
        if p[0] >> 4 == 4 && p[6] & 0x40 != 0 {
            p[4..6].fill(0);
            p[10..12].fill(0);
        }
        p
    })
    .collect()
}

fn stream_of(packet: &[u8]) -> Vec<u8> {
    match packet[0] >> 4 {
        4 => [&packet[9..10], &packet[12..24]].concat(),
        _ => [&packet[6..7], &packet[8..44]].concat(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]
    /// No packet comes out that did not go in, none is lost, and none overtakes another of its stream.
    #[test]
    fn what_comes_out_is_what_went_in(shapes in prop::collection::vec((shape(), prop::option::weighted(0.05, 20usize..40)), 0..60)) {
        let packets: Vec<Vec<u8>> = shapes
            .iter()
            .map(|((shape, payload), spoilt)| {
                let mut bytes = packet(shape, payload);
                if let Some(at) = spoilt {
                    let last = bytes.len() - 1;
                    bytes[(*at).min(last).max(41.min(last))] ^= 0x55;
                }
                bytes
            })
            .collect();
        let (_, out) = through(&packets, true);
        prop_assert_eq!(out.len(), packets.len());
        for packet in &packets {
            let stream = stream_of(packet);
            prop_assert_eq!(of_stream(&out, &stream), of_stream(&packets, &stream));
        }
    }
}
