use serde_json::{Value, json};

use super::*;
use crate::skel::{CniVersion, ContainerId, Env, Interface, IpConfig, Json, NetworkName};

pub(crate) fn call(change: Value) -> Call {
    let mut conf = json!({"cniVersion": "1.0.0", "name": "net", "type": "portmap"});
    for (key, value) in change.as_object().unwrap() {
        conf[key] = value.clone();
    }
    Call {
        version: CniVersion::V100,
        network: NetworkName::parse("net").unwrap(),
        conf: Json::deserialize(&conf).unwrap(),
        stdin: Vec::new(),
        netns_path: String::new(),
        netns: None,
        args: String::new(),
        env: Env::default(),
    }
}

#[test]
fn the_backend_follows_from_the_options_that_only_one_has() {
    for (change, expected) in [
        (json!({}), Ok(Backend::Own)),
        (json!({"backend": "nftables"}), Ok(Backend::Nftables)),
        (json!({"backend": "iptables"}), Ok(Backend::Iptables)),
        (json!({"externalSetMarkChain": "X"}), Ok(Backend::Iptables)),
        (json!({"conditionsV4": ["!", "-d", "192.0.2.0/24"]}), Ok(Backend::Iptables)),
        (json!({"conditionsV6": ["ip6", "saddr", "fd00::/8"]}), Ok(Backend::Own)),
        (json!({"conditionsV4": ["ip", "saddr", "192.0.2.1"], "conditionsV6": ["-d", "fd00::/8"]}), Err(())),
        (json!({"backend": "nftables", "conditionsV4": ["-d", "192.0.2.0/24"]}), Err(())),
        (json!({"backend": "nftables", "externalSetMarkChain": "X"}), Err(())),
        (json!({"backend": "iptables", "conditionsV4": ["ip", "saddr", "192.0.2.1"]}), Err(())),
        (json!({"backend": "pf"}), Err(())),
        (json!({"markMasqBit": 3, "externalSetMarkChain": "X"}), Err(())),
        (json!({"markMasqBit": 32}), Err(())),
    ] {
        assert_eq!(
            PortmapConf::load(&call(change.clone())).map(|c| c.backend).map_err(|_| ()),
            expected,
            "{change}"
        );
    }
}

#[test]
fn mappings_that_make_no_sense_are_refused_with_the_reason() {
    let base = json!({"hostPort": 8080, "containerPort": 80, "protocol": "tcp"});
    let load = |change: &Value| {
        let mut mapping = base.clone();
        for (key, value) in change.as_object().unwrap() {
            mapping[key] = value.clone();
        }
        PortmapConf::load(&call(json!({"runtimeConfig": {"portMappings": [mapping]}})))
    };
    for (change, reason) in [
        (json!({"hostPort": 0}), "hostPort"),
        (json!({"hostPort": 65536}), "hostPort"),
        (json!({"containerPort": -1}), "containerPort"),
        (json!({"protocol": "icmp"}), "protocol"),
        (json!({"hostIP": "nowhere"}), "hostIP"),
    ] {
        let failure = load(&change).unwrap_err();
        assert_eq!(failure.code, Failure::INVALID_CONFIG);
        assert!(failure.details.contains(reason), "{change}: {failure}");
    }
    let mapping = &load(&json!({"protocol": "UDP", "hostIP": "::ffff:192.0.2.1"})).unwrap().mappings[0];
    assert_eq!(mapping.protocol, Protocol::Udp);
    assert!(mapping.is_for(true) && !mapping.is_for(false));
}

#[test]
fn the_container_s_addresses_are_those_on_its_own_interface() {
    let interface = |name: &str, sandbox: &str| Interface {
        name: name.into(),
        sandbox: sandbox.into(),
        ..Default::default()
    };
    let ip =
        |address: &str, interface| IpConfig { interface, address: address.parse().unwrap(), gateway: None };
    let result = CniResult {
        interfaces: vec![interface("eth0", ""), interface("eth0", "/ns"), interface("eth1", "/ns")],
        ips: vec![
            ip("10.0.0.1/24", Some(0)),
            ip("10.0.0.2/24", Some(2)),
            ip("10.0.0.3/24", Some(1)),
            ip("10.0.0.4/24", Some(1)),
            ip("fd00::1/64", None),
        ],
        ..Default::default()
    };
    let at = Attachment { container: ContainerId::parse("a").unwrap(), ifname: "eth0".try_into().unwrap() };
    let (v4, v6) = container_addresses(&result, &at);
    assert_eq!(v4.unwrap().to_string(), "10.0.0.3/24");
    assert_eq!(v6.unwrap().to_string(), "fd00::1/64");
}
