//! The path behaves as a router does: hops are counted, and senders hear why a packet did not get on.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::thread;

use keelson_overlay_udp::Reason;
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
        for (hops, teller) in [(2u8, a), (3, b)] {
            if v6 {
                sockopt::set_ipv6_unicast_hops(&socket, Some(hops)).unwrap();
            } else {
                socket.set_ttl(hops.into()).unwrap();
            }
            socket.send_to(b"where does this end?", target).unwrap();
            let heard = listener.expect(kind);
            let own = teller.subnets().into_iter().any(|net| net.contains(heard.from));
            assert!(own, "hops {hops}: {} spoke, not host {}", heard.from, teller.number);
            assert!(heard.quoted.ends_with(b"where does this end?"));
        }
    }
    assert!(paths.iter().all(|path| path.counters().dropped(Reason::HopsExceeded) == 2));
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
    assert!(paths[0].counters().dropped(Reason::NoRoute) >= 2);
}

/// A link on the way takes less than the hosts' own: the outer datagrams' sender learns it from the router, and
/// tells the pods in turn.
#[test]
fn a_narrower_way_is_found_and_told() {
    needs_rig!();
    let world = World::new(2);
    let paths = world.start(false);
    let (a, b) = (&world.hosts[0], &world.hosts[1]);
    world.router.ip(&["link set h2 mtu 1300"]);
    b.place.ip(&["link set eth0 mtu 1300"]);
    let target = SocketAddr::new(b.pod_address(false), 9);
    let listener = Listener::new(&a.pod, false);
    let socket = a.pod.udp("0.0.0.0:0");
    // The first one is lost on the way and only tells the host; what follows is refused at the device.
    eventually("the path's size is learnt", || {
        socket.send_to(&[7; 1300], target).ok();
        paths[0].peer_counters()[0].path_mtu == Some(1272)
    });
    let heard = loop {
        socket.send_to(&[7; 1300], target).ok();
        let heard = listener.expect((3, 4));
        if heard.word != 0 {
            break heard;
        }
    };
    assert_eq!(heard.word, 1272);
    assert!(paths[0].counters().dropped(Reason::TooBig) > 0);

    // What may be split arrives, split outside and whole again inside.
    let far = b.pod.udp("0.0.0.0:0");
    let target = SocketAddr::new(b.pod_address(false), far.local_addr().unwrap().port());
    let split = a.pod.udp("0.0.0.0:0");
    set_dont_fragment(split.as_fd(), false);
    split.send_to(&[9; 1400], target).unwrap();
    let mut bytes = [0; 2000];
    assert_eq!(receive(&far, &mut bytes).0, 1400);

    // A stream gets through, because its sender heeds what it is told.
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

/// The host's own link is narrower than the device believes: large messages cannot be cut, and still arrive.
#[test]
fn a_device_with_too_large_an_mtu_still_carries() {
    needs_rig!();
    let world = World::new(2);
    let paths = world.start(false);
    let (a, b) = (&world.hosts[0], &world.hosts[1]);
    for host in [a, b] {
        host.place.ip(&["link set eth0 mtu 1300"]);
    }
    world.router.ip(&["link set h1 mtu 1300", "link set h2 mtu 1300"]);
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
    assert_eq!(paths[0].peer_counters()[0].path_mtu, Some(1272));
}

#[allow(unsafe_code)] // There is no safe wrapper for this option.
fn set_dont_fragment(fd: std::os::fd::BorrowedFd<'_>, on: bool) {
    use std::os::fd::AsRawFd;
    let value: libc::c_int = if on { libc::IP_PMTUDISC_DO } else { libc::IP_PMTUDISC_DONT };
    // SAFETY: the pointer and length describe `value`, which lives until the call returns.
    let status = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            std::ptr::from_ref(&value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    assert_eq!(status, 0);
}
