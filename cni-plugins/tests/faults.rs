//! Faults: whatever happens half-way, nothing is left behind, lost or given twice.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use std::collections::HashMap;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use keelson_require::{program, require};
use rig::{Container, Rig, feed, inside, sh};
use serde_json::{Value, json};

fn conf(rig: &Rig) -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "podnet", "type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true,
        "ipam": {"type": "host-local", "dataDir": rig.data_dir(), "ranges": [[{"subnet": "10.88.0.0/24"}]],
            "routes": [{"dst": "0.0.0.0/0"}]}
    })
}

fn clean(rig: &Rig, what: &str) {
    assert_eq!(rig.leases("podnet"), [], "{what} left leases");
    let links = sh("ip -o link show type veth");
    assert!(!links.contains("master"), "{what} left ports: {links}");
    let rules = sh("nft list ruleset");
    assert!(!rules.contains("chain masq-") && !rules.contains("jump"), "{what} left rules: {rules}");
}

#[test]
fn del_succeeds_with_whatever_is_left_to_work_with() {
    needs_rig!();
    let rig = Rig::new();
    let conf = conf(&rig);
    let del = |container: &str, netns: &str| {
        feed(rig.command(&rig.plugins, "bridge", "DEL", container, netns), &conf.to_string())
    };
    del("never-added", "/nowhere").expect_ok("DEL of what was never added");
    assert!(!rig.data_dir().exists(), "DEL makes no directory");

    for (what, netns) in
        [("no namespace", ""), ("a path that is gone", "/nowhere"), ("a path that is a directory", "/")]
    {
        let a = Container::new("a");
        rig.run("bridge", "ADD", &conf, &a).expect_ok("ADD");
        del("a", netns).expect_ok(&format!("DEL with {what}"));
        clean(&rig, &format!("DEL with {what}"));
        del("a", netns).expect_ok(&format!("DEL with {what}, again"));
    }
    let a = Container::new("a");
    rig.run("bridge", "ADD", &conf, &a).expect_ok("ADD");
    inside(&a.netns, || sh("ip link del eth0"));
    rig.run("bridge", "DEL", &conf, &a).expect_ok("DEL after the link was removed");
    clean(&rig, "DEL after the link was removed");

    rig.run("bridge", "ADD", &conf, &a).expect_ok("ADD");
    fs::remove_file(rig.plugins.join("host-local")).unwrap();
    rig.run("bridge", "DEL", &conf, &a).expect_ok("DEL with the IPAM plugin uninstalled");
    clean(&rig, "DEL with the IPAM plugin uninstalled");
    let portmap = json!({"cniVersion": "1.0.0", "name": "podnet", "type": "portmap",
        "runtimeConfig": {"portMappings": [{"hostPort": 80, "containerPort": 80, "protocol": "udp"}]}});
    rig.run("portmap", "DEL", &portmap, &a).expect_ok("DEL of a plugin that never came to its ADD");
    let lo = json!({"cniVersion": "1.0.0", "name": "lo", "type": "loopback"});
    feed(rig.command(&rig.plugins, "loopback", "DEL", "a", "/nowhere"), &lo.to_string())
        .expect_ok("loopback DEL");
}

