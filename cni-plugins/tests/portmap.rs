//! Host ports, from every side, in all backends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use std::net::UdpSocket;
use std::time::Duration;

use rig::{Container, PATIENCE, Rig, answer_udp, inside, listen, reaches, sh};
use serde_json::{Value, json};

/// The backend of whoever names none.
const OWN: &str = "our own";

struct Web {
    rig: Rig,
    bridge: Value,
    portmap: Value,
}

/// A network with portmap chained behind bridge.
fn web(backend: &str, mappings: Value) -> Web {
    let rig = Rig::new();
    let bridge = json!({
        "cniVersion": "1.0.0", "name": "podnet", "type": "bridge", "bridge": "br0", "isGateway": true, "hairpinMode": true,
        "ipam": {"type": "host-local", "dataDir": rig.data_dir(),
            "ranges": [[{"subnet": "10.88.0.0/16"}], [{"subnet": "fd00:88::/64"}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}
    });
    let mut portmap = json!({
        "cniVersion": "1.0.0", "name": "podnet", "type": "portmap", "runtimeConfig": {"portMappings": mappings}
    });
    if backend != OWN {
        portmap["backend"] = backend.into();
    }
    Web { rig, bridge, portmap }
}

impl Web {
    /// Runs the chain; returns portmap's configuration with the result in it.
    fn add(&self, container: &Container) -> Value {
        let result = self.rig.run("bridge", "ADD", &self.bridge, container).expect_ok("bridge ADD");
        let mut portmap = self.portmap.clone();
        portmap["prevResult"] = result.clone();
        let passed = self.rig.run("portmap", "ADD", &portmap, container).expect_ok("portmap ADD");
        assert_eq!(passed, result, "the result is passed on");
        portmap
    }
}

#[test]
fn a_host_port_leads_to_the_container_from_everywhere() {
    needs_rig!();
    let conventional = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    let of_containerd = json!([{"HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": ""}]);
    for (backend, mappings) in [
        (OWN, &conventional),
        ("nftables", &conventional),
        ("iptables", &conventional),
        (OWN, &of_containerd),
    ] {
        let web = web(backend, mappings.clone());
        let (server, client) = (Container::new("server"), Container::new("client"));
        let conf = web.add(&server);
        web.rig.run("bridge", "ADD", &web.bridge, &client).expect_ok("ADD client");
        web.rig.run("portmap", "CHECK", &conf, &server).expect_ok("CHECK");
        if backend == "nftables" {
            let rules = sh(
                "nft list chain ip cni_hostport masquerading; nft list chain ip6 cni_hostport masquerading",
            );
            for rule in rules.lines().filter(|line| line.contains("masquerade ")) {
                let own = rule.contains("ip daddr 10.88.0.2 ") || rule.contains("ip6 daddr fd00:88::2 ");
                assert!(own, "what goes to others is none of its business: {rule}");
            }
        }
        let told = listen(&server.netns, "[::]:80");
        for (name, from, to, seen) in [
            ("from outside", &web.rig.outside, "192.0.2.1:8080", "192.0.2.2"),
            ("from outside over IPv6", &web.rig.outside, "[2001:db8::1]:8080", "2001:db8::2"),
            ("from the host", &web.rig.host, "192.0.2.1:8080", "192.0.2.1"),
            ("from the host's loopback", &web.rig.host, "127.0.0.1:8080", "10.88.0.1"),
            ("from another container", &client.netns, "10.88.0.1:8080", "10.88.0.1"),
            ("from another container over IPv6", &client.netns, "[fd00:88::1]:8080", "fd00:88::1"),
            ("from the container itself", &server.netns, "10.88.0.1:8080", "10.88.0.1"),
        ] {
            assert!(reaches(from, to), "{backend}: {name}");
            assert_eq!(told.recv().unwrap().to_string(), seen, "{backend}: the client's address {name}");
        }

        web.rig.run("portmap", "DEL", &conf, &server).expect_ok("DEL");
        web.rig.run("portmap", "DEL", &conf, &server).expect_ok("DEL again");
        web.rig.run("portmap", "CHECK", &conf, &server).expect_code(101, "CHECK after DEL");
        let rules = sh("nft list ruleset");
        assert!(!rules.contains("8080"), "{backend}: {rules}");
    }
}

#[test]
fn host_addresses_and_masquerading_are_as_asked_for() {
    needs_rig!();
    for backend in [OWN, "nftables", "iptables"] {
        let mut web = web(
            backend,
            json!([
            {"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "192.0.2.1"},
            {"hostPort": 8081, "containerPort": 80, "protocol": "tcp", "hostIP": "0.0.0.0"}]),
        );
        web.portmap["masqAll"] = true.into();
        let server = Container::new("server");
        let conf = web.add(&server);
        let told = listen(&server.netns, "[::]:80");
        assert!(reaches(&web.rig.outside, "192.0.2.1:8080"), "{backend}: the address that is mapped");
        assert_eq!(told.recv().unwrap().to_string(), "10.88.0.1", "{backend}: all is masqueraded");
        for (addr, reached) in
            [("10.88.0.1:8081", true), ("10.88.0.1:8080", false), ("[2001:db8::1]:8081", false)]
        {
            let addr = addr.parse().unwrap();
            let got = inside(&web.rig.host, || std::net::TcpStream::connect_timeout(&addr, PATIENCE)).is_ok();
            assert_eq!(got, reached, "{backend}: {addr}");
        }
        web.rig.run("portmap", "DEL", &conf, &server).expect_ok("DEL");
    }
}

#[test]
fn conditions_limit_who_may_use_a_port() {
    needs_rig!();
    for (backend, conditions) in [
        (OWN, json!(["ip", "saddr", "!=", "192.0.2.2"])),
        ("nftables", json!(["ip", "saddr", "!=", "192.0.2.2"])),
        ("iptables", json!(["!", "-s", "192.0.2.2"])),
    ] {
        let mut web = web(backend, json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]));
        web.portmap["conditionsV4"] = conditions;
        let server = Container::new("server");
        web.add(&server);
        let _told = listen(&server.netns, "0.0.0.0:80");
        let addr = "192.0.2.1:8080".parse().unwrap();
        let barred = inside(&web.rig.outside, || std::net::TcpStream::connect_timeout(&addr, PATIENCE));
        assert!(barred.is_err(), "{backend}: 192.0.2.2 is barred");
        assert!(reaches(&web.rig.host, "192.0.2.1:8080"), "{backend}: others are not");
    }
}

#[test]
fn a_udp_client_that_keeps_sending_is_led_to_the_new_container() {
    needs_rig!();
    let web = web(OWN, json!([{"hostPort": 5353, "containerPort": 53, "protocol": "udp"}]));
    let (old, new) = (Container::new("old"), Container::new("new"));
    let conf = web.add(&old);
    answer_udp(&old.netns, "0.0.0.0:53", b"old");
    let client = inside(&web.rig.outside, || UdpSocket::bind("192.0.2.2:4000")).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.connect("192.0.2.1:5353").unwrap();
    let ask = || {
        client.send(b"who?").unwrap();
        let mut buf = [0; 10];
        client.recv(&mut buf).map(|n| buf[..n].to_vec())
    };
    assert_eq!(ask().unwrap(), b"old");
    web.rig.run("portmap", "DEL", &conf, &old).expect_ok("DEL");
    // Without a container behind the port, the client's next datagram is tracked as one for the host.
    client.send(b"who?").unwrap();
    client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(client.recv(&mut [0; 10]).is_err());
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    web.add(&new);
    answer_udp(&new.netns, "0.0.0.0:53", b"new");
    assert_eq!(ask().unwrap(), b"new");
}

#[test]
fn the_last_container_to_claim_a_port_has_it_and_the_first_one_s_end_does_not_take_it_away() {
    needs_rig!();
    for backend in [OWN, "nftables"] {
        let web = web(backend, json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]));
        let (first, second) = (Container::new("first"), Container::new("second"));
        let conf = web.add(&first);
        web.add(&second);
        let _told = listen(&second.netns, "0.0.0.0:80");
        assert!(reaches(&web.rig.outside, "192.0.2.1:8080"), "{backend}: the second has it");
        if backend == OWN {
            web.rig.run("portmap", "CHECK", &conf, &first).expect_code(101, "CHECK of the first");
        }
        web.rig.run("portmap", "DEL", &conf, &first).expect_ok("DEL of the first");
        assert!(reaches(&web.rig.outside, "192.0.2.1:8080"), "{backend}: the second still has it");
    }
}

