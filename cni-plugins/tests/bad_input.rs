//! Bad input: every kind ends with the protocol's error, and nothing is touched.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use std::fs;
use std::process::{Command, Stdio};

use rig::{Container, Rig, feed, inside, sh};
use serde_json::{Value, json};

fn conf(rig: &Rig) -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "podnet", "type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true,
        "ipam": {"type": "host-local", "dataDir": rig.data_dir(), "ranges": [[{"subnet": "10.88.0.0/24"}]],
            "routes": [{"dst": "0.0.0.0/0"}]}
    })
}

/// Everything that a plugin could have made on the host or on disk.
fn untouched(rig: &Rig, what: &str) {
    let links = sh("ip -o link");
    assert!(!links.contains("br0") && !links.contains("master"), "{what} made links: {links}");
    assert!(!sh("nft list ruleset").contains("table"), "{what} made rules");
    assert!(!rig.data_dir().exists(), "{what} made {}", rig.data_dir().display());
}

/// What is wrong, the configuration and environment that it is in, and the code to be expected.
type Refused<'a> = (String, Value, Vec<(&'a str, &'a str)>, u64);

#[test]
fn names_that_lead_elsewhere_or_are_too_long_are_refused_and_nothing_is_touched() {
    needs_rig!();
    let rig = Rig::new();
    let a = Container::new("a");
    let long = "x".repeat(300);
    let mut cases: Vec<Refused> = Vec::new();
    for bad in ["../../etc", "a/b", "..", "", ".hidden", "-x", "a b", "nul\u{0}l", "ü", &long] {
        let mut with_name = conf(&rig);
        with_name["name"] = bad.into();
        cases.push((format!("network name {bad:?}"), with_name, vec![], 7));
        if !bad.contains('\0') {
            cases.push((format!("container id {bad:?}"), conf(&rig), vec![("CNI_CONTAINERID", bad)], 4));
        }
    }
    for bad in ["../eth0", "a/b", ".", "..", "", "a b", "a:b", "eth%d", "sixteencharslong"] {
        cases.push((format!("ifname {bad:?}"), conf(&rig), vec![("CNI_IFNAME", bad)], 4));
    }
    for bad in ["../bridge", "/bin/sh", "..", "a\\b", &long] {
        let mut with_type = conf(&rig);
        with_type["type"] = bad.into();
        cases.push((format!("type {bad:?}"), with_type, vec![], 7));
        let mut with_ipam = conf(&rig);
        with_ipam["ipam"]["type"] = bad.into();
        cases.push((format!("ipam.type {bad:?}"), with_ipam, vec![], 7));
    }
    for bad in ["a/b", "..", "", "sixteencharslong"] {
        let mut with_bridge = conf(&rig);
        with_bridge["bridge"] = bad.into();
        cases.push((format!("bridge {bad:?}"), with_bridge, vec![], 7));
    }
    let mut nowhere = conf(&rig);
    nowhere["ipam"]["type"] = "not-installed".into();
    cases.push(("an IPAM plugin that is not there".into(), nowhere, vec![], 7));
    for (what, conf, env, code) in cases {
        for command in ["ADD", "CHECK"] {
            let mut process = rig.command(&rig.plugins, "bridge", command, &a.id, &a.path());
            process.envs(env.iter().copied());
            feed(process, &conf.to_string()).expect_code(code, &format!("{command} with {what}"));
            untouched(&rig, &what);
        }
    }
    assert!(inside(&a.netns, || !sh("ip -o link").contains("eth0")));
}

