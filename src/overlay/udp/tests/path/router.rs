//! The path behaves as a router: hops are counted, and senders get ICMP errors for dropped packets.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::thread;

use keelson_overlay_udp::DropReason;
use rustix::net::sockopt;

use crate::needs_rig;
use crate::rig::icmp::Listener;
use crate::rig::{World, eventually, receive};

#[test]
fn each_end_counts_a_hop_and_tells_when_it_was_the_last() {
    needs_rig!();
    let world = World::new(2);
    let paths = world.start(false);
    let (a, b) = (&world.hosts[0], &world.hosts[1]);
    for v6 in [false, true] {
        let listener = Listener::new(&a.pod, v6);
        let socket = a.pod.udp(if v6 { "[::]:0" } else { "0.0.0.0:0" });
        let target = SocketAddr::new(b.pod_address(v6), 33_434);
        // The host's own forwarding takes the first hop, the two ends of the path the second and the third.
        let kind = if v6 { (3, 0) } else { (11, 0) };
        for (hops, sender) in [(2u8, a), (3, b)] {
            if v6 {
                sockopt::set_ipv6_unicast_hops(&socket, Some(hops)).unwrap();
            } else {
                socket.set_ttl(hops.into()).unwrap();
            }
            socket.send_to(b"where does this end?", target).unwrap();
            let message = listener.expect(kind);
            let own = sender.subnets().into_iter().any(|net| net.contains(message.from));
            assert!(own, "hops {hops}: {} answered, not host {}", message.from, sender.number);
            assert!(message.quoted.ends_with(b"where does this end?"));
        }
    }
    assert!(paths.iter().all(|path| path.counters().dropped(DropReason::HopsExceeded) == 2));
}

#[test]
fn a_destination_that_no_peer_holds_is_unreachable() {
    needs_rig!();
    let world = World::new(1);
    let paths = world.start(false);
    let a = &world.hosts[0];
    for (v6, target, kind) in [(false, "10.1.77.7:9", (3, 0)), (true, "[fd00:1:77::7]:9", (1, 0))] {
        let listener = Listener::new(&a.pod, v6);
        a.pod.udp(if v6 { "[::]:0" } else { "0.0.0.0:0" }).send_to(b"anyone?", target).unwrap();
        assert!(listener.expect(kind).quoted.ends_with(b"anyone?"));
    }
    assert!(paths[0].counters().dropped(DropReason::NoRoute) >= 2);
}

/// A link on the way has a smaller MTU than the hosts' own: the outer datagrams' sender learns it from the router, and
/// reports it to the pods.
#[test]
fn a_smaller_path_mtu_is_found_and_reported() {
    needs_rig!();
    let world = World::new(2);
    let paths = world.start(false);
    let (a, b) = (&world.hosts[0], &world.hosts[1]);
    world.router.ip(&["link set h2 mtu 1300"]);
    b.netns.ip(&["link set eth0 mtu 1300"]);
    let target = SocketAddr::new(b.pod_address(false), 9);
    let listener = Listener::new(&a.pod, false);
    let socket = a.pod.udp("0.0.0.0:0");
    // The first packet is lost and only informs the host; those that follow are refused at the device.
    eventually("the path MTU is learned", || {
        socket.send_to(&[7; 1300], target).ok();
        paths[0].counters().dropped(DropReason::TooBig) > 0
    });
    let message = loop {
        socket.send_to(&[7; 1300], target).ok();
        let message = listener.expect((3, 4));
        if message.word != 0 {
            break message;
        }
    };
    assert_eq!(message.word, 1272);

    // What may be split arrives, split outside and whole again inside.
    let far = b.pod.udp("0.0.0.0:0");
    let target = SocketAddr::new(b.pod_address(false), far.local_addr().unwrap().port());
    let split = a.pod.udp("0.0.0.0:0");
    set_dont_fragment(split.as_fd(), false);
    split.send_to(&[9; 1400], target).unwrap();
    let mut bytes = [0; 2000];
    assert_eq!(receive(&far, &mut bytes).0, 1400);

    // A stream gets through, because its sender follows the ICMP errors.
    let listener = b.pod.listen("0.0.0.0:0");
    let target = SocketAddr::new(b.pod_address(false), listener.local_addr().unwrap().port());
    let mut stream = a.pod.connect(target);
    let received = thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut bytes = Vec::new();
            listener.accept().unwrap().0.read_to_end(&mut bytes).unwrap();
            bytes.len()
        });
        stream.write_all(&vec![1; 4 << 20]).unwrap();
        drop(stream);
        receiver.join().unwrap()
    });
    assert_eq!(received, 4 << 20);
}

/// The host's own link has a smaller MTU than the device: large messages cannot be cut, and still arrive.
#[test]
fn a_device_with_too_large_an_mtu_still_carries() {
    needs_rig!();
    let world = World::new(2);
    let _paths = world.start(false);
    let (a, b) = (&world.hosts[0], &world.hosts[1]);
    for host in [a, b] {
        host.netns.ip(&["link set eth0 mtu 1300"]);
    }
    world.router.ip(&["link set h1 mtu 1300", "link set h2 mtu 1300"]);
    let icmp = Listener::new(&a.pod, false);
    let listener = b.pod.listen("0.0.0.0:0");
    let target = SocketAddr::new(b.pod_address(false), listener.local_addr().unwrap().port());
    let mut stream = a.pod.connect(target);
    let received = thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut bytes = Vec::new();
            listener.accept().unwrap().0.read_to_end(&mut bytes).unwrap();
            bytes.len()
        });
        stream.write_all(&vec![1; 4 << 20]).unwrap();
        drop(stream);
        receiver.join().unwrap()
    });
    assert_eq!(received, 4 << 20);
    assert_eq!(icmp.expect((3, 4)).word, 1272, "the sender gets the path MTU");
}

fn set_dont_fragment(fd: std::os::fd::BorrowedFd<'_>, on: bool) {
    let value = if on { libc::IP_PMTUDISC_DO } else { libc::IP_PMTUDISC_DONT };
    nix::sys::socket::setsockopt(&fd, keelson_netkit::sockopt::IpMtuDiscover, &value).unwrap();
}