#[test]
fn an_add_killed_at_any_point_is_undone_by_del() {
    needs_rig!();
    require!(program("strace"));
    let rig = Rig::new();
    let mut conf = conf(&rig);
    conf["macspoofchk"] = true.into();
    let a = Container::new("a");
    let traced = |options: &[&str]| {
        let plain = rig.command(&rig.plugins, "bridge", "ADD", &a.id, &a.path());
        let mut process = Command::new("strace");
        process.arg("-qq").args(options).arg(rig.plugins.join("bridge"));
        process.env_clear().envs(plain.get_envs().filter_map(|(k, v)| Some((k, v?))));
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        feed(process, &conf.to_string())
    };
    let log = rig.dir.path().join("trace");
    traced(&["-o", log.to_str().unwrap()]).expect_ok("ADD under strace");
    rig.run("bridge", "DEL", &conf, &a).expect_ok("DEL");
    let mut counts: HashMap<String, usize> = HashMap::new();
    for line in fs::read_to_string(log).unwrap().lines() {
        let call = line.split('(').next().unwrap().to_owned();
        // Memory and signals are the loader's and the allocator's business.
        let boring = [
            "execve",
            "mmap",
            "munmap",
            "brk",
            "mprotect",
            "rt_sig",
            "sigaltstack",
            "exit",
            "arch_prctl",
            "poll",
            "sched",
        ];
        if call.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && !boring.iter().any(|b| call.starts_with(b))
        {
            *counts.entry(call).or_default() += 1;
        }
    }
    assert!(counts["sendto"] > 5, "{counts:?}");
    let mut killed = 0;
    for (call, count) in &counts {
        for nth in 1..=*count {
            let what = format!("ADD killed at {call} number {nth}");
            killed += usize::from(
                !traced(&["-o", "/dev/null", "-e", &format!("inject={call}:signal=SIGKILL:when={nth}")]).ok,
            );
            rig.run("bridge", "DEL", &conf, &a).expect_ok(&format!("DEL after {what}"));
            clean(&rig, &what);
            assert!(inside(&a.netns, || !sh("ip -o link").contains("eth0")), "{what}");
        }
    }
    assert!(killed > 50, "only {killed} were killed");
    rig.run("bridge", "ADD", &conf, &a).expect_ok("ADD after all that");
}

#[test]
fn a_second_add_is_refused_and_the_first_one_s_address_stays() {
    needs_rig!();
    let rig = Rig::new();
    let conf = conf(&rig);
    let (a, elsewhere) = (Container::new("a"), Container::new("a"));
    rig.run("bridge", "ADD", &conf, &a).expect_ok("ADD");
    let before = rig.leases("podnet");
    let rules = sh("nft list ruleset");
    assert!(!rig.run("bridge", "ADD", &conf, &a).ok, "the same container again");
    assert!(!rig.run("bridge", "ADD", &conf, &elsewhere).ok, "the same container in another namespace");
    assert!(!rig.run("host-local", "ADD", &conf, &a).ok, "its addresses again");
    assert_eq!(rig.leases("podnet"), before);
    assert_eq!(sh("nft list ruleset"), rules);
    assert!(inside(&a.netns, || sh("ip -o addr").contains("10.88.0.2/24")));
    assert!(inside(&elsewhere.netns, || !sh("ip -o link").contains("eth0")));
}

#[test]
fn a_failure_half_way_leaves_nothing() {
    needs_rig!();
    let rig = Rig::new();
    let base = conf(&rig);
    let a = Container::new("a");
    sh("ip link add br0 type bridge && ip addr add 10.99.0.1/24 dev br0 && ip link set br0 up");
    let ended = rig.run("bridge", "ADD", &base, &a);
    ended.expect_code(7, "a bridge with another address");
    assert!(ended.stdout.contains("forceAddress"), "{}", ended.stdout);
    clean(&rig, "a bridge with another address");
    assert!(sh("ip -o addr show dev br0").contains("10.99.0.1"), "the bridge's address is kept");

    let mut forced = base.clone();
    forced["forceAddress"] = true.into();
    rig.run("bridge", "ADD", &forced, &a).expect_ok("ADD with forceAddress");
    assert!(!sh("ip -o addr show dev br0").contains("10.99.0.1"), "the bridge's address is replaced");
    rig.run("bridge", "DEL", &forced, &a).expect_ok("DEL");

    for (what, pointer, value) in [
        (
            "a route that the kernel refuses",
            "/ipam/routes/0",
            json!({"dst": "198.51.100.0/24", "gw": "203.0.113.1"}),
        ),
        ("an MTU that the kernel refuses", "/isGateway", json!(true)),
    ] {
        let mut broken = base.clone();
        *broken.pointer_mut(pointer).unwrap() = value;
        if what.contains("MTU") {
            broken["mtu"] = json!(20);
            broken["bridge"] = "br9".into();
        }
        assert!(!rig.run("bridge", "ADD", &broken, &a).ok, "{what}");
        clean(&rig, what);
        assert!(inside(&a.netns, || !sh("ip -o link").contains("eth0")), "{what}");
    }
    sh("ip link add dummy0 type veth peer name dummy1");
    let mut not_a_bridge = base;
    not_a_bridge["bridge"] = "dummy0".into();
    rig.run("bridge", "ADD", &not_a_bridge, &a).expect_code(7, "a link that is no bridge");
    clean(&rig, "a link that is no bridge");
}

