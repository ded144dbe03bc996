//! Pods reach each other: small and large, both families inside and outside, and what arrives is what was sent.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use keelson_overlay_udp::{Count, Path};

use crate::needs_rig;
use crate::rig::{Host, World, receive};

/// Bytes that tell where they belong, so that any mix-up shows.
fn pattern(length: usize, seed: u32) -> Vec<u8> {
    let mut state = seed;
    let next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

fn dropped(path: &Path) -> Vec<(&'static str, u64)> {
    path.counters().rows().filter(|(name, value)| name.starts_with("dropped") && *value > 0).collect()
}

fn echo(from: &Host, to: &Host, v6: bool) {
    let any = if v6 { "[::]:0" } else { "0.0.0.0:0" };
    let (near, far) = (from.pod.udp(any), to.pod.udp(any));
    let target = SocketAddr::new(to.pod_address(v6), far.local_addr().unwrap().port());
    for length in [0usize, 1, 64, 1000, 1400] {
        let sent = pattern(length, 7);
        near.send_to(&sent, target).unwrap();
        let mut bytes = [0; 2000];
        let (got, back) = receive(&far, &mut bytes);
        assert_eq!(bytes[..got], sent);
        assert_eq!(back.ip(), from.pod_address(v6));
        far.send_to(&bytes[..got], back).unwrap();
        let (got, _) = receive(&near, &mut bytes);
        assert_eq!(bytes[..got], sent);
    }
}

fn receive_all(listener: &TcpListener) -> Vec<u8> {
    let mut bytes = Vec::new();
    listener.accept().unwrap().0.read_to_end(&mut bytes).unwrap();
    bytes
}

fn stream(from: &Host, to: &Host, v6: bool, length: usize) {
    let listener = to.pod.listen(if v6 { "[::]:0" } else { "0.0.0.0:0" });
    let target = SocketAddr::new(to.pod_address(v6), listener.local_addr().unwrap().port());
    let sent = pattern(length, 11);
    let mut stream = from.pod.connect(target);
    let got = thread::scope(|scope| {
        let receiver = scope.spawn(|| receive_all(&listener));
        stream.write_all(&sent).unwrap();
        drop(stream);
        receiver.join().unwrap()
    });
    assert!(got == sent, "{} bytes arrived of {}, or others", got.len(), sent.len());
}

fn all_pairs(outer_v6: bool) {
    let world = World::new(3);
    let paths = world.start(outer_v6);
    for from in &world.hosts {
        for to in world.hosts.iter().filter(|to| to.number != from.number) {
            for v6 in [false, true] {
                echo(from, to, v6);
            }
        }
    }
    let (a, b) = (&world.hosts[0], &world.hosts[1]);
    for v6 in [false, true] {
        stream(a, b, v6, 16 << 20);
        stream(b, a, v6, 3 << 20);
    }
    for path in &paths {
        // A device sends some multicast of its own, which has no peer to go to.
        let wrong: Vec<_> =
            dropped(path).into_iter().filter(|(name, _)| *name != "dropped_no_route").collect();
        assert_eq!(wrong, [], "over {}", if outer_v6 { "IPv6" } else { "IPv4" });
    }
    // Large packets stayed large: far fewer were read and written than were sent and received.
    let (out, into) = (paths[0].counters(), paths[1].counters());
    assert!(out.of(Count::DeviceReads) * 2 < out.of(Count::SentPackets), "{out:?}");
    assert!(into.of(Count::DeviceWrites) * 2 < into.of(Count::ReceivedPackets), "{into:?}");
}

#[test]
fn all_pairs_reach_each_other_over_ipv4() {
    needs_rig!();
    all_pairs(false);
}

#[test]
fn all_pairs_reach_each_other_over_ipv6() {
    needs_rig!();
    all_pairs(true);
}

/// Datagrams of one size in a row are merged on the way; their borders and their order stay.
#[test]
fn datagrams_keep_their_borders_and_their_order() {
    needs_rig!();
    let world = World::new(2);
    let _paths = world.start(false);
    for v6 in [false, true] {
        let any = if v6 { "[::]:0" } else { "0.0.0.0:0" };
        let near = world.hosts[0].pod.udp(any);
        let far = world.hosts[1].pod.udp(any);
        let target = SocketAddr::new(world.hosts[1].pod_address(v6), far.local_addr().unwrap().port());
        for round in 0..20u32 {
            for n in 0..100u32 {
                let length = if n % 10 == 9 { 30 } else { 64 };
                let mut bytes = pattern(length, n);
                bytes[..4].copy_from_slice(&(round * 100 + n).to_be_bytes());
                near.send_to(&bytes, target).unwrap();
            }
            for n in 0..100u32 {
                let mut bytes = [0; 100];
                let (got, _) = receive(&far, &mut bytes);
                assert_eq!(bytes[..4], (round * 100 + n).to_be_bytes());
                assert_eq!(bytes[4..got], pattern(if n % 10 == 9 { 30 } else { 64 }, n)[4..]);
            }
        }
    }
}