/// What a container can do that sends frames of its own making to the gateway's MAC; here its kernel makes them.
#[test]
fn containers_do_not_reach_the_host_s_loopback_address() {
    needs_rig!();
    for backend in [OWN, "nftables", "iptables"] {
        let web = web(backend, json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]));
        let (server, other) = (Container::new("server"), Container::new("other"));
        web.add(&server);
        web.rig.run("bridge", "ADD", &web.bridge, &other).expect_ok("ADD");
        let private = inside(&web.rig.host, || UdpSocket::bind("127.0.0.1:5555")).unwrap();
        private.set_read_timeout(Some(PATIENCE)).unwrap();
        let send = |from: &Container, address: &str, word: &[u8]| {
            let line = "ip route replace 127.0.0.1/32 via 10.88.0.1 && echo 1 >/proc/sys/net/ipv4/conf/eth0/route_localnet";
            inside(&from.netns, || {
                sh(line);
                UdpSocket::bind((address, 0)).unwrap().send_to(word, "127.0.0.1:5555").unwrap();
            });
        };
        send(&server, "10.88.0.2", b"guarded");
        send(&other, "10.88.0.3", b"guarded");
        // What shows that only the rules were in the way.
        sh("nft flush chain inet keelson_hostport localnet || true");
        send(&other, "10.88.0.3", b"open");
        let mut heard = [0; 20];
        let count = private.recv(&mut heard).unwrap();
        assert_eq!(&heard[..count], b"open", "{backend}");
        // A node that was set up before there was such a rule gets it with its next host port.
        sh(
            "nft flush chain inet keelson_hostport localnet && nft delete chain inet keelson_hostport localnet",
        );
        web.add(&Container::new("later"));
        let rules = sh("nft list chain inet keelson_hostport localnet");
        assert_eq!(rules.matches("drop").count(), 2, "{backend}: {rules}");
    }
}

#[test]
fn service_rules_keep_precedence() {
    needs_rig!();
    let web = web(OWN, json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]));
    let (server, service) = (Container::new("server"), Container::new("service"));
    web.add(&server);
    web.rig.run("bridge", "ADD", &web.bridge, &service).expect_ok("ADD");
    // As a service proxy would: a destination rewritten at the usual priority, declared after ours.
    sh(
        "nft 'add table ip kube-proxy; add chain ip kube-proxy nat { type nat hook prerouting priority dstnat; }; \
        add rule ip kube-proxy nat ip daddr 192.0.2.1 tcp dport 8080 dnat to 10.88.0.3:81'",
    );
    let _told = listen(&service.netns, "0.0.0.0:81");
    assert!(reaches(&web.rig.outside, "192.0.2.1:8080"));
}
