//! A running node changes from the reference plugins to ours, or back, with its containers in place.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use keelson_require::{part, require};
use rig::{Container, Rig, sh};
use serde_json::{Value, json};

fn conf(rig: &Rig, backend: &str) -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "podnet", "type": "bridge", "bridge": "br0", "isGateway": true,
        "ipMasq": true, "ipMasqBackend": backend, "macspoofchk": true,
        "ipam": {"type": "host-local", "dataDir": rig.data_dir(),
            "ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}
    })
}

fn portmap(backend: &str, result: &Value) -> Value {
    json!({"cniVersion": "1.0.0", "name": "podnet", "type": "portmap", "backend": backend, "prevResult": result,
        "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}})
}

fn nothing_of_theirs_is_left(rig: &Rig, what: &str) {
    assert_eq!(rig.leases("podnet"), [], "{what}");
    assert!(!sh("ip -o link show type veth").contains("master"), "{what}");
    let rules = sh("nft list ruleset");
    for sign in ["10.88.0.2", "fd00:88::2", "CNI-DN-", "cni-br-iface", "8080", "masq-"] {
        assert!(!rules.contains(sign), "{what} left {sign}: {rules}");
    }
}

#[test]
fn ours_deletes_what_the_reference_added() {
    needs_rig!();
    let reference = require!(rig::reference());
    for backend in ["iptables", "nftables"] {
        let rig = Rig::new();
        let conf = conf(&rig, backend);
        let (a, b) = (Container::new("a"), Container::new("b"));
        let mut result = rig.run_at(&reference, "bridge", "ADD", &conf, &a).expect_ok("reference ADD");
        rig.run_at(&reference, "portmap", "ADD", &portmap(backend, &result), &a)
            .expect_ok("reference portmap ADD");
        rig.run("portmap", "CHECK", &portmap(backend, &result), &a).expect_ok("our portmap CHECK");
        let second = rig.run("bridge", "ADD", &conf, &b).expect_ok("our ADD beside it");
        assert_eq!(second["ips"][0]["address"], "10.88.0.3/24", "the round of addresses goes on");
        let mut checked = conf.clone();
        checked["prevResult"] = result.take();
        rig.run("bridge", "CHECK", &checked, &a).expect_ok("our CHECK");

        // The configuration need not name the backend that was used.
        let mut plain = conf.clone();
        plain.as_object_mut().unwrap().remove("ipMasqBackend");
        let mut ports = portmap("nftables", &checked["prevResult"]);
        ports.as_object_mut().unwrap().remove("prevResult");
        rig.run("portmap", "DEL", &ports, &a).expect_ok("our portmap DEL");
        rig.run("bridge", "DEL", &plain, &a).expect_ok("our DEL");
        rig.run("bridge", "DEL", &conf, &b).expect_ok("our DEL of ours");
        nothing_of_theirs_is_left(&rig, backend);
    }
}

#[test]
fn the_reference_deletes_what_ours_added() {
    needs_rig!();
    let reference = require!(rig::reference());
    for backend in ["iptables", "nftables"] {
        let rig = Rig::new();
        let conf = conf(&rig, backend);
        // As long as a runtime's, so that comments are cut where the reference cuts them.
        let (a, b) = (Container::new(&"a".repeat(64)), Container::new(&"b".repeat(64)));
        let result = rig.run("bridge", "ADD", &conf, &a).expect_ok("our ADD");
        let ports = portmap(backend, &result);
        rig.run("portmap", "ADD", &ports, &a).expect_ok("our portmap ADD");
        let second = rig.run_at(&reference, "bridge", "ADD", &conf, &b).expect_ok("reference ADD beside it");
        assert_eq!(second["ips"][0]["address"], "10.88.0.3/24", "the round of addresses goes on");
        rig.run_at(&reference, "portmap", "ADD", &portmap(backend, &second), &b).expect_ok("reference ADD");
        let mut checked = conf.clone();
        checked["prevResult"] = result.clone();
        rig.run_at(&reference, "bridge", "CHECK", &checked, &a).expect_ok("reference CHECK");
        rig.run_at(&reference, "portmap", "CHECK", &ports, &a).expect_ok("reference portmap CHECK");
        if backend == "nftables" {
            let comments = |rules: String| -> Vec<String> {
                let of = |line: &str| line.split_once(" comment ").map(|(_, c)| c.replace('a', "b"));
                rules.lines().filter_map(of).filter(|c| c.contains("net: ")).collect()
            };
            let found = comments(sh("nft list table inet cni_plugins_masquerade"));
            assert_eq!(found.len(), 4, "{found:?}");
            let lengths: std::collections::HashSet<usize> = found.iter().map(String::len).collect();
            assert_eq!(lengths.len(), 1, "both cut them at the same place: {found:?}");
        }
        for c in [&a, &b] {
            rig.run_at(&reference, "portmap", "DEL", &ports, c).expect_ok("reference portmap DEL");
            rig.run_at(&reference, "bridge", "DEL", &conf, c).expect_ok("reference DEL");
        }
        nothing_of_theirs_is_left(&rig, &format!("the reference, {backend}"));
        // And back again: our index notices that leases came and went without it.
        let third = rig.run("bridge", "ADD", &conf, &Container::new("c")).expect_ok("our ADD after that");
        assert_eq!(third["ips"][0]["address"], "10.88.0.4/24");
    }
}

#[test]
fn our_bridge_works_with_their_ipam_and_theirs_with_ours() {
    needs_rig!();
    let reference = require!(rig::reference());
    let rig = Rig::new();
    let mut conf = conf(&rig, "nftables");
    for version in ["0.2.0", "0.4.0", "1.1.0"] {
        conf["cniVersion"] = version.into();
        for (bridge, ipam) in [(&rig.plugins, &reference), (&reference, &rig.plugins)] {
            let mixed = rig.dir.path().join("mixed");
            let _ = std::fs::remove_dir_all(&mixed);
            std::fs::create_dir(&mixed).unwrap();
            std::os::unix::fs::symlink(bridge.join("bridge"), mixed.join("bridge")).unwrap();
            std::os::unix::fs::symlink(ipam.join("host-local"), mixed.join("host-local")).unwrap();
            let a = Container::new("a");
            rig.run_at(&mixed, "bridge", "ADD", &conf, &a).expect_ok("ADD");
            assert_eq!(rig.leases("podnet").len(), 2);
            rig.run_at(&mixed, "bridge", "DEL", &conf, &a).expect_ok("DEL");
            assert_eq!(rig.leases("podnet"), []);
        }
        conf["ipam"]["ranges"][0][0]["subnet"] = "10.88.0.0/31".into();
        let mixed = rig.dir.path().join("mixed");
        let ended = rig.run_at(&mixed, "bridge", "ADD", &conf, &Container::new("b"));
        assert!(
            !ended.ok && ended.stdout.contains("too small"),
            "the IPAM plugin's words are passed on: {}",
            ended.stdout
        );
        conf["ipam"]["ranges"][0][0]["subnet"] = "10.88.0.0/24".into();
    }
}

#[test]
fn cnitool_runs_the_whole_chain() {
    needs_rig!();
    let cnitool = require!(part("cnitool")).join("cnitool");
    let rig = Rig::new();
    let etc = rig.dir.path().join("net.d");
    std::fs::create_dir(&etc).unwrap();
    let mut bridge = conf(&rig, "nftables");
    for key in ["cniVersion", "name"] {
        bridge.as_object_mut().unwrap().remove(key);
    }
    let list = json!({"cniVersion": "1.1.0", "name": "podnet", "plugins": [
        {"type": "loopback"}, bridge, {"type": "portmap", "capabilities": {"portMappings": true}}]});
    std::fs::write(etc.join("10-podnet.conflist"), list.to_string()).unwrap();
    let a = Container::new("a");
    let run = |command: &str| {
        let output = std::process::Command::new(&cnitool)
            .args([command, "podnet", &a.path()])
            .env("NETCONFPATH", &etc)
            .env("CNI_PATH", &rig.plugins)
            .env(
                "CAP_ARGS",
                r#"{"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}"#,
            )
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{command}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    };
    run("status");
    run("add");
    assert!(sh("nft list ruleset").contains("8080"));
    run("check");
    run("del");
    run("gc");
    nothing_of_theirs_is_left(&rig, "cnitool");
}
