//! With a real flanneld at the other end.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::thread;

use keelson_require::{part, require};

use crate::needs_rig;
use crate::rig::flanneld::{Etcd, Flanneld, Parts};
use crate::rig::{World, receive};

#[test]
fn a_pod_behind_flanneld_is_reached_both_ways() {
    needs_rig!();
    let parts = Parts::of(&require!(part("flanneld")), &require!(part("etcd")));
    let world = World::new(2);
    let (a, b) = (&world.hosts[0], &world.hosts[1]);
    let etcd = Etcd::start(&parts, &b.netns);
    etcd.put(
        "/coreos.com/network/config",
        r#"{"Network":"10.1.0.0/16","SubnetLen":24,"Backend":{"Type":"udp"}}"#,
    );
    for host in &world.hosts {
        let key = format!("/coreos.com/network/subnets/10.1.{}.0-24", host.number);
        etcd.put(&key, &format!(r#"{{"PublicIP":"{}","BackendType":"udp"}}"#, host.endpoint(false).ip()));
    }
    let _flanneld = Flanneld::start(&parts, &b.netns, b.number, &etcd);
    let path = a.start(false);
    path.peers().set(b.peer(false));

    for (from, to) in [(a, b), (b, a)] {
        let (near, far) = (from.pod.udp("0.0.0.0:0"), to.pod.udp("0.0.0.0:0"));
        let target = SocketAddr::new(to.pod_address(false), far.local_addr().unwrap().port());
        near.send_to(b"hello", target).unwrap();
        let mut bytes = [0; 16];
        let (got, _) = receive(&far, &mut bytes);
        assert_eq!(&bytes[..got], b"hello");

        let listener = to.pod.listen("0.0.0.0:0");
        let target = SocketAddr::new(to.pod_address(false), listener.local_addr().unwrap().port());
        let mut stream = from.pod.connect(target);
        let sent: Vec<u8> = (0..3_000_000u32).map(|n| (n ^ n >> 8) as u8).collect();
        let received = thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                let mut bytes = Vec::new();
                listener.accept().unwrap().0.read_to_end(&mut bytes).unwrap();
                bytes
            });
            stream.write_all(&sent).unwrap();
            drop(stream);
            receiver.join().unwrap()
        });
        assert!(received == sent, "from {} to {}", from.number, to.number);
    }
}
