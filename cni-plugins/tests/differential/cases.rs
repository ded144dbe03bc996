//! The configurations to be tried.

use keelson_netkit::NetNs;
use keelson_require::Missing;
use serde_json::{Value, json};

use crate::rig::inside;

/// One configuration to be tried.
#[derive(Clone)]
pub struct Case {
    pub name: String,
    pub conf: Value,
    pub args: &'static str,
    /// Shell lines that prepare the host.
    pub before: &'static str,
    /// Whether the containers are expected to reach anything at all.
    pub reachable: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Families {
    V4,
    V6,
    Dual,
}

pub const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

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
        (
            "default gateway",
            json!({"isGateway": false, "isDefaultGateway": true, "/ipam/routes": []}),
            "",
            "",
        ),
        ("hairpin", json!({"hairpinMode": true}), "", ""),
        ("promiscuous", json!({"promiscMode": true}), "", ""),
        ("port isolation", json!({"portIsolation": true}), "", ""),
        ("mtu", json!({"mtu": 1400}), "", ""),
        ("mac by the runtime", json!({"runtimeConfig": {"mac": "0a:58:0a:58:00:07"}}), "", ""),
        ("mac by args", json!({"args": {"cni": {"mac": "0a:58:0a:58:00:08"}}}), "", ""),
        ("mac by the environment", json!({}), "IgnoreUnknown=1;MAC=0a:58:0a:58:00:09", ""),
        ("mac spoof check", json!({"macspoofchk": true}), "", ""),
        ("duplicate address detection", json!({"enabledad": true}), "", ""),
        (
            "dns of the network",
            json!({"dns": {"nameservers": ["192.0.2.53"], "search": ["a.example"]}}),
            "",
            "",
        ),
        ("a bridge that is there", json!({}), "", "ip link add br0 type bridge && ip link set br0 up"),
        ("a bridge that is there and down", json!({}), "", "ip link add br0 type bridge"),
        (
            "a bridge with another address",
            json!({}),
            "",
            "ip link add br0 type bridge && ip addr add 10.99.0.1/24 dev br0 && ip addr add fd00:88::9/48 dev br0 nodad && ip link set br0 up",
        ),
        (
            "a bridge with another address, forced",
            json!({"forceAddress": true}),
            "",
            "ip link add br0 type bridge && ip addr add 10.99.0.1/24 dev br0 && ip addr add fd00:88::9/48 dev br0 nodad && ip link set br0 up",
        ),
        ("hairpin and promiscuous", json!({"hairpinMode": true, "promiscMode": true}), "", ""),
        ("layer two only", json!({"ipam": {}, "ipMasq": false}), "", ""),
        (
            "no container interface",
            json!({"ipam": {}, "ipMasq": false, "disableContainerInterface": true}),
            "",
            "",
        ),
        ("no container interface, but addresses", json!({"disableContainerInterface": true}), "", ""),
        ("vlan", json!({"vlan": 100}), "", ""),
        ("vlan and the bridge's own", json!({"vlan": 100, "preserveDefaultVlan": true}), "", ""),
        (
            "vlan and trunk",
            json!({"vlan": 100, "vlanTrunk": [{"id": 101}, {"minID": 103, "maxID": 105}]}),
            "",
            "",
        ),
        ("vlan trunk alone", json!({"vlanTrunk": [{"id": 101}]}), "", ""),
        ("an invalid vlan", json!({"vlan": 5000}), "", ""),
        (
            "a route with metric and table",
            json!({"/ipam/routes": [{"dst": "198.51.100.0/24", "priority": 50, "table": 100}, {"dst": "2001:db8:1::/48", "priority": 50, "table": 100}]}),
            "",
            "",
        ),
        (
            "a route with a gateway of its own",
            json!({"/ipam/routes": [{"dst": "198.51.100.0/24", "gw": "10.88.0.9"}]}),
            "",
            "",
        ),
    ]
}

fn case(name: String, mut conf: Value, change: &Value, args: &'static str, before: &'static str) -> Case {
    for (key, value) in change.as_object().unwrap() {
        match key.starts_with('/') {
            true => *conf.pointer_mut(key).unwrap() = value.clone(),
            false => conf[key] = value.clone(),
        }
    }
    let reachable =
        conf["ipam"]["type"].is_string() && (conf["isGateway"] == true || conf["isDefaultGateway"] == true);
    Case { name, conf, args, before, reachable }
}

pub fn matrix() -> Vec<Case> {
    let mut cases = Vec::new();
    for (families, label) in [(Families::V4, "IPv4"), (Families::V6, "IPv6"), (Families::Dual, "dual stack")]
    {
        for version in VERSIONS {
            let change = json!({"cniVersion": version});
            cases.push(case(format!("version {version}, {label}"), base(families), &change, "", ""));
        }
        for (name, change, args, before) in options() {
            if name.starts_with("vlan") && !vlan_filtering() {
                let remedy = "cni-plugins/tests/in_machine.sh runs these cases on a kernel that has it";
                keelson_require::skip(&Missing::by_nature("bridge VLAN filtering", remedy));
                continue;
            }
            // The route's gateway is an IPv4 one.
            if !(families == Families::V6 && name.contains("gateway of its own")) {
                cases.push(case(format!("{name}, {label}"), base(families), &change, args, before));
            }
        }
    }
    cases
}

/// Whether the kernel can do VLAN filtering; tests/in_machine.sh brings one that can.
fn vlan_filtering() -> bool {
    let line = "ip link add probe0 type bridge vlan_filtering 1 && ip link del probe0";
    let attempt = || std::process::Command::new("sh").args(["-c", line]).output();
    inside(&NetNs::anonymous().unwrap(), attempt).is_ok_and(|output| output.status.success())
}
