//! Our plugins and the reference ones side by side: the same configuration, environment and starting
//! state through both, and everything that can be seen afterwards compared.
//!
//! Differences that are meant, and therefore not compared, are listed in the README under "Differences".
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rig::{Container, Rig, feed, inside, listen, reaches, sh_json};
use serde_json::{Map, Value, json};

/// One configuration to be tried.
#[derive(Clone)]
struct Case {
    name: String,
    conf: Value,
    args: &'static str,
    /// Shell lines that prepare the host.
    before: &'static str,
    /// Whether the containers are expected to reach anything at all.
    reachable: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Families {
    V4,
    V6,
    Dual,
}

const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

fn base(families: Families) -> Value {
    let mut ranges = Vec::new();
    let mut routes = Vec::new();
    if families != Families::V6 {
        ranges.push(json!([{"subnet": "10.88.0.0/24"}]));
        routes.push(json!({"dst": "0.0.0.0/0"}));
    }
    if families != Families::V4 {
        ranges.push(json!([{"subnet": "fd00:88::/64"}]));
        routes.push(json!({"dst": "::/0"}));
    }
    json!({"cniVersion": "1.0.0", "name": "podnet", "type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true,
        "ipam": {"type": "host-local", "dataDir": "DATADIR", "ranges": ranges, "routes": routes}})
}

/// The options to be tried, each as changes to the base configuration.
fn options() -> Vec<(&'static str, Value, &'static str, &'static str)> {
    vec![
        ("as it is", json!({}), "", ""),
        ("no gateway", json!({"isGateway": false, "ipMasq": false}), "", ""),
        ("no masquerading", json!({"ipMasq": false}), "", ""),
        ("masquerading by iptables", json!({"ipMasqBackend": "iptables"}), "", ""),
        ("masquerading by nftables", json!({"ipMasqBackend": "nftables"}), "", ""),
        ("default gateway", json!({"isGateway": false, "isDefaultGateway": true, "/ipam/routes": []}), "", ""),
        ("hairpin", json!({"hairpinMode": true}), "", ""),
        ("promiscuous", json!({"promiscMode": true}), "", ""),
        ("port isolation", json!({"portIsolation": true}), "", ""),
        ("mtu", json!({"mtu": 1400}), "", ""),
        ("mac by the runtime", json!({"runtimeConfig": {"mac": "0a:58:0a:58:00:07"}}), "", ""),
        ("mac by args", json!({"args": {"cni": {"mac": "0a:58:0a:58:00:08"}}}), "", ""),
        ("mac by the environment", json!({}), "IgnoreUnknown=1;MAC=0a:58:0a:58:00:09", ""),
        ("mac spoof check", json!({"macspoofchk": true}), "", ""),
        ("duplicate address detection", json!({"enabledad": true}), "", ""),
        ("dns of the network", json!({"dns": {"nameservers": ["192.0.2.53"], "search": ["a.example"]}}), "", ""),
        ("a bridge that is there", json!({}), "", "ip link add br0 type bridge && ip link set br0 up"),
        ("a bridge that is there and down", json!({}), "", "ip link add br0 type bridge"),
        ("a bridge with another address", json!({}), "", "ip link add br0 type bridge && ip addr add 10.99.0.1/24 dev br0 && ip addr add fd00:88::9/48 dev br0 nodad && ip link set br0 up"),
        ("a bridge with another address, forced", json!({"forceAddress": true}), "", "ip link add br0 type bridge && ip addr add 10.99.0.1/24 dev br0 && ip addr add fd00:88::9/48 dev br0 nodad && ip link set br0 up"),
        ("hairpin and promiscuous", json!({"hairpinMode": true, "promiscMode": true}), "", ""),
        ("layer two only", json!({"ipam": {}, "ipMasq": false}), "", ""),
        ("no container interface", json!({"ipam": {}, "ipMasq": false, "disableContainerInterface": true}), "", ""),
        ("no container interface, but addresses", json!({"disableContainerInterface": true}), "", ""),
        ("an invalid vlan", json!({"vlan": 5000}), "", ""),
        ("a route with metric and table", json!({"/ipam/routes": [{"dst": "198.51.100.0/24", "priority": 50, "table": 100}, {"dst": "2001:db8:1::/48", "priority": 50, "table": 100}]}), "", ""),
        ("a route with a gateway of its own", json!({"/ipam/routes": [{"dst": "198.51.100.0/24", "gw": "10.88.0.9"}]}), "", ""),
    ]
}

fn case(name: String, mut conf: Value, change: &Value, args: &'static str, before: &'static str) -> Case {
    for (key, value) in change.as_object().unwrap() {
        match key.starts_with('/') {
            true => *conf.pointer_mut(key).unwrap() = value.clone(),
            false => conf[key] = value.clone(),
        }
    }
    let reachable = conf["ipam"]["type"].is_string() && (conf["isGateway"] == true || conf["isDefaultGateway"] == true);
    Case { name, conf, args, before, reachable }
}

fn matrix() -> Vec<Case> {
    let mut cases = Vec::new();
    for (families, label) in [(Families::V4, "IPv4"), (Families::V6, "IPv6"), (Families::Dual, "dual stack")] {
        for version in VERSIONS {
            let change = json!({"cniVersion": version});
            cases.push(case(format!("version {version}, {label}"), base(families), &change, "", ""));
        }
        for (name, change, args, before) in options() {
            // The route's gateway is an IPv4 one.
            if !(families == Families::V6 && name.contains("gateway of its own")) {
                cases.push(case(format!("{name}, {label}"), base(families), &change, args, before));
            }
        }
    }
    cases
}

/// Runs a case and describes all that can be seen of it.
fn observe(plugins: Option<PathBuf>, case: &Case) -> Value {
    let case = case.clone();
    thread::spawn(move || {
        let rig = Rig::new();
        let plugins = plugins.unwrap_or_else(|| rig.plugins.clone());
        if !case.before.is_empty() {
            rig::sh(case.before);
        }
        let mut conf = case.conf.clone();
        if conf["ipam"]["dataDir"].is_string() {
            conf["ipam"]["dataDir"] = json!(rig.data_dir());
        }
        let (a, b) = (Container::new("a"), Container::new("b"));
        let call = |command: &str, conf: &Value, c: &Container| {
            let mut process = rig.command(&plugins, "bridge", command, &c.id, &c.path());
            if !case.args.is_empty() {
                process.env("CNI_ARGS", case.args);
            }
            feed(process, &conf.to_string())
        };
        let mut seen = Map::new();
        let ended = call("ADD", &conf, &a);
        seen.insert("ADD succeeds".into(), ended.ok.into());
        if ended.ok {
            let names = normalizer(&a);
            seen.insert("result".into(), names.apply(&ended.json));
            seen.insert("leases".into(), json!(rig.leases("podnet")));
            seen.insert("container".into(), names.apply(&inside(&a.netns, container_state)));
            seen.insert("host".into(), names.apply(&host_state()));
            if case.reachable {
                let second = call("ADD", &without_mac(&conf), &b);
                seen.insert("second ADD succeeds".into(), second.ok.into());
                seen.insert("reached".into(), reachability(&rig, &a, &b, &case.conf));
            }
            let mut checked = conf.clone();
            checked["prevResult"] = ended.json.clone();
            seen.insert("CHECK succeeds".into(), call("CHECK", &checked, &a).ok.into());
        }
        for c in [&a, &b] {
            let ended = call("DEL", &conf, c);
            seen.insert(format!("DEL of {} succeeds", c.id), ended.ok.into());
        }
        seen.insert("leases afterwards".into(), json!(rig.leases("podnet")));
        seen.insert("ports afterwards".into(), ports().len().into());
        seen.insert("interface afterwards".into(), inside(&a.netns, || rig::sh("ip -o link")).contains("eth0").into());
        Value::Object(seen)
    })
    .join()
    .unwrap()
}

/// A second container needs a MAC of its own.
fn without_mac(conf: &Value) -> Value {
    let mut conf = conf.clone();
    for key in ["runtimeConfig", "args"] {
        conf.as_object_mut().unwrap().remove(key);
    }
    conf
}

/// Replaces what is different on every run: names and MACs that were made up, and paths.
struct Normalizer {
    words: BTreeMap<String, String>,
}

fn normalizer(container: &Container) -> Normalizer {
    let mut words = BTreeMap::from([(container.path(), "NETNS".to_owned())]);
    let inner = inside(&container.netns, || sh_json("ip -j link show eth0"));
    let bridge = sh_json("ip -j link show br0");
    for (link, label) in [(&inner[0], "MAC of eth0"), (&bridge[0], "MAC of br0")] {
        let mac = link["address"].as_str().unwrap();
        // A MAC that was asked for is compared as it is.
        if !mac.starts_with("0a:58:") {
            words.insert(mac.to_owned(), label.to_owned());
        }
    }
    for port in ports() {
        words.insert(port["ifname"].as_str().unwrap().to_owned(), "VETH".to_owned());
        words.insert(port["address"].as_str().unwrap().to_owned(), "MAC of VETH".to_owned());
    }
    Normalizer { words }
}

impl Normalizer {
    fn apply(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => self.words.get(text).cloned().unwrap_or_else(|| text.clone()).into(),
            Value::Array(items) => items.iter().map(|v| self.apply(v)).collect(),
            Value::Object(map) => map.iter().map(|(k, v)| (k.clone(), self.apply(v))).collect::<Map<_, _>>().into(),
            other => other.clone(),
        }
    }
}

