//! host-local alone: addresses given, and files on disk.

use std::collections::BTreeMap;
use std::path::PathBuf;

use keelson_require::require;
use serde_json::{Map, Value, json};

use crate::cases::VERSIONS;
use crate::compare;
use crate::rig::{self, feed};

/// Several containers come and go; what they get and what is on disk is noted after each step.
fn lease_story(plugins: Option<PathBuf>, conf: &Value, args: &str) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let rig_plugins = dir.path().join("plugins");
    std::fs::create_dir(&rig_plugins).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_keelson-cni"), rig_plugins.join("host-local")).unwrap();
    let plugins = plugins.unwrap_or(rig_plugins);
    let data = dir.path().join("data");
    let mut conf = conf.clone();
    conf["ipam"]["dataDir"] = json!(data);
    let mut story = Map::new();
    let steps = [
        ("ADD", "a"),
        ("ADD", "b"),
        ("ADD", "a"),
        ("DEL", "a"),
        ("DEL", "a"),
        ("ADD", "c"),
        ("CHECK", "c"),
        ("CHECK", "a"),
        ("ADD", "d"),
        ("ADD", "e"),
        ("DEL", "b"),
    ];
    for (i, (command, id)) in steps.into_iter().enumerate() {
        let mut process = std::process::Command::new(plugins.join("host-local"));
        process
            .env_clear()
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", id)
            .env("CNI_NETNS", "/nowhere");
        process.env("CNI_IFNAME", "eth0").env("CNI_PATH", &plugins).env("CNI_ARGS", args);
        process
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        let ended = feed(process, &conf.to_string());
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(data.join("podnet")).into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().unwrap();
            if entry.file_type().unwrap().is_file() {
                files.insert(name, std::fs::read_to_string(entry.path()).unwrap());
            }
        }
        let result = if ended.ok { ended.json } else { Value::Null };
        story.insert(
            format!("{i:02} {command} {id}"),
            json!({"succeeds": ended.ok, "result": result, "files": files}),
        );
    }
    Value::Object(story)
}

#[test]
fn leases_on_disk_and_addresses_given_are_the_reference_s() {
    let reference = require!(rig::reference());
    let resolv = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&resolv, "nameserver 192.0.2.53\nsearch a.example b.example\noptions ndots:5\n").unwrap();
    let one = json!({"subnet": "10.88.0.0/29"});
    let mut different = Vec::new();
    for (name, ipam, more, args) in [
        ("one subnet", one.clone(), json!({}), ""),
        (
            "ranges",
            json!({"ranges": [[{"subnet": "10.88.0.0/30"}, {"subnet": "10.89.0.0/30"}]]}),
            json!({}),
            "",
        ),
        (
            "dual stack",
            json!({"ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]]}),
            json!({}),
            "",
        ),
        (
            "start, end and gateway",
            json!({"subnet": "10.88.0.0/24", "rangeStart": "10.88.0.10", "rangeEnd": "10.88.0.12", "gateway": "10.88.0.11"}),
            json!({}),
            "",
        ),
        ("a gateway elsewhere", json!({"subnet": "10.88.0.0/29", "gateway": "192.0.2.1"}), json!({}), ""),
        (
            "routes and resolv.conf",
            json!({"subnet": "10.88.0.0/29", "routes": [{"dst": "0.0.0.0/0", "gw": "10.88.0.1"}, {"dst": "10.0.0.0/8", "mtu": 1400, "advmss": 1300, "priority": 5, "table": 7, "scope": 253}], "resolvConf": resolv.path()}),
            json!({}),
            "",
        ),
        ("requested by the environment", one.clone(), json!({}), "IgnoreUnknown=1;IP=10.88.0.5"),
        ("requested with a prefix", one.clone(), json!({}), "IP=10.88.0.5/29"),
        ("requested by args", one.clone(), json!({"args": {"cni": {"ips": ["10.88.0.4"]}}}), ""),
        ("requested by the runtime", one.clone(), json!({"runtimeConfig": {"ips": ["10.88.0.6"]}}), ""),
        ("requested outside", one.clone(), json!({"runtimeConfig": {"ips": ["10.99.0.6"]}}), ""),
        ("requested the gateway", one.clone(), json!({"runtimeConfig": {"ips": ["10.88.0.1"]}}), ""),
        (
            "requested two of one set",
            one.clone(),
            json!({"runtimeConfig": {"ips": ["10.88.0.2", "10.88.0.3"]}}),
            "",
        ),
        (
            "ranges by the runtime",
            json!({}),
            json!({"runtimeConfig": {"ipRanges": [[{"subnet": "10.90.0.0/29"}]]}}),
            "",
        ),
        (
            "ranges by the runtime and others",
            one.clone(),
            json!({"runtimeConfig": {"ipRanges": [[{"subnet": "fd00:90::/125"}]]}}),
            "",
        ),
        (
            "overlapping ranges",
            json!({"ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "10.88.0.0/25"}]]}),
            json!({}),
            "",
        ),
        (
            "mixed families",
            json!({"ranges": [[{"subnet": "10.88.0.0/24"}, {"subnet": "fd00::/64"}]]}),
            json!({}),
            "",
        ),
        ("host bits", json!({"subnet": "10.88.0.1/24"}), json!({}), ""),
        ("too small", json!({"subnet": "10.88.0.0/31"}), json!({}), ""),
        (
            "start after end",
            json!({"subnet": "10.88.0.0/24", "rangeStart": "10.88.0.9", "rangeEnd": "10.88.0.8"}),
            json!({}),
            "",
        ),
        ("no ranges", json!({}), json!({}), ""),
        (
            "two of a family in an old version",
            json!({"ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "10.89.0.0/24"}]]}),
            json!({"cniVersion": "0.2.0"}),
            "",
        ),
        ("arguments that are unknown", one.clone(), json!({}), "X=1"),
        ("IPv4 in IPv6 clothing", one.clone(), json!({"runtimeConfig": {"ips": ["::ffff:10.88.0.5"]}}), ""),
    ] {
        for version in VERSIONS {
            let mut conf = json!({"cniVersion": version, "name": "podnet", "type": "bridge", "ipam": ipam});
            conf["ipam"]["type"] = "host-local".into();
            for (key, value) in more.as_object().unwrap() {
                conf[key] = value.clone();
            }
            let theirs = lease_story(Some(reference.clone()), &conf, args);
            let ours = lease_story(None, &conf, args);
            compare(&format!("{name}, {version}"), "", &theirs, &ours, &mut different);
        }
    }
    assert!(different.is_empty(), "{} differences:\n{}", different.len(), different.join("\n"));
}
