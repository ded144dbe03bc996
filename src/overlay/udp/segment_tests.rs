use proptest::prelude::*;

use super::*;
use crate::testing::{Shape, packet, transport_is_right};

fn cut(shape: &Shape, payload: &[u8], size: usize) -> Vec<Vec<u8>> {
    let whole = packet(shape, payload);
    let ip = Header::read(&whole).unwrap();
    let transport = if shape.tcp { Transport::Tcp } else { Transport::Udp };
    let mut segments = Segments::new(&whole, &ip, transport, ip.length, size).unwrap();
    let mut out = Vec::new();
    let mut room = [0; MOST_HEADER];
    while let Some(range) = segments.next(&whole, &mut room) {
        out.push([&room[..segments.headers()], &whole[range]].concat());
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn segments_are_the_payload_in_order_with_right_headers(
        v4: bool, tcp: bool, options in 0usize..4, payload in prop::collection::vec(any::<u8>(), 1..6000), size in 1usize..2000,
    ) {
        let shape = Shape { v4, tcp, options, ..Shape::default() };
        let segments = cut(&shape, &payload, size);
        prop_assert_eq!(segments.len(), payload.len().div_ceil(size));
        let mut joined = Vec::new();
        for (n, segment) in segments.iter().enumerate() {
            let ip = Header::read(segment).unwrap();
            prop_assert_eq!(ip.total, segment.len());
            prop_assert!(transport_is_right(segment));
            if tcp {
                let sequence = u32::from_be_bytes(segment[ip.length + 4..ip.length + 8].try_into().unwrap());
                prop_assert_eq!(sequence, shape.sequence.wrapping_add(joined.len() as u32));
                let flags = segment[ip.length + 13];
                prop_assert_eq!(flags & FIN_PSH, if n + 1 == segments.len() { shape.flags & FIN_PSH } else { 0 });
                prop_assert_eq!(flags & CWR, if n == 0 { shape.flags & CWR } else { 0 });
            }
            joined.extend_from_slice(&segment[ip.length + if tcp { 20 + 4 * options } else { 8 }..]);
        }
        prop_assert_eq!(joined, payload);
    }

    /// Whatever the kernel's offload header says, and whatever is in the packet: an error or segments, never more.
    #[test]
    fn nothing_that_a_device_says_leads_astray(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300), v4: bool, tcp: bool, start in 0usize..200, size in 0usize..70_000,
    ) {
        if let Some(first) = bytes.first_mut() {
            *first = if v4 { 0x45 } else { 0x60 };
        }
        if v4 && bytes.len() >= 4 {
            let total = (bytes.len() as u16).to_be_bytes();
            bytes[2..4].copy_from_slice(&total);
        }
        let Ok(ip) = Header::read(&bytes) else { return Ok(()) };
        let transport = if tcp { Transport::Tcp } else { Transport::Udp };
        let Ok(mut segments) = Segments::new(&bytes, &ip, transport, start, size) else { return Ok(()) };
        let mut room = [0; MOST_HEADER];
        let mut payload = 0;
        while let Some(range) = segments.next(&bytes, &mut room) {
            payload += range.len();
        }
        prop_assert_eq!(payload, ip.total - segments.headers());
        let _ = complete_checksum(&mut bytes, start, size);
    }
}

#[test]
fn a_checksum_that_the_kernel_began_is_finished() {
    let shape = Shape { tcp: false, ..Shape::default() };
    let mut bytes = packet(&shape, b"hello");
    let sum = checksum::fold(header::pseudo_sum(&bytes, UDP, 13));
    bytes[26..28].copy_from_slice(&sum);
    complete_checksum(&mut bytes, 20, 6).unwrap();
    assert!(transport_is_right(&bytes));
    assert_eq!(complete_checksum(&mut bytes, 20, 65_535), Err(DropReason::BadOffload));
}