/// The named parts of each of a list's entries.
fn parts(list: &Value, keys: &[&str]) -> Vec<Value> {
    let pick = |entry: &Value| keys.iter().map(|k| ((*k).to_owned(), entry[*k].clone())).collect::<Map<_, _>>().into();
    list.as_array().unwrap().iter().map(pick).collect()
}

fn addresses(of: &str) -> Value {
    let links = sh_json(&format!("ip -j addr show dev {of}"));
    let mut list = parts(&links[0]["addr_info"], &["family", "local", "prefixlen", "scope", "broadcast"]);
    list.retain(|a| a["scope"] != "link");
    json!(list)
}

fn routes() -> Value {
    let mut all = Vec::new();
    for family in ["-4", "-6"] {
        let list = sh_json(&format!("ip -j {family} route show table all"));
        all.extend(parts(&list, &["dst", "gateway", "dev", "metric", "table", "protocol", "scope"]));
    }
    // Local tables follow from the addresses, and link-local ones from the MACs.
    all.retain(|r| r["table"] != "local" && !r["dst"].as_str().unwrap().starts_with("fe80"));
    json!(all)
}

fn settings(names: &[String]) -> Value {
    let read = |name: &String| {
        let value = std::fs::read_to_string(format!("/proc/sys/net/{name}")).map(|v| v.trim().to_owned()).ok();
        (name.replace(&veth().unwrap_or_default(), "VETH"), json!(value))
    };
    names.iter().map(read).collect::<Map<_, _>>().into()
}

