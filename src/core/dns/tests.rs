use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::*;

fn pod(spec: Value) -> Pod {
    let mut base = json!({"metadata": {"name": "web-0", "namespace": "shop"}, "spec": {"containers": []}});
    base["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(base).unwrap()
}

fn node() -> NodeDns {
    NodeDns {
        cluster_dns: vec!["10.96.0.10".parse().unwrap()],
        cluster_domain: "cluster.local".into(),
        host: Some(parse_resolv_conf(
            "nameserver 192.0.2.53\nsearch corp.example\noptions edns0 timeout:1\n",
        )),
        node_ips: vec!["192.0.2.1".parse().unwrap()],
    }
}

fn shown(dns: &PodDns) -> String {
    format!(
        "{} | {} | {}",
        dns.config.servers.join(" "),
        dns.config.searches.join(" "),
        dns.config.options.join(" ")
    )
}

#[test]
fn the_policy_decides_whom_a_pod_asks() {
    let cluster =
        "10.96.0.10 | shop.svc.cluster.local svc.cluster.local cluster.local corp.example | ndots:5";
    let host = "192.0.2.53 | corp.example | edns0 timeout:1";
    for (what, spec, want) in [
        ("cluster first", json!({"dnsPolicy": "ClusterFirst"}), cluster),
        (
            "cluster first on the host's network is the host's",
            json!({"dnsPolicy": "ClusterFirst", "hostNetwork": true}),
            host,
        ),
        ("unless asked for", json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true}), cluster),
        ("the host's", json!({"dnsPolicy": "Default"}), host),
        (
            "none but its own",
            json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1"], "searches": ["a"], "options": [{"name": "x", "value": "1"}, {"name": "y"}]}}),
            "1.1.1.1 | a | x:1 y",
        ),
        (
            "its own on top, each once, options replaced",
            json!({"dnsPolicy": "ClusterFirst", "dnsConfig": {"nameservers": ["10.96.0.10", "9.9.9.9"], "searches": ["corp.example", "b"], "options": [{"name": "ndots", "value": "2"}]}}),
            "10.96.0.10 9.9.9.9 | shop.svc.cluster.local svc.cluster.local cluster.local corp.example b | ndots:2",
        ),
    ] {
        let got = pod_dns(&pod(spec), &node());
        assert_eq!(shown(&got), want, "{what}");
        assert_eq!(got.warnings, [], "{what}");
    }
}

#[test]
fn without_a_cluster_resolver_the_hosts_is_used_and_said_so() {
    let node = NodeDns { cluster_dns: vec![], ..node() };
    let got = pod_dns(&pod(json!({"dnsPolicy": "ClusterFirst"})), &node);
    assert_eq!(got.config.servers, ["192.0.2.53"]);
    assert_eq!(got.warnings.len(), 1);
    assert_eq!(got.warnings[0].reason, "MissingClusterDNS");
}

#[test]
fn without_a_resolver_file_only_the_local_machine_is_asked() {
    let node = NodeDns { host: None, ..node() };
    let got = pod_dns(&pod(json!({"dnsPolicy": "Default"})), &node);
    assert_eq!(shown(&got), "127.0.0.1 | . | ");
}

