use serde_json::{Value, json};

use super::*;
use crate::skel::{CniVersion, Env, Json, NetworkName};

fn load(change: Value, args: &str) -> Result<BridgeConf, Failure> {
    let mut conf = json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge"});
    for (key, value) in change.as_object().unwrap() {
        conf[key] = value.clone();
    }
    BridgeConf::load(&Call {
        version: CniVersion::V100,
        network: NetworkName::parse("net").unwrap(),
        conf: Json::deserialize(&conf).unwrap(),
        stdin: Vec::new(),
        netns_path: String::new(),
        netns: None,
        args: args.to_owned(),
        env: Env::default(),
    })
}

#[test]
fn options_that_make_no_sense_are_refused_with_their_name() {
    for (change, key) in [
        (json!({"vlan": 4095}), "vlan"),
        (json!({"vlan": -1}), "vlan"),
        (json!({"mtu": -1}), "mtu"),
        (json!({"mtu": "1500"}), "mtu"),
        (json!({"isGateway": "yes"}), "isGateway"),
        (json!({"bridge": "a/b"}), "bridge"),
        (json!({"bridge": "averyveryverylongname"}), "bridge"),
        (json!({"bridge": ""}), "bridge"),
        (json!({"ipMasqBackend": "ipfw"}), "ipMasqBackend"),
        (json!({"vlanTrunk": [{"minID": 5}]}), "vlanTrunk"),
        (json!({"vlanTrunk": [{"minID": 5, "maxID": 4}]}), "vlanTrunk"),
        (json!({"vlanTrunk": [{"id": 0}]}), "vlanTrunk"),
        (json!({"vlanTrunk": 7}), "vlanTrunk"),
        (json!({"hairpinMode": true, "promiscMode": true}), "hairpinMode"),
        (
            json!({"disableContainerInterface": true, "ipam": {"type": "host-local"}}),
            "disableContainerInterface",
        ),
        (json!({"runtimeConfig": {"mac": "nonsense"}}), "mac"),
        (json!({"ipam": 3}), "ipam"),
    ] {
        let failure = load(change.clone(), "").and_then(|c| c.check_combinations()).unwrap_err();
        assert_eq!(failure.code, Failure::INVALID_CONFIG, "{change}: {failure}");
        assert!(failure.details.contains(key), "{change}: {failure} should name {key}");
    }
}

#[test]
fn a_trunk_is_a_sorted_list_without_duplicates() {
    let conf = load(json!({"vlanTrunk": [{"id": 102}, {"minID": 100, "maxID": 103}, {}]}), "").unwrap();
    assert_eq!(conf.vlans.trunk, Some(vec![100, 101, 102, 103]));
    assert!(conf.vlans.needs_filtering());
}

#[test]
fn the_runtime_s_mac_goes_before_the_configuration_s_and_that_before_the_environment_s() {
    let mac = |conf: Value, args: &str| load(conf, args).unwrap().mac.map(|m| m.to_string());
    let all =
        json!({"runtimeConfig": {"mac": "02:00:00:00:00:01"}, "args": {"cni": {"mac": "02:00:00:00:00:02"}}});
    assert_eq!(mac(all, "MAC=02:00:00:00:00:03").as_deref(), Some("02:00:00:00:00:01"));
    let two = json!({"args": {"cni": {"mac": "02:00:00:00:00:02"}}});
    assert_eq!(mac(two, "MAC=02:00:00:00:00:03").as_deref(), Some("02:00:00:00:00:02"));
    assert_eq!(mac(json!({}), "MAC=02:00:00:00:00:03").as_deref(), Some("02:00:00:00:00:03"));
    assert_eq!(mac(json!({}), ""), None);
}

#[test]
fn a_default_gateway_is_a_gateway() {
    assert!(load(json!({"isDefaultGateway": true}), "").unwrap().is_gateway);
}