fn veth() -> Option<String> {
    ports().first().and_then(|p| p["ifname"].as_str().map(str::to_owned)).filter(|name| !name.is_empty())
}

fn container_state() -> Value {
    let link = sh_json("ip -j -d link show eth0");
    let names = ["ipv4/conf/eth0/arp_notify", "ipv6/conf/eth0/accept_dad", "ipv6/conf/eth0/disable_ipv6", "ipv6/conf/eth0/keep_addr_on_down", "ipv6/conf/eth0/enhanced_dad", "ipv6/conf/lo/disable_ipv6"];
    json!({
        "link": parts(&link, &["mtu", "operstate", "address", "flags"]),
        "kind": link[0]["linkinfo"]["info_kind"],
        "addresses": addresses("eth0"),
        "routes": routes(),
        "settings": settings(&names.map(str::to_owned)),
    })
}

fn ports() -> Vec<Value> {
    let links = sh_json("ip -j -d link show type veth");
    links.as_array().unwrap().iter().filter(|l| l["master"].is_string()).cloned().collect()
}

fn host_state() -> Value {
    let bridge = sh_json("ip -j -d link show br0");
    let ports: Vec<Value> = ports()
        .iter()
        .map(|p| {
            let data = &p["linkinfo"]["info_slave_data"];
            json!({"name": p["ifname"], "master": p["master"], "mtu": p["mtu"], "operstate": p["operstate"],
                "hairpin": data["hairpin"], "isolated": data["isolated"], "state": data["state"]})
        })
        .collect();
    let mut names: Vec<String> = ["ipv4/ip_forward", "ipv6/conf/all/forwarding", "ipv6/conf/br0/accept_ra"].map(str::to_owned).into();
    names.extend(veth().map(|v| format!("ipv6/conf/{v}/accept_ra")));
    json!({
        "bridge": parts(&bridge, &["mtu", "operstate", "promiscuity", "flags"]),
        "addresses": addresses("br0"),
        "ports": ports,
        "routes": routes(),
        "settings": settings(&names),
    })
}

