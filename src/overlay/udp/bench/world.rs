//! Two hosts with a cable between them, and a pod on each.

use std::error::Error;

use crate::rig::TestNetns;

pub struct World {
    pub hosts: [TestNetns; 2],
    pub pods: [TestNetns; 2],
}

/// The address of a host on the cable, and of its pod.
pub fn host_address(n: usize) -> String {
    format!("192.168.99.{n}")
}

pub fn pod_address(n: usize) -> String {
    format!("10.1.{n}.2")
}

impl World {
    pub fn new() -> Result<World, Box<dyn Error>> {
        let world =
            World { hosts: [TestNetns::new(), TestNetns::new()], pods: [TestNetns::new(), TestNetns::new()] };
        let other = world.hosts[1].path();
        world.hosts[0].ip(&[&format!("link add eth0 type veth peer name eth0 netns {other}")]);
        for n in 1..=2 {
            let (host, pod) = (&world.hosts[n - 1], &world.pods[n - 1]);
            host.ip(&[
                &format!("addr add {}/24 dev eth0", host_address(n)),
                "link set eth0 up",
                "link add cni0 type bridge",
                &format!("addr add 10.1.{n}.1/24 dev cni0"),
                "link set cni0 up",
                &format!("link add p type veth peer name eth0 netns {}", pod.path()),
                "link set p master cni0 up",
            ]);
            pod.ip(&[
                &format!("addr add {}/24 dev eth0", pod_address(n)),
                "link set eth0 up",
                &format!("route add default via 10.1.{n}.1"),
            ]);
            host.sysctl("ipv4.ip_forward", "1");
        }
        Ok(world)
    }

    /// Gives the pods the MTU of the network that carries them.
    pub fn set_mtu(&self, mtu: u32) {
        for (host, pod) in self.hosts.iter().zip(&self.pods) {
            host.ip(&[&format!("link set p mtu {mtu}"), &format!("link set cni0 mtu {mtu}")]);
            pod.ip(&[&format!("link set eth0 mtu {mtu}")]);
        }
    }
}
