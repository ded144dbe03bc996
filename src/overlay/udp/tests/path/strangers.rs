//! Only packets of peers from their own subnets are accepted. Everything else is dropped, counted, and does no harm.

use std::net::SocketAddr;

use keelson_overlay_udp::{Count, DropReason, Path};

use crate::needs_rig;
use crate::rig::{World, eventually, receive};

/// A UDP packet between two addresses, without a checksum, which IPv4 allows.
fn inner(source: [u8; 4], destination: [u8; 4], port: u16, payload: &[u8]) -> Vec<u8> {
    let total = 28 + payload.len() as u16;
    let mut bytes = vec![0x45, 0];
    bytes.extend(total.to_be_bytes());
    bytes.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    bytes.extend(source);
    bytes.extend(destination);
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = !(((sum >> 16) + (sum & 0xffff)) as u16);
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend([0x30, 0x39]);
    bytes.extend(port.to_be_bytes());
    bytes.extend((8 + payload.len() as u16).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(payload);
    bytes
}

fn counts(path: &Path, reason: DropReason, so_many: u64) {
    eventually(&format!("{so_many} dropped as {reason:?}"), || path.counters().dropped(reason) >= so_many);
    assert_eq!(path.counters().dropped(reason), so_many);
}

#[test]
fn what_does_not_come_from_a_peer_is_dropped_and_counted() {
    needs_rig!();
    // Host 2 runs the path. Host 1 is its peer, played by a bare socket; host 3 is nobody.
    let world = World::new(3);
    let (a, b, c) = (&world.hosts[0], &world.hosts[1], &world.hosts[2]);
    let path = b.start(false);
    path.peers().set(a.peer(false));
    let to = b.endpoint(false);
    let peer = a.netns.udp(&a.endpoint(false).to_string());
    let far = b.pod.udp("0.0.0.0:0");
    let port = far.local_addr().unwrap().port();
    let good = |payload: &[u8]| inner([10, 1, 1, 2], [10, 1, 2, 2], port, payload);

    // The same bytes from another host, and from another port of the right host.
    c.netns.udp(&c.endpoint(false).to_string()).send_to(&good(b"stranger"), to).unwrap();
    counts(&path, DropReason::UnknownPeer, 1);
    a.netns.udp("0.0.0.0:0").send_to(&good(b"other port"), to).unwrap();
    counts(&path, DropReason::UnknownPeer, 2);

    // From the peer, but in somebody else's name, or for somebody else.
    peer.send_to(&inner([10, 1, 3, 2], [10, 1, 2, 2], port, b"spoofed"), to).unwrap();
    peer.send_to(&inner([10, 1, 2, 9], [10, 1, 2, 2], port, b"spoofed as ours"), to).unwrap();
    counts(&path, DropReason::ForeignSource, 2);
    peer.send_to(&inner([10, 1, 1, 2], [10, 1, 3, 2], port, b"in transit"), to).unwrap();
    counts(&path, DropReason::ForeignDestination, 1);

    // No packets at all, or other lengths than they say.
    peer.send_to(b"", to).unwrap();
    peer.send_to(&good(b"cut off")[..30], to).unwrap();
    counts(&path, DropReason::Truncated, 2);
    peer.send_to(&[good(b"x"), vec![0; 5]].concat(), to).unwrap();
    counts(&path, DropReason::Oversized, 1);
    peer.send_to(b"\x16\x03\x01 hello", to).unwrap();
    peer.send_to(&[0x41; 60], to).unwrap();
    counts(&path, DropReason::NotIp, 2);
    let mut last_hop = good(b"looping");
    last_hop[8] = 1;
    peer.send_to(&last_hop, to).unwrap();
    counts(&path, DropReason::HopsExceeded, 1);

    // After all that the path still carries, and nothing of it has arrived.
    peer.send_to(&good(b"hello"), to).unwrap();
    let mut bytes = [0; 100];
    let (got, from) = receive(&far, &mut bytes);
    assert_eq!(&bytes[..got], b"hello");
    assert_eq!(from, SocketAddr::from(([10, 1, 1, 2], 12345)));
}

/// Noise from a peer that went mad: nothing of it gets in, memory does not grow, and the path still carries.
#[test]
fn noise_from_a_peer_does_no_harm() {
    needs_rig!();
    let world = World::new(2);
    let (a, b) = (&world.hosts[0], &world.hosts[1]);
    let path = b.start(false);
    path.peers().set(a.peer(false));
    let peer = a.netns.udp(&a.endpoint(false).to_string());
    let to = b.endpoint(false);
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state >> 33
    };
    let begun = path.counters().of(Count::ReceivedDatagramBatches);
    for n in 0..20_000u64 {
        let mut bytes: Vec<u8> = (0..random() % 300).map(|_| random() as u8).collect();
        // Most look a little like what is expected, so that they get further in.
        if n % 4 != 0 && bytes.len() > 40 {
            let total = (bytes.len() as u16).to_be_bytes();
            bytes[0] = 0x45;
            bytes[2..4].copy_from_slice(&total);
            bytes[12..20].copy_from_slice(&[10, 1, 1, 2, 10, 1, 2, 99]);
            bytes[9] = [6, 17, 1, 99][n as usize % 4];
        }
        peer.send_to(&bytes, to).unwrap();
    }
    eventually("the noise is seen", || path.counters().of(Count::ReceivedDatagramBatches) > begun);
    let far = b.pod.udp("0.0.0.0:0");
    let port = far.local_addr().unwrap().port();
    let good = inner([10, 1, 1, 2], [10, 1, 2, 2], port, b"still here?");
    far.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
    let mut bytes = [0; 100];
    // The socket may be full of noise still, so it may take more than one.
    eventually("the path carries again", || {
        peer.send_to(&good, to).unwrap();
        far.recv(&mut bytes).is_ok_and(|got| &bytes[..got] == b"still here?")
    });
    assert_eq!(path.failure(), None);
}