#[test]
fn vlan_filtering_works_or_the_kernel_s_lack_is_told() {
    needs_rig!();
    let rig = Rig::new();
    let mut conf = conf(&rig);
    conf["vlan"] = 100.into();
    let a = Container::new("a");
    let ended = rig.run("bridge", "ADD", &conf, &a);
    if ended.ok {
        let ports = sh("bridge vlan show");
        assert!(ports.contains("100 PVID Egress Untagged"), "{ports}");
        assert!(sh("ip -o addr").contains("br0.100"), "the gateway is in the VLAN");
        rig.run("bridge", "DEL", &conf, &a).expect_ok("DEL");
    } else {
        ended.expect_code(2, "VLAN filtering on a kernel without");
        assert!(
            ended.stdout.contains("VLAN filtering") && ended.stdout.contains("kernel"),
            "{}",
            ended.stdout
        );
    }
    assert_eq!(rig.leases("podnet"), []);
}

#[test]
fn a_full_disk_gives_an_error_and_loses_no_lease() {
    needs_rig!();
    let rig = Rig::new();
    // The mount is for this thread and its children only, and goes with it.
    own_mounts();
    fs::create_dir_all(rig.data_dir()).unwrap();
    sh(&format!("mount -t tmpfs -o size=32k,nr_inodes=100 none {}", rig.data_dir().display()));
    let conf = conf(&rig);
    let mut held = Vec::new();
    for i in 0..100 {
        let container = Container::new(&format!("c{i}"));
        let ended = rig.run("host-local", "ADD", &conf, &container);
        if !ended.ok {
            ended.expect_code(5, "ADD on a full disk");
            break;
        }
        held.push(ended.json["ips"][0]["address"].as_str().unwrap().to_owned());
    }
    assert!(held.len() > 3 && held.len() < 100, "the disk got full after {}", held.len());
    assert_eq!(rig.leases("podnet").len(), held.len());
    for (i, _) in held.iter().enumerate() {
        let container = Container::new(&format!("c{i}"));
        rig.run("host-local", "DEL", &conf, &container).expect_ok("DEL on a full disk");
    }
    assert_eq!(rig.leases("podnet"), []);
    rig.run("host-local", "ADD", &conf, &Container::new("later")).expect_ok("ADD with space again");
}

#[test]
fn exhausted_ranges_and_strange_files_are_told_and_respected() {
    needs_rig!();
    let rig = Rig::new();
    let mut conf = conf(&rig);
    conf["ipam"]["ranges"] = json!([[{"subnet": "10.88.0.0/29"}]]);
    let dir = rig.data_dir().join("podnet");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("10.88.0.2"), "old-style-id").unwrap();
    fs::write(dir.join("10.88.0.3"), "foreign\r\neth0\r\nand more").unwrap();
    fs::write(dir.join("10.88.0.4"), "").unwrap();
    fs::write(dir.join("README"), "not a lease").unwrap();
    fs::write(dir.join("last_reserved_ip.0"), "garbage").unwrap();
    fs::create_dir(dir.join("10.88.0.5")).unwrap();
    let first = rig.run("host-local", "ADD", &conf, &Container::new("a")).expect_ok("ADD");
    assert_eq!(first["ips"][0]["address"], "10.88.0.6/29", "only what is free is given");
    // The empty file's writer died before it told anyone the address.
    let second = rig.run("host-local", "ADD", &conf, &Container::new("b")).expect_ok("ADD");
    assert_eq!(second["ips"][0]["address"], "10.88.0.4/29");
    let ended = rig.run("host-local", "ADD", &conf, &Container::new("c"));
    ended.expect_code(100, "ADD with nothing left");
    assert!(ended.stdout.contains("10.88.0.1-10.88.0.6"), "{}", ended.stdout);
    assert_eq!(fs::read_to_string(dir.join("10.88.0.2")).unwrap(), "old-style-id");
    rig.run("host-local", "DEL", &conf, &Container::new("old-style-id")).expect_ok("DEL of an old lease");
    assert!(!dir.join("10.88.0.2").exists());
    assert!(dir.join("10.88.0.3").exists() && dir.join("README").exists());
}

