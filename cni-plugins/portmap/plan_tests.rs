use super::*;
use crate::portmap::conf::{Backend, Protocol};

fn conf(mappings: Vec<Mapping>) -> PortmapConf {
    PortmapConf {
        backend: Backend::Own,
        snat: true,
        masquerade_all: false,
        mark_bit: 13,
        set_mark_chain: None,
        conditions_v4: Vec::new(),
        conditions_v6: Vec::new(),
        mappings,
    }
}

fn web(host_ip: Option<&str>) -> Mapping {
    Mapping {
        protocol: Protocol::Tcp,
        host_port: 8080,
        container_port: 80,
        host_ip: host_ip.map(|ip| ip.parse().unwrap()),
    }
}

fn owner() -> Owner {
    Owner { network: "net".into(), container: "abc".into(), ifname: "eth0".into() }
}

#[test]
fn a_mapping_is_found_by_the_address_it_is_for() {
    let both: Vec<IpNetwork> = vec!["10.1.2.3/24".parse().unwrap(), "fd00::3/64".parse().unwrap()];
    for (host_ip, maps) in [
        (None, vec!["any4", "any6"]),
        (Some("0.0.0.0"), vec!["any4"]),
        (Some("::"), vec!["any6"]),
        (Some("192.0.2.1"), vec!["at4"]),
        (Some("2001:db8::1"), vec!["at6"]),
    ] {
        let chains = chains(&owner(), &conf(vec![web(host_ip)]), &both, |_| Vec::new());
        let found: Vec<_> = chains[0].rules.iter().map(|r| r.element.map.clone()).collect();
        assert_eq!(found, maps, "{host_ip:?}");
        for rule in &chains[0].rules {
            let len = match rule.element.map.as_str() {
                "at4" => 12,
                "at6" => 24,
                _ => 8,
            };
            assert_eq!(rule.element.key.len(), len, "{host_ip:?}");
        }
    }
}

#[test]
fn masquerading_covers_the_container_s_network_and_loopback_or_everything() {
    let v4: IpNetwork = "10.1.2.3/24".parse().unwrap();
    let snat = |conf: &PortmapConf, net: IpNetwork| {
        chains(&owner(), conf, &[net], |_| Vec::new()).get(1).map_or(0, |c| c.rules.len())
    };
    assert_eq!(snat(&conf(vec![web(None)]), v4), 2);
    assert_eq!(snat(&conf(vec![web(None)]), "fd00::3/64".parse().unwrap()), 1);
    assert_eq!(snat(&PortmapConf { masquerade_all: true, ..conf(vec![web(None)]) }, v4), 2);
    assert_eq!(snat(&PortmapConf { snat: false, ..conf(vec![web(None)]) }, v4), 0);
    assert_eq!(snat(&conf(vec![web(Some("::"))]), v4), 0);
}

#[test]
fn conditions_come_before_the_rewriting() {
    let condition = Expr::Mark { to: register(0) };
    let chains = chains(&owner(), &conf(vec![web(None)]), &["10.1.2.3/24".parse().unwrap()], |_| {
        vec![condition.clone()]
    });
    let exprs = &chains[0].rules[0].exprs;
    let at = |wanted: &dyn Fn(&Expr) -> bool| exprs.iter().position(wanted).unwrap();
    assert!(at(&|e| *e == condition) < at(&|e| matches!(e, Expr::Dnat { .. })));
}
