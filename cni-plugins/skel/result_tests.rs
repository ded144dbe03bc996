use super::*;

fn dual_stack() -> CniResult {
    CniResult {
        interfaces: vec![
            Interface { name: "cni0".into(), mac: "00:11:22:33:44:55".into(), ..Default::default() },
            Interface {
                name: "eth0".into(),
                sandbox: "/run/ns".into(),
                mtu: Some(1400),
                ..Default::default()
            },
        ],
        ips: vec![
            IpConfig {
                interface: Some(1),
                address: "10.1.0.5/16".parse().unwrap(),
                gateway: "10.1.0.1".parse().ok(),
            },
            IpConfig { interface: Some(1), address: "fd00::5/64".parse().unwrap(), gateway: None },
        ],
        routes: vec![Route {
            dst: "0.0.0.0/0".parse().unwrap(),
            gw: None,
            mtu: None,
            advmss: None,
            priority: Some(5),
            table: None,
            scope: None,
        }],
        dns: Dns::default(),
    }
}

#[test]
fn each_version_writes_the_result_its_own_way() {
    let json = dual_stack().to_json(CniVersion::V110).unwrap();
    assert_eq!(json["cniVersion"], "1.1.0");
    assert_eq!(json["interfaces"][1]["mtu"], 1400);
    assert_eq!(json["ips"][0]["interface"], 1);
    assert!(json["ips"][0].get("version").is_none());
    assert!(json.get("dns").is_none());

    let json = dual_stack().to_json(CniVersion::V040).unwrap();
    assert_eq!(json["ips"][0]["version"], "4");
    assert_eq!(json["ips"][1]["version"], "6");
    assert!(json["interfaces"][1].get("mtu").is_none());
    assert_eq!(json["dns"], json!({}));

    let json = dual_stack().to_json(CniVersion::V020).unwrap();
    assert_eq!(
        json["ip4"],
        json!({"ip": "10.1.0.5/16", "gateway": "10.1.0.1", "routes": [{"dst": "0.0.0.0/0"}]})
    );
    assert_eq!(json["ip6"], json!({"ip": "fd00::5/64"}));
    assert!(json.get("interfaces").is_none());
}

#[test]
fn results_survive_a_round_trip_through_every_version_that_can_hold_them() {
    for version in [CniVersion::V100, CniVersion::V110] {
        let json = dual_stack().to_json(version).unwrap();
        assert_eq!(
            CniResult::from_json(&Json::deserialize(&json).unwrap(), CniVersion::V010),
            Ok(dual_stack()),
            "{version}"
        );
    }
    for version in [CniVersion::V010, CniVersion::V020] {
        let json = dual_stack().to_json(version).unwrap();
        let back = CniResult::from_json(&Json::deserialize(&json).unwrap(), version).unwrap();
        assert_eq!(back.ips.len(), 2);
        assert_eq!(back.routes.len(), 1);
    }
}

#[test]
fn a_result_without_addresses_does_not_fit_the_oldest_versions() {
    let nothing = CniResult::default();
    let refused = nothing.to_json(CniVersion::V020).unwrap_err();
    assert_eq!(refused.to_string(), "cannot convert: no valid IP addresses", "the reference's words");
    assert!(nothing.to_json(CniVersion::V030).is_ok());
}

#[test]
fn broken_results_are_told_with_the_key() {
    for (json, key) in [
        (json!({"cniVersion": "9.9.9"}), "cniVersion"),
        (json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.1"}]}), "ips"),
        (json!({"cniVersion": "1.0.0", "ips": 7}), "ips"),
        (json!({"cniVersion": "1.0.0", "routes": [{"dst": "0.0.0.0/0", "gw": "nowhere"}]}), "routes"),
        (json!({"cniVersion": "0.2.0", "ip4": {"ip": "x"}}), "ip4"),
    ] {
        let error = CniResult::from_json(&Json::deserialize(&json).unwrap(), CniVersion::V110).unwrap_err();
        assert!(error.contains(key), "{error} should name {key}");
    }
}
