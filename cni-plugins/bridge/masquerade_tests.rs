use super::*;

#[test]
fn an_address_s_rule_masquerades_only_what_leaves_its_network() {
    for (net, mask, network) in [
        ("10.1.2.3/24", vec![255, 255, 255, 0], vec![10, 1, 2, 0]),
        ("10.1.2.3/16", vec![255, 255, 0, 0], vec![10, 1, 0, 0]),
        ("10.1.2.255/25", vec![255, 255, 255, 128], vec![10, 1, 2, 128]),
        ("10.1.2.3/32", vec![255, 255, 255, 255], vec![10, 1, 2, 3]),
        ("10.1.2.3/0", vec![0, 0, 0, 0], vec![0, 0, 0, 0]),
    ] {
        let net: IpNetwork = net.parse().unwrap();
        let rule = leaves(net);
        let r = register(0);
        assert!(rule.contains(&Expr::And { reg: r, mask }), "{net}: {rule:?}");
        assert!(
            rule.contains(&Expr::Cmp { reg: r, op: Compare::Different, value: network }),
            "{net}: {rule:?}"
        );
        assert_eq!(rule.last(), Some(&Expr::Masquerade));
    }
}

#[test]
fn each_address_is_filed_in_the_map_of_its_family() {
    let owner = Owner { network: "net".into(), container: "abc".into(), ifname: "eth0".into() };
    let chain = plan(&owner, &["10.1.2.3/24".parse().unwrap(), "fd00::3/64".parse().unwrap()]);
    let maps: Vec<_> = chain.rules.iter().map(|r| (r.element.map.as_str(), r.element.key.len())).collect();
    assert_eq!(maps, [("pods4", 4), ("pods6", 16)]);
}