#[test]
fn what_comes_on_stdin_may_be_anything() {
    needs_rig!();
    let rig = Rig::new();
    let a = Container::new("a");
    let good = conf(&rig).to_string();
    let changed = |pointer: &str, value: Value| {
        let mut c = conf(&rig);
        *c.pointer_mut(pointer).unwrap() = value;
        c.to_string()
    };
    let without = |key: &str| {
        let mut c = conf(&rig);
        c.as_object_mut().unwrap().remove(key);
        c.to_string()
    };
    for (what, stdin, code) in [
        ("nothing", String::new(), 6),
        ("white space", " \n".into(), 6),
        ("half of it", good[..good.len() / 2].to_owned(), 6),
        ("a list", "[]".into(), 6),
        ("not JSON", "\u{1}\u{2}".into(), 6),
        ("deep nesting", "[".repeat(100_000), 6),
        ("an unknown version", changed("/cniVersion", "9.9.9".into()), 1),
        ("a version that is no string", changed("/cniVersion", 1.into()), 6),
        ("no name", without("name"), 7),
        ("a name that is no string", changed("/name", 7.into()), 7),
        ("a type that is no string", changed("/type", json!({})), 7),
        ("a flag that is no flag", changed("/isGateway", "yes".into()), 7),
        ("an ipam that is no object", changed("/ipam", "host-local".into()), 7),
        ("ranges that are no list", changed("/ipam/ranges", json!({})), 7),
        ("an empty range set", changed("/ipam/ranges", json!([[]])), 7),
        ("no ranges", changed("/ipam/ranges", json!([])), 7),
        ("a subnet that is none", changed("/ipam/ranges/0/0/subnet", "10.88.0.0".into()), 7),
        ("a subnet that is too small", changed("/ipam/ranges/0/0/subnet", "10.88.0.0/31".into()), 7),
        ("a route that is none", changed("/ipam/routes/0/dst", "everywhere".into()), 7),
        ("a number that is too large", changed("/isGateway", json!(1e300)), 7),
    ] {
        let ended = feed(rig.command(&rig.plugins, "bridge", "ADD", &a.id, &a.path()), &stdin);
        ended.expect_code(code, &format!("ADD with {what}"));
        untouched(&rig, what);
    }
    for (what, args) in
        [("no pair", "IP"), ("an unknown key", "X=1"), ("no address", "IP=here"), ("no MAC", "MAC=x")]
    {
        let mut process = rig.command(&rig.plugins, "bridge", "ADD", &a.id, &a.path());
        process.env("CNI_ARGS", args);
        let ended = feed(process, &good);
        assert!(
            !ended.ok && ended.json["code"].as_u64().is_some_and(|c| c == 4 || c == 7),
            "{what}: {}",
            ended.stdout
        );
        untouched(&rig, what);
    }
}

#[test]
fn the_environment_may_be_anything() {
    needs_rig!();
    let rig = Rig::new();
    let a = Container::new("a");
    let file = rig.dir.path().join("file");
    fs::write(&file, "").unwrap();
    let usual = || rig.command(&rig.plugins, "bridge", "ADD", &a.id, &a.path());
    for (what, name, value, code) in [
        ("an unknown command", "CNI_COMMAND", "EXPLODE", 4),
        ("a namespace that is not there", "CNI_NETNS", "/nowhere", 4),
        ("a namespace that is a file", "CNI_NETNS", file.to_str().unwrap(), 4),
        ("a namespace that is a directory", "CNI_NETNS", "/", 4),
        ("the plugin's own namespace", "CNI_NETNS", "/proc/self/ns/net", 8),
        ("no path", "CNI_PATH", "", 4),
        ("no container", "CNI_CONTAINERID", "", 4),
        ("no interface", "CNI_IFNAME", "", 4),
        ("no namespace", "CNI_NETNS", "", 4),
    ] {
        let mut process = usual();
        process.env(name, value);
        let ended = feed(process, &conf(&rig).to_string());
        ended.expect_code(code, what);
        if code == 4 {
            assert!(
                ended.json["details"].as_str().unwrap().contains(name),
                "{what} should name {name}: {}",
                ended.stdout
            );
        }
        untouched(&rig, what);
    }
    let mut process = usual();
    process.env("CNI_COMMAND", "DEL").env("CNI_NETNS", "/proc/self/ns/net");
    feed(process, &conf(&rig).to_string()).expect_code(8, "DEL in the plugin's own namespace");
    assert!(sh("ip -o link").contains("uplink"), "the host's links are untouched");

    let mut process = Command::new(rig.plugins.join("bridge"));
    process.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended = feed(process, "");
    assert!(ended.ok && ended.stdout.is_empty(), "without any environment there is usage text and no error");
    assert!(ended.stderr.contains("1.1.0") && ended.stderr.contains("CNI_COMMAND=ADD"), "{}", ended.stderr);
}

