//! The plugins as a runtime sees them, on a host of their own: the usual way through each.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use keelson_require::{program, require};
use rig::{Container, Rig, inside, listen, reaches, sh, sh_json};
use serde_json::{Value, json};

fn bridge_conf(rig: &Rig) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "podnet", "type": "bridge", "bridge": "br0",
        "isGateway": true, "ipMasq": true,
        "ipam": {
            "type": "host-local", "dataDir": rig.data_dir(),
            "ranges": [[{"subnet": "10.88.0.0/16"}], [{"subnet": "fd00:88::/64"}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
        }
    })
}

fn nothing_is_left(rig: &Rig, network: &str) {
    assert_eq!(rig.leases(network), [], "leases");
    let links = sh("ip -o link show type veth");
    assert!(!links.lines().any(|l| l.contains("master")), "ports are left: {links}");
    let rules = sh("nft list ruleset 2>/dev/null || true");
    for chain in ["chain masq-", "chain dnat-", "chain snat-", "CNI-DN-", "macspoofchk-"] {
        assert!(!rules.contains(chain), "{chain} is left: {rules}");
    }
}

#[test]
fn containers_reach_each_other_the_gateway_and_the_world_outside() {
    needs_rig!();
    let rig = Rig::new();
    let conf = bridge_conf(&rig);
    let (a, b) = (Container::new("a"), Container::new("b"));
    let result = rig.run("bridge", "ADD", &conf, &a).expect_ok("ADD a");
    rig.run("bridge", "ADD", &conf, &b).expect_ok("ADD b");
    assert_eq!(result["ips"][0]["address"], "10.88.0.2/16");
    assert_eq!(result["ips"][1]["gateway"], "fd00:88::1");
    assert_eq!(result["interfaces"][2]["sandbox"], Value::String(a.path()));

    for (name, server, bind, connect) in [
        ("pod to pod", &b.netns, "10.88.0.3:80", "10.88.0.3:80"),
        ("pod to pod over IPv6", &b.netns, "[fd00:88::3]:80", "[fd00:88::3]:80"),
        ("pod to gateway", &rig.host, "10.88.0.1:80", "10.88.0.1:80"),
        ("pod to gateway over IPv6", &rig.host, "[fd00:88::1]:80", "[fd00:88::1]:80"),
    ] {
        let _told = listen(server, bind);
        assert!(reaches(&a.netns, connect), "{name}");
    }
    for (name, world, host) in
        [("IPv4", "192.0.2.2:80", "192.0.2.1"), ("IPv6", "[2001:db8::2]:80", "2001:db8::1")]
    {
        let told = listen(&rig.outside, world);
        assert!(reaches(&a.netns, world), "pod to the world over {name}");
        assert_eq!(told.recv().unwrap().to_string(), host, "masqueraded as the host over {name}");
    }
    for c in [&a, &b] {
        rig.run("bridge", "DEL", &conf, c).expect_ok("DEL");
        rig.run("bridge", "DEL", &conf, c).expect_ok("DEL again");
    }
    nothing_is_left(&rig, "podnet");
}

#[test]
fn check_passes_after_add_and_fails_when_anything_is_taken_away() {
    needs_rig!();
    let rig = Rig::new();
    let mut conf = bridge_conf(&rig);
    let a = Container::new("a");
    for (name, damage) in [
        ("the address", "ip addr del 10.88.0.2/16 dev eth0"),
        ("the IPv6 address", "ip addr del fd00:88::2/64 dev eth0"),
        ("the default route", "ip route del default"),
        ("the interface's MAC", "ip link set eth0 address 02:00:00:00:00:07"),
        ("the interface", "ip link del eth0"),
    ] {
        conf.as_object_mut().unwrap().remove("prevResult");
        let _ = std::fs::remove_dir_all(rig.data_dir());
        let result = rig.run("bridge", "ADD", &conf, &a).expect_ok("ADD");
        rig.run("bridge", "CHECK", &conf, &a).expect_code(7, "CHECK without prevResult");
        conf["prevResult"] = result;
        rig.run("bridge", "CHECK", &conf, &a).expect_ok(&format!("CHECK before losing {name}"));
        inside(&a.netns, || sh(damage));
        rig.run("bridge", "CHECK", &conf, &a).expect_code(101, &format!("CHECK without {name}"));
        rig.run("bridge", "DEL", &conf, &a).expect_ok("DEL");
    }
    rig.run("bridge", "CHECK", &conf, &a).expect_code(101, "CHECK after DEL");
}

#[test]
fn loopback_is_set_up_and_down() {
    needs_rig!();
    let rig = Rig::new();
    let conf = json!({"cniVersion": "1.1.0", "name": "lo", "type": "loopback"});
    let a = Container::new("a");
    rig.run("loopback", "CHECK", &conf, &a).expect_code(101, "CHECK before ADD");
    let result = rig.run("loopback", "ADD", &conf, &a).expect_ok("ADD");
    assert_eq!(result["ips"][0]["address"], "127.0.0.1/8");
    assert_eq!(result["interfaces"][0]["name"], "lo");
    rig.run("loopback", "CHECK", &conf, &a).expect_ok("CHECK");
    rig.run("loopback", "DEL", &conf, &a).expect_ok("DEL");
    rig.run("loopback", "CHECK", &conf, &a).expect_code(101, "CHECK after DEL");
}

