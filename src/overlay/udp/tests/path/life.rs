//! A path's life: peers come, go and move; it is stopped and started again; its device is taken away.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use keelson_overlay_udp::{Count, DropReason, Leave, Peer};

use crate::needs_rig;
use crate::rig::{DEVICE, Host, World, eventually};

/// Whether a datagram gets from one pod to the other just now.
fn reaches(from: &Host, to: &Host) -> bool {
    let (near, far) = (from.pod.udp("0.0.0.0:0"), to.pod.udp("0.0.0.0:0"));
    far.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let target = SocketAddr::new(to.pod_address(false), far.local_addr().unwrap().port());
    // A refusal of an earlier datagram may be reported here.
    let _ = near.send_to(b"x", target);
    far.recv(&mut [0; 8]).is_ok()
}

#[test]
fn peers_come_go_and_move_while_the_path_runs() {
    needs_rig!();
    let world = World::new(3);
    let (a, b, c) = (&world.hosts[0], &world.hosts[1], &world.hosts[2]);
    let paths: Vec<_> = world.hosts.iter().map(|host| host.start(false)).collect();
    paths[1].peers().set(a.peer(false));
    paths[2].peers().set(a.peer(false));
    assert!(!reaches(a, b));
    paths[0].peers().set(b.peer(false));
    eventually("b is reached", || reaches(a, b));
    paths[0].peers().set(c.peer(false));
    eventually("c is reached", || reaches(a, c));
    assert!(paths[0].peers().remove(b.endpoint(false)));
    assert!(!reaches(a, b));
    assert!(reaches(a, c));

    // Host 2 takes over the subnet of host 3, as when a lease moves.
    paths[0].peers().replace(vec![Peer { endpoint: b.endpoint(false), subnets: c.subnets() }]);
    let sent = || paths[0].counters().of(Count::SentPackets);
    let before = sent();
    eventually("c's packets go to b, the only peer", || {
        reaches(a, c);
        sent() > before
    });
    paths[0].peers().replace(world.peers_of(1, false));
    eventually("everything is as before", || reaches(a, b) && reaches(a, c));
}

/// A stream goes on over a restart: the device with its address and routes stays, and so the pods wait and try again.
#[test]
fn a_stream_survives_a_restart_of_the_path() {
    needs_rig!();
    let world = World::new(2);
    let mut paths = world.start(false);
    let (a, b) = (&world.hosts[0], &world.hosts[1]);
    let listener = b.pod.listen("0.0.0.0:0");
    let target = SocketAddr::new(b.pod_address(false), listener.local_addr().unwrap().port());
    let mut near = a.pod.connect(target);
    let (mut far, _) = listener.accept().unwrap();
    near.write_all(b"before").unwrap();
    far.read_exact(&mut [0; 6]).unwrap();

    let (number, routes) = (paths[0].index(), routes(a));
    paths.remove(0).stop(Leave::Device);
    near.write_all(b"meanwhile").unwrap();
    assert_eq!(routes_now(a), routes, "the device and its routes stay while nobody carries");
    let path = a.start(false);
    path.peers().replace(world.peers_of(1, false));
    assert_eq!(path.index(), number);
    let mut bytes = [0; 9];
    far.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"meanwhile");
    path.stop(Leave::Nothing);
    assert!(!routes_now(a).contains(DEVICE));
}

fn routes(host: &Host) -> String {
    let text = routes_now(host);
    assert!(text.contains(DEVICE), "{text}");
    text
}

fn routes_now(host: &Host) -> String {
    let output =
        host.netns.run(|| std::process::Command::new("ip").args(["route", "show"]).output()).unwrap();
    // Whether somebody has the device open shows as carrier; the routes are what matters here.
    String::from_utf8_lossy(&output.stdout).replace(" linkdown", "")
}

#[test]
fn a_path_whose_device_is_deleted_says_so_and_can_be_started_anew() {
    needs_rig!();
    let world = World::new(2);
    let mut paths = world.start(false);
    let (a, b) = (&world.hosts[0], &world.hosts[1]);
    assert_eq!(paths[0].failure(), None);
    a.netns.ip(&[&format!("link del {DEVICE}")]);
    eventually("the loss is noticed", || paths[0].failure().is_some());
    drop(paths.remove(0));
    let path = a.start(false);
    path.peers().replace(world.peers_of(1, false));
    eventually("packets flow again", || reaches(a, b));
}

/// Packets that find the device down are lost, and the path is not.
#[test]
fn a_device_that_is_set_down_and_up_again_carries_on() {
    needs_rig!();
    let world = World::new(2);
    let paths = world.start(false);
    let (a, b) = (&world.hosts[0], &world.hosts[1]);
    eventually("packets flow", || reaches(a, b));
    b.netns.ip(&[&format!("link set {DEVICE} down")]);
    assert!(!reaches(a, b));
    eventually("what comes in meanwhile is counted", || {
        reaches(a, b);
        paths[1].counters().dropped(DropReason::WriteFailed) > 0
    });
    b.configure();
    eventually("packets flow again", || reaches(a, b));
    assert_eq!(paths[1].failure(), None);
}

#[test]
fn a_device_or_port_in_use_is_a_clear_error() {
    needs_rig!();
    let world = World::new(1);
    let host = &world.hosts[0];
    let taken = host.netns.udp(&host.endpoint(false).to_string());
    let config = keelson_overlay_udp::Config {
        device: keelson_netkit::IfName::try_from(DEVICE).unwrap(),
        listen: vec![host.endpoint(false)],
        subnets: host.subnets(),
        queues: Some(1),
    };
    let start = || host.netns.run(|| keelson_overlay_udp::Path::start(&config));
    let text = start().unwrap_err().to_string();
    assert!(text.contains("listen on 192.168.1.2:8285"), "{text}");
    drop(taken);
    host.netns.ip(&[&format!("tuntap add dev {DEVICE} mode tap")]);
    let text = start().unwrap_err().to_string();
    assert!(text.contains(DEVICE) && text.contains("remove it"), "{text}");
}