#[test]
fn commands_are_refused_where_the_version_has_not_got_them() {
    needs_rig!();
    let rig = Rig::new();
    let a = Container::new("a");
    for plugin in rig::NAMES {
        for (command, too_old) in [("CHECK", "0.3.1"), ("GC", "1.0.0"), ("STATUS", "1.0.0")] {
            let mut c = conf(&rig);
            c["cniVersion"] = too_old.into();
            rig.run(plugin, command, &c, &a).expect_code(1, &format!("{plugin} {command} in {too_old}"));
        }
        let mut process = rig.command(&rig.plugins, plugin, "VERSION", "", "");
        process.env_remove("CNI_PATH");
        let answer = feed(process, r#"{"cniVersion": "0.4.0"}"#).expect_ok("VERSION");
        assert_eq!(answer["cniVersion"], "0.4.0");
        assert_eq!(answer["supportedVersions"].as_array().unwrap().len(), 7);
    }
    let mut c = conf(&rig);
    c["cniVersion"] = "1.1.0".into();
    rig.run("bridge", "STATUS", &c, &a).expect_ok("STATUS");
    c["ipam"]["dataDir"] = "/proc/nowhere".into();
    rig.run("bridge", "STATUS", &c, &a).expect_code(50, "STATUS with no place for leases");
}

#[test]
fn values_of_the_wrong_type_are_refused_by_whoever_reads_them() {
    needs_rig!();
    let rig = Rig::new();
    let a = Container::new("a");
    let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    let result = json!({"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": a.path()}],
        "ips": [{"address": "10.88.0.2/24", "interface": 0}]});
    let portmap = json!({"cniVersion": "1.0.0", "name": "podnet", "type": "portmap", "prevResult": result,
        "runtimeConfig": {"portMappings": ports}});
    let mut cases = Vec::new();
    for wrong in [json!("x"), json!(5), json!([]), json!(true)] {
        for key in ["/prevResult", "/runtimeConfig", "/runtimeConfig/portMappings/0"] {
            cases.push(("portmap", &portmap, key, wrong.clone()));
        }
    }
    cases.push(("portmap", &portmap, "/runtimeConfig/portMappings/0/protocol", json!("")));
    let mut bridge = conf(&rig);
    for key in ["dns", "capabilities", "prevResult", "args", "runtimeConfig"] {
        bridge[key] = json!({});
    }
    for key in
        ["/ipam", "/dns", "/capabilities", "/prevResult", "/args", "/runtimeConfig", "/ipam/ranges/0/0"]
    {
        cases.push(("bridge", &bridge, key, json!([])));
    }
    for (plugin, base, key, wrong) in cases {
        let mut broken = base.clone();
        *broken.pointer_mut(key).unwrap() = wrong.clone();
        rig.run(plugin, "ADD", &broken, &a).expect_code(7, &format!("{plugin} with {key} {wrong}"));
        untouched(&rig, key);
    }
}

#[test]
fn what_was_made_can_be_deleted_with_a_configuration_that_add_refuses() {
    needs_rig!();
    let rig = Rig::new();
    let mut good = conf(&rig);
    good["args"] = json!({});
    for (key, value) in [
        ("/mtu", json!(-1)),
        ("/ipMasqBackend", json!("ipfw")),
        ("/isGateway", json!("yes")),
        ("/vlan", json!(5000)),
        ("/dns", json!([])),
        ("/args", json!([])),
        ("/prevResult", json!(5)),
        ("/ipam/ranges", json!({})),
        ("/ipam/routes", json!([{"dst": "everywhere"}])),
    ] {
        let a = Container::new("a");
        rig.run("bridge", "ADD", &good, &a).expect_ok("ADD");
        let mut broken = good.clone();
        match key.strip_prefix("/ipam/") {
            Some(inner) => broken["ipam"][inner] = value,
            None => broken[&key[1..]] = value,
        }
        let what = format!("with a broken {key}");
        if key != "/prevResult" {
            rig.run("bridge", "ADD", &broken, &Container::new("b")).expect_code(7, &format!("ADD {what}"));
        }
        rig.run("bridge", "DEL", &broken, &a).expect_ok(&format!("DEL {what}"));
        assert_eq!(rig.leases("podnet"), [], "{what}");
        let rules = sh("nft list ruleset");
        assert!(!rules.contains("10.88.0."), "{what}: {rules}");
        assert!(!sh("ip -o link show type veth").contains("master"), "{what}");
    }
    for (key, value) in [
        ("backend", json!("ipfw")),
        ("markMasqBit", json!(99)),
        ("prevResult", json!("x")),
        ("runtimeConfig", json!({"portMappings": [{"hostPort": 0, "containerPort": 80, "protocol": "udp"}]})),
    ] {
        let a = Container::new("a");
        let result = rig.run("bridge", "ADD", &good, &a).expect_ok("ADD");
        let mut portmap = json!({"cniVersion": "1.0.0", "name": "podnet", "type": "portmap", "prevResult": result,
            "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}});
        rig.run("portmap", "ADD", &portmap, &a).expect_ok("portmap ADD");
        portmap[key] = value;
        rig.run("portmap", "ADD", &portmap, &a).expect_code(7, &format!("portmap ADD with a broken {key}"));
        rig.run("portmap", "DEL", &portmap, &a).expect_ok(&format!("portmap DEL with a broken {key}"));
        let rules = sh("nft list ruleset");
        assert!(!rules.contains("8080"), "{key}: {rules}");
        rig.run("bridge", "DEL", &good, &a).expect_ok("DEL");
    }
}