/// Who reaches whom. What is outside sees the host's address when there is masquerading, and answers
/// nobody else, as it knows no way to the containers.
fn reachability(rig: &Rig, a: &Container, b: &Container, conf: &Value) -> Value {
    let mut seen = Map::new();
    let ranges = conf["ipam"]["ranges"].as_array().unwrap().len();
    let has = |family: &str| conf["ipam"]["ranges"].to_string().contains(family);
    let isolated = conf["portIsolation"] == true;
    let mut try_one = |name: &str, server: &keelson_netkit::NetNs, addr: &str| {
        let told = listen(server, addr);
        let reached = reaches(&a.netns, addr);
        let peer = reached.then(|| told.recv().unwrap().to_string());
        seen.insert(name.into(), json!(peer));
    };
    assert!(ranges > 0);
    if has("10.88") {
        if !isolated {
            try_one("pod over IPv4", &b.netns, "10.88.0.3:80");
        }
        try_one("gateway over IPv4", &rig.host, "10.88.0.1:80");
        if conf["ipMasq"] == true && conf["ipam"]["routes"].to_string().contains("0.0.0.0/0") {
            try_one("outside over IPv4", &rig.outside, "192.0.2.2:80");
        }
    }
    if has("fd00") {
        wait_until_assigned("fd00:88::1");
        if !isolated {
            try_one("pod over IPv6", &b.netns, "[fd00:88::3]:80");
        }
        try_one("gateway over IPv6", &rig.host, "[fd00:88::1]:80");
        if conf["ipMasq"] == true && conf["ipam"]["routes"].to_string().contains("::/0") {
            try_one("outside over IPv6", &rig.outside, "[2001:db8::2]:80");
        }
    }
    Value::Object(seen)
}

/// The reference plugin leaves the gateway's address to duplicate address detection, which takes a second.
fn wait_until_assigned(addr: &str) {
    while std::net::UdpSocket::bind((addr, 0)).is_err() {
        thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn everything_that_can_be_seen_is_the_same_as_with_the_reference_plugins() {
    needs_rig!();
    let Some(reference) = rig::reference() else {
        eprintln!("skipped: the reference plugins are not there; tests/parts.sh cni-reference builds them");
        return;
    };
    let wanted = std::env::var("CASE").unwrap_or_default();
    let cases: Vec<Case> = matrix().into_iter().filter(|c| c.name.contains(&wanted)).collect();
    let next = AtomicUsize::new(0);
    let different = Mutex::new(Vec::new());
    // Most of the time goes by waiting for duplicate address detection, so a few run side by side.
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let theirs = observe(Some(reference.clone()), case);
                    let ours = observe(None, case);
                    compare(&case.name, "", &theirs, &ours, &mut different.lock().unwrap());
                }
            });
        }
    });
    let different = different.into_inner().unwrap();
    assert!(different.is_empty(), "{} differences:\n{}", different.len(), different.join("\n"));
}

/// Notes every place where the two differ.
fn compare(case: &str, path: &str, theirs: &Value, ours: &Value, different: &mut Vec<String>) {
    match (theirs, ours) {
        (Value::Object(t), Value::Object(o)) => {
            let keys: std::collections::BTreeSet<_> = t.keys().chain(o.keys()).collect();
            for key in keys {
                let at = |map: &Map<String, Value>| map.get(key.as_str()).cloned().unwrap_or(Value::Null);
                compare(case, &format!("{path}/{key}"), &at(t), &at(o), different);
            }
        }
        _ if theirs == ours => {}
        _ if is_meant(case, path) => {}
        _ => different.push(format!("{case}: {path}: reference {theirs}, ours {ours}")),
    }
}

/// The differences that are meant; the README says why.
fn is_meant(case: &str, path: &str) -> bool {
    match path {
        // The bridge's MAC is set when it is made, and so does not follow the ports.
        "/result/interfaces" => ["no gateway", "layer two only", "no container interface"].iter().any(|c| case.starts_with(c)),
        // The reference's CHECK wants an IPAM plugin even where there is none, and looks in one table only.
        "/CHECK succeeds" => ["layer two only", "no container interface", "a route with metric and table"].iter().any(|c| case.starts_with(c)),
        // An ADD that fails leaves nothing, not even the note of an address it would have given.
        _ if path.ends_with("/files/last_reserved_ip.0") => case.starts_with("requested outside") || case.starts_with("requested two"),
        _ => false,
    }
}

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
    let steps = [("ADD", "a"), ("ADD", "b"), ("ADD", "a"), ("DEL", "a"), ("DEL", "a"), ("ADD", "c"), ("CHECK", "c"), ("CHECK", "a"), ("ADD", "d"), ("ADD", "e"), ("DEL", "b")];
    for (i, (command, id)) in steps.into_iter().enumerate() {
        let mut process = std::process::Command::new(plugins.join("host-local"));
        process.env_clear().env("CNI_COMMAND", command).env("CNI_CONTAINERID", id).env("CNI_NETNS", "/nowhere");
        process.env("CNI_IFNAME", "eth0").env("CNI_PATH", &plugins).env("CNI_ARGS", args);
        process.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let ended = feed(process, &conf.to_string());
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(data.join("podnet")).into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().unwrap();
            if entry.file_type().unwrap().is_file() {
                files.insert(name, std::fs::read_to_string(entry.path()).unwrap());
            }
        }
        let result = if ended.ok { ended.json } else { Value::Null };
        story.insert(format!("{i:02} {command} {id}"), json!({"succeeds": ended.ok, "result": result, "files": files}));
    }
    Value::Object(story)
}

