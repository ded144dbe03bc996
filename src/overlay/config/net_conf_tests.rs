use super::*;

#[test]
fn flannels_own_examples_are_read_with_its_defaults() {
    let conf = NetConf::parse(r#"{"Network": "10.0.0.7/8"}"#, None).unwrap();
    assert_eq!(conf.v4.map(|n| n.to_string()).as_deref(), Some("10.0.0.0/8"));
    assert_eq!((conf.v6, &conf.backend), (None, &Backend::Udp { port: 8285 }));
    let text = r#"{"Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00::/48",
        "EnableNFTables": true, "Backend": {"Type": "vxlan", "VNI": 7, "DirectRouting": true}}"#;
    let conf = NetConf::parse(text, None).unwrap();
    assert_eq!(conf.networks().count(), 2);
    let Backend::Vxlan(vxlan) = &conf.backend else { panic!("{:?}", conf.backend) };
    assert_eq!((vxlan.vni, vxlan.port, vxlan.direct_routing, vxlan.learning), (7, 8472, true, false));
}

#[test]
fn the_command_line_chooses_another_backend_and_the_written_ports_stay_with_theirs() {
    let text = r#"{"Network": "10.0.0.0/8", "Backend": {"Type": "vxlan", "Port": 4789}}"#;
    let backend = |wanted| NetConf::parse(text, wanted).unwrap().backend;
    assert_eq!(backend(Some("udp")), Backend::Udp { port: 8285 });
    assert_eq!(backend(Some("host-gw")), Backend::HostGw);
    assert!(matches!(backend(None), Backend::Vxlan(Vxlan { port: 4789, .. })));
}

#[test]
fn a_changed_configuration_is_reported_and_a_reformatted_one_is_not() {
    let conf = NetConf::parse(r#"{"Network": "10.0.0.0/8"}"#, None).unwrap();
    let said = |text| conf.differs_from(text, None, "in etcd");
    assert_eq!(said(r#"{ "network": "10.0.0.0/8", "Backend": {"Type": "udp"} }"#), None);
    let other = said(r#"{"Network": "10.1.0.0/16", "Backend": {"Type": "vxlan"}}"#).unwrap();
    assert!(other.contains("10.1.0.0/16") && other.contains("restarted"), "{other}");
    assert!(said("{").unwrap().contains("cannot be used"));
}

#[test]
fn mistakes_are_named_with_what_would_be_right() {
    for (text, words) in [
        ("{", "not JSON"),
        ("{}", "lacks Network"),
        (r#"{"Network": "10.0.0.0"}"#, "a network such as"),
        (r#"{"Network": "fd00::/48"}"#, "other family"),
        (r#"{"Network": "0.0.0.0/0"}"#, "every address"),
        (r#"{"Network": 7}"#, "wrong type"),
        (r#"{"EnableIPv4": false}"#, "both families off"),
        (r#"{"Network": "10.0.0.0/8", "SubnetMin": "x"}"#, "SubnetMin"),
        (r#"{"Network": "10.0.0.0/8", "Backend": {"Type": "ipsec"}}"#, "not supported"),
        (r#"{"Network": "10.0.0.0/8", "Backend": {"Type": "vxlan", "VNI": 16777216}}"#, "VNI"),
        (r#"{"Network": "10.0.0.0/8", "Backend": {"Type": "vxlan", "Fallback": "tcp"}}"#, "Fallback"),
    ] {
        let error = NetConf::parse(text, None).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
}