#[test]
fn what_a_resolver_cannot_take_is_cut_and_said_so() {
    let own = |servers: usize, searches: Vec<String>| {
        let servers: Vec<_> = (1..=servers).map(|i| format!("10.0.0.{i}")).collect();
        pod_dns(
            &pod(json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": servers, "searches": searches}})),
            &node(),
        )
    };
    let many = own(4, vec![]);
    assert_eq!((many.config.servers.len(), many.warnings.len()), (3, 1));
    let searches = own(1, (0..40).map(|i| format!("d{i}")).collect());
    assert_eq!((searches.config.searches.len(), searches.warnings.len()), (32, 1));
    let long = own(1, vec!["x".repeat(254), "ok".into()]);
    assert_eq!(long.config.searches, ["ok"]);
    let wide = own(1, (0..20).map(|i| format!("{i:02}{}", "y".repeat(198))).collect());
    assert_eq!(wide.config.searches.len(), 10, "2048 characters with the blanks between them");
    assert_eq!(own(3, (0..32).map(|i| format!("d{i}")).collect()).warnings, []);
}

#[test]
fn resolver_files_are_read_as_resolvers_read_them() {
    let text = "# comment\n; other\n\nnameserver 1.1.1.1\nnameserver\n nameserver 2.2.2.2 # x\nsearch a.example. . b\noptions ndots:1 rotate\noptions ndots:3\nsearch last.example.\ndomain ignored\n";
    let got = parse_resolv_conf(text);
    assert_eq!(got.servers, ["1.1.1.1", "2.2.2.2"]);
    assert_eq!(got.searches, ["last.example"]);
    assert_eq!(got.options, ["ndots:3", "rotate"]);
}

#[test]
fn a_pod_is_called_what_its_spec_says() {
    let long = "a".repeat(60) + "-----b";
    let names = |h: &str, d: &str, k: &str| Ok((h.to_owned(), d.to_owned(), k.to_owned()));
    for (what, spec, want) in [
        ("the pod's name", json!({}), names("web-0", "", "web-0")),
        ("its own host name", json!({"hostname": "db"}), names("db", "", "db")),
        (
            "a subdomain",
            json!({"hostname": "db", "subdomain": "sub"}),
            names("db", "sub.shop.svc.cluster.local", "db"),
        ),
        (
            "the full name for the kernel",
            json!({"hostname": "db", "subdomain": "sub", "setHostnameAsFQDN": true}),
            names("db", "sub.shop.svc.cluster.local", "db.sub.shop.svc.cluster.local"),
        ),
        ("the full name needs a domain", json!({"setHostnameAsFQDN": true}), names("web-0", "", "web-0")),
        (
            "an override stands alone",
            json!({"hostnameOverride": "a.b.c", "subdomain": "sub"}),
            names("a.b.c", "", "a.b.c"),
        ),
        (
            "a long one is cut without a dash at its end",
            json!({"hostnameOverride": long}),
            names(&"a".repeat(60), "", &"a".repeat(60)),
        ),
        (
            "no host name",
            json!({"hostname": "Not_A_Name"}),
            Err("pod Hostname \"Not_A_Name\" is not a valid DNS label"),
        ),
        ("no subdomain", json!({"subdomain": "a.b"}), Err("pod Subdomain \"a.b\" is not a valid DNS label")),
        ("no override", json!({"hostnameOverride": "a..b"}), Err("is not a valid DNS subdomain")),
        (
            "too long for the kernel",
            json!({"hostname": "a".repeat(40), "subdomain": "b".repeat(20), "setHostnameAsFQDN": true}),
            Err("is too long (64 characters is the max"),
        ),
    ] {
        let got = pod_names(&pod(spec), "cluster.local");
        match (got, want) {
            (Ok(n), Ok(want)) => assert_eq!((n.hostname, n.domain, n.kernel), want, "{what}"),
            (Err(e), Err(words)) => assert!(e.to_string().contains(words), "{what}: {e}"),
            (got, want) => panic!("{what}: got {got:?}, want {want:?}"),
        }
    }
}

#[test]
fn the_hosts_file_names_the_pod_and_its_aliases() {
    let ips: Vec<IpAddr> = vec!["10.1.0.4".parse().unwrap(), "fd00::4".parse().unwrap()];
    let aliases =
        serde_json::from_value::<Vec<_>>(json!([{"ip": "1.2.3.4", "hostnames": ["x", "y"]}])).unwrap();
    let plain = PodNames { hostname: "web-0".into(), ..Default::default() };
    let text = hosts_file(&ips, &plain, &[]);
    assert!(text.starts_with("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n"));
    assert!(text.ends_with("fe00::2\tip6-allrouters\n10.1.0.4\tweb-0\nfd00::4\tweb-0\n"));

    let full =
        PodNames { hostname: "db".into(), domain: "sub.shop.svc.cluster.local".into(), ..Default::default() };
    let text = hosts_file(&ips[..1], &full, &aliases);
    assert!(text.ends_with(
        "10.1.0.4\tdb.sub.shop.svc.cluster.local\tdb\n\n# Entries added by HostAliases.\n1.2.3.4\tx\ty\n"
    ));

    let host = host_network_hosts_file("127.0.0.1 localhost\n", &aliases);
    assert_eq!(
        host,
        "# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n\n# Entries added by HostAliases.\n1.2.3.4\tx\ty\n"
    );
}
