use serde_json::json;

use super::super::conf::tests::call;
use super::*;

fn conf(change: serde_json::Value) -> PortmapConf {
    let mut all = json!({"backend": "iptables", "runtimeConfig": {"portMappings": [
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 53, "containerPort": 5353, "protocol": "udp", "hostIP": "192.0.2.1"}]}});
    for (key, value) in change.as_object().unwrap() {
        all[key] = value.clone();
    }
    PortmapConf::load(&call(all)).unwrap()
}

fn lines(rules: Vec<IptablesRule>) -> Vec<String> {
    rules.iter().map(|r| r.join(" ")).collect()
}

#[test]
fn the_rules_are_those_of_the_reference_plugin() {
    let container = "10.1.2.3/24".parse().unwrap();
    assert_eq!(
        lines(rules(&conf(json!({})), container)),
        [
            "-p tcp --dport 8080 -s 10.1.2.3/24 -j CNI-HOSTPORT-SETMARK",
            "-p tcp --dport 8080 -s 127.0.0.1 -j CNI-HOSTPORT-SETMARK",
            "-p tcp --dport 8080 -j DNAT --to-destination 10.1.2.3:80",
            "-p udp --dport 53 -d 192.0.2.1 -s 10.1.2.3/24 -j CNI-HOSTPORT-SETMARK",
            "-p udp --dport 53 -d 192.0.2.1 -s 127.0.0.1 -j CNI-HOSTPORT-SETMARK",
            "-p udp --dport 53 -d 192.0.2.1 -j DNAT --to-destination 10.1.2.3:5353",
        ]
    );
    assert_eq!(
        lines(rules(
            &conf(json!({"masqAll": true, "externalSetMarkChain": "PLEASE_MASQ"})),
            "fd00::3/64".parse().unwrap()
        )),
        [
            "-p tcp --dport 8080 -s ::/0 -j PLEASE_MASQ",
            "-p tcp --dport 8080 -j DNAT --to-destination [fd00::3]:80"
        ]
    );
    assert_eq!(lines(rules(&conf(json!({"snat": false})), container)).len(), 2);
}

#[test]
fn ports_are_matched_fifteen_at_a_time() {
    let many: Vec<_> =
        (1..=16).map(|p| json!({"hostPort": p, "containerPort": p, "protocol": "tcp"})).collect();
    let owner = Owner { network: "net".into(), container: "abc".into(), ifname: "eth0".into() };
    let conf = conf(json!({"runtimeConfig": {"portMappings": many}, "conditionsV4": ["-s", "192.0.2.9"]}));
    let entries = lines(entries(&owner, &conf, true));
    assert_eq!(entries.len(), 2);
    assert!(entries[1].contains("--destination-ports 16 -s 192.0.2.9 -j CNI-DN-"), "{}", entries[1]);
}