#[test]
fn gc_frees_what_is_not_listed_and_keeps_the_rest() {
    needs_rig!();
    for backend in [None, Some("nftables")] {
        let rig = Rig::new();
        let mut conf = bridge_conf(&rig);
        conf["ipMasqBackend"] = backend.into();
        let containers = ["a", "b", "c"].map(Container::new);
        for c in &containers {
            rig.run("bridge", "ADD", &conf, c).expect_ok("ADD");
        }
        // A list with an entry that says too little says nothing about the others, either.
        let (leases, rules) = (rig.leases("podnet"), sh("nft list ruleset"));
        let b = json!({"containerID": "b", "ifname": "eth0"});
        for wrong in [
            json!({"containerID": "a"}),
            json!({"containerID": "a", "ifname": ""}),
            json!({"ifname": "eth0"}),
            json!(["a", "eth0"]),
            json!("a"),
            Value::Null,
        ] {
            conf["cni.dev/valid-attachments"] = json!([b, wrong]);
            for plugin in ["bridge", "host-local", "portmap"] {
                let ended = rig.run(plugin, "GC", &conf, &containers[0]);
                ended.expect_code(7, &format!("{plugin} GC with the entry {wrong}"));
            }
            assert_eq!(rig.leases("podnet"), leases, "{wrong}");
            assert_eq!(sh("nft list ruleset"), rules, "{wrong}");
        }
        conf["cni.dev/valid-attachments"] = json!([b]);
        rig.run("bridge", "GC", &conf, &containers[0]).expect_ok("GC");
        let owners: Vec<String> = rig.leases("podnet").into_iter().map(|(_, owner)| owner).collect();
        assert_eq!(owners, ["b\r\neth0", "b\r\neth0"]);
        let rules = sh("nft list ruleset");
        assert_eq!(rules.matches("if: eth0, id: ").count(), 2, "{backend:?}: {rules}");
        assert_eq!(rules.matches("id: b").count(), 2, "{backend:?}: {rules}");

        conf["cni.dev/valid-attachments"] = Value::Null;
        rig.run("bridge", "GC", &conf, &containers[0]).expect_ok("GC with an empty list");
        assert_eq!(rig.leases("podnet"), []);
        for kept in ["lock", "last_reserved_ip.0", "last_reserved_ip.1"] {
            assert!(rig.data_dir().join("podnet").join(kept).exists(), "{kept} should be kept");
        }
        conf["cni.dev/valid-attachments"] = json!("all");
        rig.run("bridge", "GC", &conf, &containers[0]).expect_code(7, "GC with a list that is none");
    }
}

#[test]
fn a_layer_two_network_needs_no_addresses() {
    needs_rig!();
    let rig = Rig::new();
    let conf = json!({"cniVersion": "1.0.0", "name": "l2", "type": "bridge", "bridge": "br0", "mtu": 1400,
        "runtimeConfig": {"mac": "0a:58:00:00:00:07"}});
    let a = Container::new("a");
    let result = rig.run("bridge", "ADD", &conf, &a).expect_ok("ADD");
    assert!(result.get("ips").is_none());
    assert_eq!(result["interfaces"][2]["mac"], "0a:58:00:00:00:07");
    let eth0 = inside(&a.netns, || sh_json("ip -j link show eth0"));
    assert_eq!(eth0[0]["mtu"], 1400);
    assert_eq!(eth0[0]["operstate"], "UP");
    rig.run("bridge", "DEL", &conf, &a).expect_ok("DEL");

    let conf = json!({"cniVersion": "1.0.0", "name": "l2", "type": "bridge", "bridge": "br0", "disableContainerInterface": true});
    rig.run("bridge", "ADD", &conf, &a).expect_ok("ADD");
    assert_eq!(inside(&a.netns, || sh_json("ip -j link show eth0"))[0]["operstate"], "DOWN");
    rig.run("bridge", "DEL", &conf, &a).expect_ok("DEL");
    nothing_is_left(&rig, "l2");
}

#[test]
fn a_spoofed_mac_is_not_let_through() {
    needs_rig!();
    let rig = Rig::new();
    let mut conf = bridge_conf(&rig);
    conf["macspoofchk"] = true.into();
    let (a, b) = (Container::new("a"), Container::new("b"));
    rig.run("bridge", "ADD", &conf, &a).expect_ok("ADD a");
    rig.run("bridge", "ADD", &conf, &b).expect_ok("ADD b");
    let _told = listen(&b.netns, "10.88.0.3:80");
    assert!(reaches(&a.netns, "10.88.0.3:80"), "with its own MAC");
    inside(&a.netns, || {
        sh("ip link set eth0 address 02:00:00:00:00:07 && ip route replace default via 10.88.0.1")
    });
    let blocked = "10.88.0.3:80".parse().unwrap();
    let attempt = inside(&a.netns, || {
        std::net::TcpStream::connect_timeout(&blocked, std::time::Duration::from_millis(1500))
    });
    assert!(attempt.is_err(), "with another MAC");
    for c in [&a, &b] {
        rig.run("bridge", "DEL", &conf, c).expect_ok("DEL");
    }
    nothing_is_left(&rig, "podnet");
}

#[test]
fn no_process_is_started_on_the_default_path() {
    needs_rig!();
    require!(program("strace"));
    let rig = Rig::new();
    let conf = bridge_conf(&rig);
    let a = Container::new("a");
    for command in ["ADD", "DEL"] {
        let plain = rig.command(&rig.plugins, "bridge", command, &a.id, &a.path());
        let mut process = std::process::Command::new("strace");
        process.args(["-qq", "-f", "-o"]).arg(rig.dir.path().join("trace")).args(["-e", "trace=process"]);
        process.arg(rig.plugins.join("bridge")).env_clear();
        process.envs(plain.get_envs().filter_map(|(k, v)| Some((k, v?))));
        process.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        rig::feed(process, &conf.to_string()).expect_ok(command);
        let trace = std::fs::read_to_string(rig.dir.path().join("trace")).unwrap();
        assert_eq!(trace.matches("execve").count(), 1, "{command}: {trace}");
        assert!(!trace.contains("clone") && !trace.contains("fork"), "{command}: {trace}");
    }
}
