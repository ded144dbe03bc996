//! What a runtime adds to a configuration (CNI's capabilities), in the spellings that runtimes have: CRI-O writes the keys
//! of the conventions, containerd's go-cni those of its Go structs. A plugin finds its own either way, and leaves the
//! others' alone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use keelson_cni::bridge::BridgeConf;
use keelson_cni::host_local::IpamConf;
use keelson_cni::portmap::PortmapConf;
use keelson_cni::skel::{Call, CniVersion, Env, NetworkName};

fn call(conf: &str) -> Call {
    Call {
        version: CniVersion::V100,
        network: NetworkName::parse("net").unwrap(),
        conf: serde_json::from_str(conf).unwrap(),
        stdin: Vec::new(),
        netns_path: String::new(),
        netns: None,
        args: String::new(),
        env: Env::default(),
    }
}

/// All that the plugins made of a configuration.
fn understood(conf: &str) -> Vec<String> {
    let call = call(conf);
    let bridge = BridgeConf::load(&call).unwrap_or_else(|e| panic!("bridge, {conf}: {e}"));
    let portmap = PortmapConf::load(&call).unwrap_or_else(|e| panic!("portmap, {conf}: {e}"));
    let ipam = IpamConf::load(&call).unwrap_or_else(|e| panic!("host-local, {conf}: {e}"));
    let mut seen: Vec<String> = Vec::new();
    seen.extend(bridge.mac.map(|mac| format!("mac {mac}")));
    seen.extend(portmap.mappings.iter().map(|m| {
        let host = m.host_ip.map(|ip| ip.to_string()).unwrap_or_default();
        format!("port {host}:{} {} {}", m.host_port, m.container_port, m.protocol)
    }));
    seen.extend(ipam.requested.iter().map(|ip| format!("ip {ip}")));
    seen.extend(
        ipam.ranges
            .iter()
            .flat_map(|set| &set.0)
            .map(|r| format!("range {r} of {} by {}", r.subnet, r.gateway)),
    );
    seen
}

