//! Hosts of their own: network namespaces around a router, each with a pod behind a bridge, and a path on top.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

pub mod flanneld;
pub mod icmp;

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};

use keelson_kit::cidr::IpNetwork;
use keelson_netkit::{IfName, NetNs};
use keelson_overlay_udp::{Config, PORT, Path, Peer};

/// Long enough for a loaded machine; only failures ever wait for it.
pub const PATIENCE: Duration = Duration::from_secs(20);
pub const DEVICE: &str = "flannel0";

/// Where the kernel gives tunnel devices.
pub const TUN: &str = "/dev/net/tun";

/// Ends the test as skipped where it cannot run.
#[macro_export]
macro_rules! needs_rig {
    () => {
        keelson_require::require!(keelson_require::network_namespaces());
        keelson_require::require!(
            std::fs::metadata($crate::rig::TUN)
                .map_err(|_| keelson_require::Missing::new($crate::rig::TUN, "modprobe tun"))
        );
    };
}

/// A network namespace and what is done in it.
pub struct TestNetns {
    pub ns: NetNs,
}

impl TestNetns {
    pub fn new() -> TestNetns {
        let netns = TestNetns { ns: NetNs::anonymous().unwrap() };
        netns.ip(&["link set lo up"]);
        netns
    }

    /// A path by which other processes can open the namespace.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.ns.fd().as_raw_fd())
    }

    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        self.ns.run(|| Ok::<T, keelson_netkit::Error>(work())).unwrap()
    }

    /// Runs `ip` with each of the lines.
    pub fn ip(&self, lines: &[&str]) {
        for line in lines {
            let output = self.run(|| Command::new("ip").args(line.split_whitespace()).output()).unwrap();
            assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }

    pub fn bridge(&self, line: &str) {
        let output = self.run(|| Command::new("bridge").args(line.split_whitespace()).output()).unwrap();
        assert!(output.status.success(), "bridge {line}: {}", String::from_utf8_lossy(&output.stderr));
    }

    pub fn sysctl(&self, name: &str, value: &str) {
        let file = format!("/proc/sys/net/{}", name.replace('.', "/"));
        self.run(|| std::fs::write(&file, value)).unwrap_or_else(|e| panic!("{file}: {e}"));
    }

    pub fn udp(&self, address: &str) -> UdpSocket {
        let socket = self.run(|| UdpSocket::bind(address)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    pub fn listen(&self, address: &str) -> TcpListener {
        self.run(|| TcpListener::bind(address)).unwrap()
    }

    pub fn connect(&self, to: SocketAddr) -> TcpStream {
        let stream = self.run(|| TcpStream::connect_timeout(&to, PATIENCE)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

/// A host: 192.168.N.2 (fd99:N::2) towards the router, 10.1.N.0/24 (fd00:1:N::/64) for its pod, which is .2 (::2).
pub struct Host {
    pub number: u8,
    pub netns: TestNetns,
    pub pod: TestNetns,
}

pub struct World {
    pub router: TestNetns,
    pub hosts: Vec<Host>,
}

impl World {
    pub fn new(count: u8) -> World {
        let router = TestNetns::new();
        for family in ["ipv4.ip_forward", "ipv6.conf.all.forwarding"] {
            router.sysctl(family, "1");
        }
        let hosts = (1..=count).map(|number| Host::new(number, &router)).collect();
        World { router, hosts }
    }

    pub fn peers_of(&self, host: u8, v6: bool) -> Vec<Peer> {
        self.hosts.iter().filter(|h| h.number != host).map(|h| h.peer(v6)).collect()
    }

    /// Starts a path on every host, each knowing all others.
    pub fn start(&self, v6: bool) -> Vec<Path> {
        let start = |host: &Host| {
            let path = host.start(v6);
            assert_eq!(path.peers().replace(self.peers_of(host.number, v6)), []);
            path
        };
        self.hosts.iter().map(start).collect()
    }
}

impl Host {
    fn new(number: u8, router: &TestNetns) -> Host {
        let (netns, pod) = (TestNetns::new(), TestNetns::new());
        let n = number;
        router.ip(&[
            &format!("link add h{n} type veth peer name eth0 netns {}", netns.path()),
            &format!("addr add 192.168.{n}.1/24 dev h{n}"),
            &format!("addr add fd99:{n}::1/64 dev h{n} nodad"),
            &format!("link set h{n} up"),
        ]);
        netns.ip(&[
            &format!("addr add 192.168.{n}.2/24 dev eth0"),
            &format!("addr add fd99:{n}::2/64 dev eth0 nodad"),
            "link set eth0 up",
            &format!("route add default via 192.168.{n}.1"),
            &format!("-6 route add default via fd99:{n}::1"),
            "link add cni0 type bridge",
            &format!("addr add 10.1.{n}.1/24 dev cni0"),
            &format!("addr add fd00:1:{n}::1/64 dev cni0 nodad"),
            &format!("link add p type veth peer name eth0 netns {}", pod.path()),
            "link set p master cni0 mtu 1452 up",
            "link set cni0 mtu 1452 up",
        ]);
        pod.ip(&[
            &format!("addr add 10.1.{n}.2/24 dev eth0"),
            &format!("addr add fd00:1:{n}::2/64 dev eth0 nodad"),
            "link set eth0 mtu 1452 up",
            &format!("route add default via 10.1.{n}.1"),
            &format!("-6 route add default via fd00:1:{n}::1"),
        ]);
        for family in ["ipv4.ip_forward", "ipv6.conf.all.forwarding"] {
            netns.sysctl(family, "1");
        }
        Host { number, netns, pod }
    }

    pub fn endpoint(&self, v6: bool) -> SocketAddr {
        let n = self.number;
        let text = if v6 { format!("[fd99:{n}::2]:{PORT}") } else { format!("192.168.{n}.2:{PORT}") };
        text.parse().unwrap()
    }

    pub fn subnets(&self) -> Vec<IpNetwork> {
        let n = self.number;
        [format!("10.1.{n}.0/24"), format!("fd00:1:{n}::/64")].iter().map(|t| t.parse().unwrap()).collect()
    }

    pub fn peer(&self, v6: bool) -> Peer {
        Peer { endpoint: self.endpoint(v6), subnets: self.subnets() }
    }

    pub fn pod_address(&self, v6: bool) -> IpAddr {
        let n = self.number;
        if v6 { format!("fd00:1:{n}::2") } else { format!("10.1.{n}.2") }.parse().unwrap()
    }

    /// Starts a path without peers, and sets its device up.
    pub fn start(&self, v6: bool) -> Path {
        let config = Config {
            device: IfName::try_from(DEVICE).unwrap(),
            listen: vec![self.endpoint(v6)],
            subnets: self.subnets(),
            queues: Some(2),
        };
        let path = self.netns.run(|| Path::start(&config)).unwrap();
        self.configure();
        path
    }

    /// What the daemon does to the device; a device that was kept has it all already.
    pub fn configure(&self) {
        let n = self.number;
        self.netns.ip(&[
            &format!("addr replace 10.1.{n}.0/32 dev {DEVICE}"),
            &format!("addr replace fd00:1:{n}::/128 dev {DEVICE} nodad"),
            &format!("link set {DEVICE} mtu 1452 up"),
            &format!("route replace 10.1.0.0/16 dev {DEVICE}"),
            &format!("-6 route replace fd00:1::/32 dev {DEVICE}"),
        ]);
    }
}

/// Receives a datagram. With a time limit the kernel does not resume a call that was interrupted, so that is done here.
pub fn receive(socket: &UdpSocket, bytes: &mut [u8]) -> (usize, SocketAddr) {
    loop {
        match socket.recv_from(bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            outcome => return outcome.unwrap(),
        }
    }
}

/// Waits until something is so.
pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
