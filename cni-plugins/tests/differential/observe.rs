//! Everything that can be seen after a plugin has run.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread;

use serde_json::{Map, Value, json};

use crate::cases::Case;
use crate::rig::{self, Container, Rig, feed, inside, listen, reaches, sh_json};

/// Runs a case and describes all that can be seen of it.
pub fn observe(plugins: Option<PathBuf>, case: &Case) -> Value {
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
            // Two containers of one address would take each other's packets.
            if !case.args.is_empty() && c.id == a.id {
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
        seen.insert(
            "interface afterwards".into(),
            inside(&a.netns, || rig::sh("ip -o link")).contains("eth0").into(),
        );
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
    let vlan = vlan_interface();
    for (link, label) in
        [(&inner[0], "MAC of eth0"), (&bridge[0], "MAC of br0"), (&vlan[0], "MAC of br0.100")]
    {
        if link.is_null() {
            continue;
        }
        let mac = link["address"].as_str().unwrap();
        // A MAC that was asked for is compared as it is. One that was made up may begin alike, though not so far.
        if !mac.starts_with("0a:58:0a:58:00:") {
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
            Value::Object(map) => {
                map.iter().map(|(k, v)| (k.clone(), self.apply(v))).collect::<Map<_, _>>().into()
            }
            other => other.clone(),
        }
    }
}

/// The named parts of each of a list's entries.
fn parts(list: &Value, keys: &[&str]) -> Vec<Value> {
    let pick = |entry: &Value| {
        keys.iter().map(|k| ((*k).to_owned(), entry[*k].clone())).collect::<Map<_, _>>().into()
    };
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
        let value =
            std::fs::read_to_string(format!("/proc/sys/net/{name}")).map(|v| v.trim().to_owned()).ok();
        (name.replace(&veth().unwrap_or_default(), "VETH"), json!(value))
    };
    names.iter().map(read).collect::<Map<_, _>>().into()
}

fn veth() -> Option<String> {
    ports().first().and_then(|p| p["ifname"].as_str().map(str::to_owned)).filter(|name| !name.is_empty())
}

fn container_state() -> Value {
    let link = sh_json("ip -j -d link show eth0");
    let names = [
        "ipv4/conf/eth0/arp_notify",
        "ipv6/conf/eth0/accept_dad",
        "ipv6/conf/eth0/disable_ipv6",
        "ipv6/conf/eth0/keep_addr_on_down",
        "ipv6/conf/eth0/enhanced_dad",
        "ipv6/conf/lo/disable_ipv6",
    ];
    json!({
        "link": parts(&link, &["mtu", "operstate", "address", "flags"]),
        "kind": link[0]["linkinfo"]["info_kind"],
        "addresses": addresses("eth0"),
        "routes": routes(),
        "settings": settings(&names.map(str::to_owned)),
    })
}

/// The gateway's interface in the containers' VLAN, or nothing.
fn vlan_interface() -> Value {
    sh_json("ip -j link show dev br0.100 2>/dev/null || true")
}

/// The VLANs of all ports, in no particular order.
fn vlans() -> Value {
    let list = sh_json("bridge -j vlan show");
    let mut all: Vec<String> =
        list.as_array().unwrap().iter().map(|port| port["vlans"].to_string()).collect();
    all.sort();
    json!(all)
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
    let mut names: Vec<String> =
        ["ipv4/ip_forward", "ipv6/conf/all/forwarding", "ipv6/conf/br0/accept_ra"].map(str::to_owned).into();
    names.extend(veth().map(|v| format!("ipv6/conf/{v}/accept_ra")));
    json!({
        "bridge": parts(&bridge, &["mtu", "operstate", "promiscuity", "flags"]),
        "addresses": addresses("br0"),
        "addresses in the VLAN": if vlan_interface()[0].is_null() { Value::Null } else { addresses("br0.100") },
        "vlans": vlans(),
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