#[test]
fn a_lock_that_is_held_is_told_after_a_while() {
    needs_rig!();
    let rig = Rig::new();
    let dir = rig.data_dir().join("podnet");
    fs::create_dir_all(&dir).unwrap();
    let lock = fs::File::create(dir.join("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let boot = || keelson_cni::host_local::Boot::now().unwrap();
    let patience = Duration::from_millis(50);
    let Err(failure) = keelson_cni::host_local::Store::open(&dir, patience, boot(), 1) else {
        panic!("the lock was given twice");
    };
    assert_eq!(failure.code, 11);
    assert!(failure.to_string().contains("lock"), "{failure}");
    drop(lock);
    assert!(keelson_cni::host_local::Store::open(&dir, patience, boot(), 1).is_ok());
}

#[test]
fn a_program_that_outlives_its_killed_plugin_leaves_nothing_behind_del() {
    needs_rig!();
    let rig = Rig::new();
    let mut conf = conf(&rig);
    conf["ipMasqBackend"] = "iptables".into();
    let a = Container::new("a");
    // An iptables that says when it is about to make the chain, and waits until it is told to go on.
    let slow = rig.dir.path().join("slow");
    fs::create_dir(&slow).unwrap();
    sh(&format!("mkfifo {0}/began {0}/go", slow.display()));
    let script = r#"#!/bin/sh
case "$*" in *' -N '*) echo $$ >DIR/began; read _ <DIR/go;; esac
PATH=${PATH#*:} exec iptables "$@"
"#;
    fs::write(slow.join("iptables"), script.replace("DIR", slow.to_str().unwrap())).unwrap();
    sh(&format!("chmod +x {}/iptables", slow.display()));

    let mut add = rig.command(&rig.plugins, "bridge", "ADD", &a.id, &a.path());
    add.env("PATH", format!("{}:{}", slow.display(), std::env::var("PATH").unwrap()));
    let mut add = rig::start(add, &conf.to_string());
    let program = fs::read_to_string(slow.join("began")).unwrap();
    add.kill().unwrap();
    add.wait().unwrap();

    let mut del = rig::start(rig.command(&rig.plugins, "bridge", "DEL", &a.id, &a.path()), &conf.to_string());
    let waits = |pid: String| {
        let locks = fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|l| l.contains("->") && l.split_whitespace().any(|word| word == pid))
    };
    // It either waits for the program, or is done and has missed what the program is about to make.
    while !waits(del.id().to_string()) && del.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    fs::write(slow.join("go"), "\n").unwrap();
    assert!(del.wait().unwrap().success());
    let runs = || fs::read(format!("/proc/{}/cmdline", program.trim())).is_ok_and(|line| !line.is_empty());
    while runs() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let rules = sh("nft list ruleset");
    assert!(!rules.contains("CNI-"), "{rules}");
    clean(&rig, "an ADD whose program outlived it");
}

fn own_mounts() {
    use nix::sched::{CloneFlags, unshare};
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).unwrap();
    sh("mount --make-rprivate /");
}
