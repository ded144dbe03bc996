//! portmap and loopback: who reaches a host port, and what the results are.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;

use keelson_netkit::NetNs;
use keelson_require::require;
use serde_json::{Map, Value, json};

use crate::cases::VERSIONS;
use crate::compare;
use crate::rig::{self, Container, Rig, inside, listen, sh_json};

/// Nothing answers for as long as this where nothing is expected to.
const SHORT: Duration = Duration::from_millis(700);

fn host_ports(plugins: Option<PathBuf>, portmap: &Value) -> Value {
    let portmap = portmap.clone();
    thread::spawn(move || {
        let rig = Rig::new();
        let plugins = plugins.unwrap_or_else(|| rig.plugins.clone());
        let bridge = json!({"cniVersion": portmap["cniVersion"], "name": "podnet", "type": "bridge", "bridge": "br0",
            "isGateway": true, "hairpinMode": true,
            "ipam": {"type": "host-local", "dataDir": rig.data_dir(),
                "ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]],
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}});
        let (server, client) = (Container::new("server"), Container::new("client"));
        // The same bridge for both, so that only portmap differs.
        let result = rig.run("bridge", "ADD", &bridge, &server).expect_ok("bridge ADD");
        rig.run("bridge", "ADD", &bridge, &client).expect_ok("bridge ADD");
        let mut conf = portmap.clone();
        conf["prevResult"] = result.clone();
        let mut seen = Map::new();
        let ended = rig.run_at(&plugins, "portmap", "ADD", &conf, &server);
        seen.insert("ADD succeeds".into(), ended.ok.into());
        if ended.ok {
            seen.insert("the result is passed on".into(), (ended.json == result).into());
            let told = listen(&server.netns, "[::]:80");
            for (name, from, to) in [
                ("from outside", &rig.outside, "192.0.2.1:8080"),
                ("from outside over IPv6", &rig.outside, "[2001:db8::1]:8080"),
                ("from the host", &rig.host, "192.0.2.1:8080"),
                ("from the host's loopback", &rig.host, "127.0.0.1:8080"),
                ("from another container", &client.netns, "192.0.2.1:8080"),
                ("from the container itself", &server.netns, "10.88.0.1:8080"),
                ("at another address", &rig.host, "10.88.0.1:8080"),
            ] {
                seen.insert(name.into(), json!(who_is_seen(from, to, &told)));
            }
            if portmap["cniVersion"] != "0.3.1" {
                seen.insert("CHECK succeeds".into(), rig.run_at(&plugins, "portmap", "CHECK", &conf, &server).ok.into());
            }
        }
        seen.insert("DEL succeeds".into(), rig.run_at(&plugins, "portmap", "DEL", &conf, &server).ok.into());
        seen.insert("left".into(), rig::sh("nft list ruleset").contains("8080").into());
        Value::Object(seen)
    })
    .join()
    .unwrap()
}

/// The address that the server sees, if it is reached at all.
fn who_is_seen(from: &NetNs, to: &str, told: &Receiver<IpAddr>) -> Option<String> {
    let to: SocketAddr = to.parse().unwrap();
    inside(from, || TcpStream::connect_timeout(&to, SHORT)).ok()?;
    told.recv_timeout(SHORT).ok().map(|peer| peer.to_string())
}

#[test]
fn host_ports_are_reached_by_whom_the_reference_lets_reach_them() {
    crate::needs_rig!();
    let reference = require!(rig::reference());
    let mapping = |host_ip: &str| json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": host_ip}]);
    let mut different = Vec::new();
    for backend in ["iptables", "nftables"] {
        let condition = match backend {
            "iptables" => json!(["!", "-s", "192.0.2.2"]),
            _ => json!(["ip", "saddr", "!=", "192.0.2.2"]),
        };
        for (name, ports, change) in [
            ("as it is", mapping(""), json!({})),
            ("0.3.1", mapping(""), json!({"cniVersion": "0.3.1"})),
            ("an address of the host", mapping("192.0.2.1"), json!({})),
            ("any IPv4 address", mapping("0.0.0.0"), json!({})),
            ("any IPv6 address", mapping("::"), json!({})),
            ("no snat", mapping(""), json!({"snat": false})),
            ("all masqueraded", mapping(""), json!({"masqAll": true})),
            ("a condition", mapping(""), json!({"conditionsV4": condition})),
            ("no mappings", json!([]), json!({})),
            ("no port", json!([{"hostPort": 0, "containerPort": 80, "protocol": "tcp"}]), json!({})),
            ("no backend of that name", mapping(""), json!({"backend": "pf"})),
        ] {
            let mut conf = json!({"cniVersion": "1.0.0", "name": "podnet", "type": "portmap", "backend": backend,
                "runtimeConfig": {"portMappings": ports}});
            for (key, value) in change.as_object().unwrap() {
                conf[key] = value.clone();
            }
            let theirs = host_ports(Some(reference.clone()), &conf);
            let ours = host_ports(None, &conf);
            compare(&format!("{backend}: {name}"), "", &theirs, &ours, &mut different);
            if conf["backend"] == "nftables" {
                // Our own backend, which has no counterpart there, does the same in its own way.
                conf.as_object_mut().unwrap().remove("backend");
                let own = host_ports(None, &conf);
                compare(&format!("nftables: {name}, by our own backend"), "", &theirs, &own, &mut different);
            }
        }
    }
    assert!(different.is_empty(), "{} differences:\n{}", different.len(), different.join("\n"));
}

#[test]
fn loopback_is_the_reference_s() {
    crate::needs_rig!();
    let reference = require!(rig::reference());
    let rig = Rig::new();
    let mut different = Vec::new();
    for version in VERSIONS {
        let conf = json!({"cniVersion": version, "name": "lo", "type": "loopback"});
        let story = |plugins: &std::path::Path| {
            let a = Container::new("a");
            let text = |ended: &rig::Ended| ended.stdout.replace(&a.path(), "NETNS");
            let state = || inside(&a.netns, || sh_json("ip -j addr show lo"));
            let added = rig.run_at(plugins, "loopback", "ADD", &conf, &a);
            let result: Value = serde_json::from_str(&text(&added)).unwrap();
            let up = state();
            let deleted = rig.run_at(plugins, "loopback", "DEL", &conf, &a).ok;
            json!({"ADD": added.ok, "result": result, "up": up, "DEL": deleted, "down": state()})
        };
        compare(&format!("loopback {version}"), "", &story(&reference), &story(&rig.plugins), &mut different);
    }
    assert!(different.is_empty(), "{} differences:\n{}", different.len(), different.join("\n"));
}