#[test]
fn leases_on_disk_and_addresses_given_are_the_reference_s() {
    let Some(reference) = rig::reference() else {
        eprintln!("skipped: the reference plugins are not there; tests/parts.sh cni-reference builds them");
        return;
    };
    let resolv = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&resolv, "nameserver 192.0.2.53\nsearch a.example b.example\noptions ndots:5\n").unwrap();
    let one = json!({"subnet": "10.88.0.0/29"});
    let mut different = Vec::new();
    for (name, ipam, more, args) in [
        ("one subnet", one.clone(), json!({}), ""),
        ("ranges", json!({"ranges": [[{"subnet": "10.88.0.0/30"}, {"subnet": "10.89.0.0/30"}]]}), json!({}), ""),
        ("dual stack", json!({"ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]]}), json!({}), ""),
        ("start, end and gateway", json!({"subnet": "10.88.0.0/24", "rangeStart": "10.88.0.10", "rangeEnd": "10.88.0.12", "gateway": "10.88.0.11"}), json!({}), ""),
        ("a gateway elsewhere", json!({"subnet": "10.88.0.0/29", "gateway": "192.0.2.1"}), json!({}), ""),
        ("routes and resolv.conf", json!({"subnet": "10.88.0.0/29", "routes": [{"dst": "0.0.0.0/0", "gw": "10.88.0.1"}, {"dst": "10.0.0.0/8", "mtu": 1400, "advmss": 1300, "priority": 5, "table": 7, "scope": 253}], "resolvConf": resolv.path()}), json!({}), ""),
        ("requested by the environment", one.clone(), json!({}), "IgnoreUnknown=1;IP=10.88.0.5"),
        ("requested with a prefix", one.clone(), json!({}), "IP=10.88.0.5/29"),
        ("requested by args", one.clone(), json!({"args": {"cni": {"ips": ["10.88.0.4"]}}}), ""),
        ("requested by the runtime", one.clone(), json!({"runtimeConfig": {"ips": ["10.88.0.6"]}}), ""),
        ("requested outside", one.clone(), json!({"runtimeConfig": {"ips": ["10.99.0.6"]}}), ""),
        ("requested the gateway", one.clone(), json!({"runtimeConfig": {"ips": ["10.88.0.1"]}}), ""),
        ("requested two of one set", one.clone(), json!({"runtimeConfig": {"ips": ["10.88.0.2", "10.88.0.3"]}}), ""),
        ("ranges by the runtime", json!({}), json!({"runtimeConfig": {"ipRanges": [[{"subnet": "10.90.0.0/29"}]]}}), ""),
        ("ranges by the runtime and others", one.clone(), json!({"runtimeConfig": {"ipRanges": [[{"subnet": "fd00:90::/125"}]]}}), ""),
        ("overlapping ranges", json!({"ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "10.88.0.0/25"}]]}), json!({}), ""),
        ("mixed families", json!({"ranges": [[{"subnet": "10.88.0.0/24"}, {"subnet": "fd00::/64"}]]}), json!({}), ""),
        ("host bits", json!({"subnet": "10.88.0.1/24"}), json!({}), ""),
        ("too small", json!({"subnet": "10.88.0.0/31"}), json!({}), ""),
        ("start after end", json!({"subnet": "10.88.0.0/24", "rangeStart": "10.88.0.9", "rangeEnd": "10.88.0.8"}), json!({}), ""),
        ("no ranges", json!({}), json!({}), ""),
        ("two of a family in an old version", json!({"ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "10.89.0.0/24"}]]}), json!({"cniVersion": "0.2.0"}), ""),
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