#[test]
fn every_capability_is_understood_in_every_spelling() {
    const OWN: &str = "range 10.1.0.1-10.1.0.254 of 10.1.0.0/24 by 10.1.0.1";
    let port = "port 192.0.2.1:8080 80 udp";
    let range = "range 10.9.0.10-10.9.0.20 of 10.9.0.0/24 by 10.9.0.9";
    for (capability, expected) in [
        (
            r#""portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "udp", "hostIP": "192.0.2.1"}]"#,
            vec![port],
        ),
        (
            r#""portMappings": [{"HostPort": 8080, "ContainerPort": 80, "Protocol": "udp", "HostIP": "192.0.2.1"}]"#,
            vec![port],
        ),
        (
            r#""PORTMAPPINGS": [{"hostport": 8080, "CONTAINERPORT": 80, "pRoToCoL": "UDP", "hostip": "192.0.2.1"}]"#,
            vec![port],
        ),
        (
            r#""portMappings": [{"HostPort": 1, "hostPort": 8080, "ContainerPort": 80, "Protocol": "udp", "HostIP": "192.0.2.1"}]"#,
            vec![port],
        ),
        (
            r#""ipRanges": [[{"subnet": "10.9.0.0/24", "rangeStart": "10.9.0.10", "rangeEnd": "10.9.0.20", "gateway": "10.9.0.9"}]]"#,
            vec![range],
        ),
        (
            r#""ipRanges": [[{"Subnet": "10.9.0.0/24", "RangeStart": "10.9.0.10", "RangeEnd": "10.9.0.20", "Gateway": "10.9.0.9"}]]"#,
            vec![range],
        ),
        (
            r#""IPRanges": [[{"SUBNET": "10.9.0.0/24", "rangestart": "10.9.0.10", "RangeEnd": "10.9.0.20", "Gateway": "10.9.0.9"}]]"#,
            vec![range],
        ),
        (r#""ips": ["10.1.0.7/24"]"#, vec!["ip 10.1.0.7"]),
        (r#""IPs": ["10.1.0.7/24"]"#, vec!["ip 10.1.0.7"]),
        (r#""mac": "02:00:00:00:00:01""#, vec!["mac 02:00:00:00:00:01"]),
        (r#""MAC": "02:00:00:00:00:01""#, vec!["mac 02:00:00:00:00:01"]),
        // For plugins that are not among these.
        (r#""bandwidth": {"ingressRate": 1, "ingressBurst": 2, "egressRate": 3, "egressBurst": 4}"#, vec![]),
        (r#""bandwidth": {"IngressRate": 1, "IngressBurst": 2, "EgressRate": 3, "EgressBurst": 4}"#, vec![]),
        (r#""dns": {"servers": ["192.0.2.53"], "searches": ["a.b"], "options": ["ndots:2"]}"#, vec![]),
        (r#""dns": {"Servers": ["192.0.2.53"], "Searches": ["a.b"], "Options": ["ndots:2"]}"#, vec![]),
        (r#""infinibandGUID": "c2:11:22:33:44:55:66:77""#, vec![]),
        (r#""cgroupPath": "/kubepods/pod1""#, vec![]),
    ] {
        for runtime_config in ["runtimeConfig", "RuntimeConfig", "runtimeconfig", "RUNTIMECONFIG"] {
            let conf = format!(
                r#"{{"cniVersion": "1.0.0", "name": "net", "type": "x", "ipam": {{"type": "host-local", "subnet": "10.1.0.0/24"}},
                     "{runtime_config}": {{{capability}}}}}"#
            );
            let seen = understood(&conf);
            let (ranges, others): (Vec<_>, Vec<_>) =
                seen.iter().map(String::as_str).partition(|s| s.starts_with("range"));
            let of_runtime: Vec<&str> =
                others.into_iter().chain(ranges.into_iter().filter(|r| *r != OWN)).collect();
            assert_eq!(of_runtime, expected, "{conf}");
            assert!(seen.iter().any(|s| s == OWN), "the configuration's own range is there too: {conf}");
        }
    }
}

#[test]
fn keys_of_the_configuration_itself_are_understood_in_every_spelling() {
    let seen = understood(
        r#"{"Name": "net", "Bridge": "br7", "IPAM": {"Type": "host-local", "Ranges": [[{"Subnet": "10.1.0.0/24", "RANGESTART": "10.1.0.9"}]],
            "DataDir": "/d", "Routes": [{"DST": "0.0.0.0/0", "GW": "10.1.0.1"}]}, "Args": {"CNI": {"IPs": ["10.1.0.77"]}}}"#,
    );
    assert_eq!(seen, ["ip 10.1.0.77", "range 10.1.0.9-10.1.0.254 of 10.1.0.0/24 by 10.1.0.1"]);
    let conf = call(
        r#"{"Bridge": "br7", "isgateway": true, "VLAN": 7, "ipmasq": true, "IPMasqBackend": "iptables"}"#,
    );
    let bridge = BridgeConf::load(&conf).unwrap();
    assert_eq!((bridge.bridge.as_str(), bridge.is_gateway, bridge.vlans.access), ("br7", true, Some(7)));
    assert!(bridge.masquerade.is_some());
    let previous = call(
        r#"{"PrevResult": {"CNIVersion": "1.0.0", "IPs": [{"Address": "10.1.0.5/24", "Interface": 0}],
            "Interfaces": [{"Name": "eth0", "Sandbox": "/ns"}], "DNS": {"Nameservers": ["192.0.2.53"]}}}"#,
    );
    let result = previous.previous_result().unwrap().unwrap();
    assert_eq!((result.ips[0].address.to_string(), result.ips[0].interface), ("10.1.0.5/24".into(), Some(0)));
    assert_eq!(
        (result.interfaces[0].name.as_str(), result.dns.nameservers[0].as_str()),
        ("eth0", "192.0.2.53")
    );
    let collected = call(r#"{"CNI.dev/valid-attachments": [{"ContainerID": "a", "IfName": "eth0"}]}"#);
    assert_eq!(collected.valid_attachments().unwrap()[0].container, "a");
}
