//! A pod's /etc/resolv.conf, as the runtime is told it.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Pod, PodDNSConfig, PodDNSConfigOption};

/// What a resolver can take.
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;
/// A longer search domain makes some resolvers abort.
const MAX_DOMAIN: usize = 253;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DnsConfig {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

/// The node's side of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeDns {
    pub cluster_dns: Vec<IpAddr>,
    pub cluster_domain: String,
    /// From the resolver file, or None when the agent is told to use none.
    pub host: Option<DnsConfig>,
    pub node_ips: Vec<IpAddr>,
}

/// To be told as an event of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsWarning {
    pub reason: &'static str,
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodDns {
    pub config: DnsConfig,
    pub warnings: Vec<DnsWarning>,
}

enum Base {
    Cluster,
    Host,
    None,
}

/// The pod's resolver: what its policy starts from, its own dnsConfig on top, cut to what resolvers can take.
pub fn pod_dns(pod: &Pod, node: &NodeDns) -> PodDns {
    let spec = pod.spec.as_ref();
    let host_network = spec.and_then(|s| s.host_network).unwrap_or(false);
    let mut warnings = vec![];
    let base = match spec.and_then(|s| s.dns_policy.as_deref()) {
        Some("None") => Base::None,
        Some("Default") => Base::Host,
        Some("ClusterFirst") if host_network => Base::Host,
        // An unknown policy cannot pass the API; a pod without one has the default.
        _ => Base::Cluster,
    };
    let mut config = match base {
        Base::None => DnsConfig::default(),
        Base::Cluster if !node.cluster_dns.is_empty() => cluster(pod, node),
        Base::Cluster => {
            warnings.push(DnsWarning {
                reason: "MissingClusterDNS",
                message: "this node has no ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy.".into(),
            });
            host(node)
        }
        Base::Host => host(node),
    };
    if let Some(own) = spec.and_then(|s| s.dns_config.as_ref()) {
        merge(&mut config, own);
    }
    fit(&mut config, &mut warnings);
    PodDns { config, warnings }
}

/// Name servers add up; the last search line wins; an option replaces an earlier one of its name.
pub fn parse_resolv_conf(text: &str) -> DnsConfig {
    let mut config = DnsConfig::default();
    for line in text.lines().map(str::trim).filter(|l| !l.starts_with('#') && !l.starts_with(';')) {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => config.servers.extend(words.next().map(str::to_owned)),
            Some("search") => {
                // With and without its trailing dot a domain is the same one.
                let domains =
                    words.filter(|d| *d != ".").map(|d| d.strip_suffix('.').unwrap_or(d).to_owned());
                config.searches = domains.collect();
            }
            Some("options") => words.for_each(|option| set_option(&mut config.options, option.to_owned())),
            _ => {}
        }
    }
    config
}

fn cluster(pod: &Pod, node: &NodeDns) -> DnsConfig {
    let mut searches = node.host.as_ref().map(|h| h.searches.clone()).unwrap_or_default();
    if !node.cluster_domain.is_empty() {
        let (namespace, domain) =
            (pod.metadata.namespace.as_deref().unwrap_or("default"), &node.cluster_domain);
        let own = [format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.clone()];
        searches = unique(own.into_iter().chain(searches));
    }
    DnsConfig {
        servers: node.cluster_dns.iter().map(IpAddr::to_string).collect(),
        searches,
        options: vec!["ndots:5".into()],
    }
}

fn host(node: &NodeDns) -> DnsConfig {
    if let Some(host) = &node.host {
        return host.clone();
    }
    // Without a resolver file the runtime would take the host's. Only a resolver on the local machine says "none".
    let mut servers: Vec<_> =
        node.node_ips.iter().map(|ip| if ip.is_ipv6() { "::1" } else { "127.0.0.1" }.to_owned()).collect();
    if servers.is_empty() {
        servers.push("127.0.0.1".into());
    }
    DnsConfig { servers, searches: vec![".".into()], options: vec![] }
}

fn merge(config: &mut DnsConfig, own: &PodDNSConfig) {
    let of = |list: &Option<Vec<String>>| list.clone().unwrap_or_default();
    config.servers = unique(config.servers.drain(..).chain(of(&own.nameservers)));
    config.searches = unique(config.searches.drain(..).chain(of(&own.searches)));
    for PodDNSConfigOption { name, value } in own.options.iter().flatten() {
        let name = name.as_deref().unwrap_or_default();
        match value.as_deref().unwrap_or_default() {
            "" => set_option(&mut config.options, name.to_owned()),
            value => set_option(&mut config.options, format!("{name}:{value}")),
        }
    }
}

fn set_option(options: &mut Vec<String>, option: String) {
    let name = |o: &str| o.split(':').next().unwrap_or_default().to_owned();
    match options.iter_mut().find(|o| name(o) == name(&option)) {
        Some(old) => *old = option,
        None => options.push(option),
    }
}

fn fit(config: &mut DnsConfig, warnings: &mut Vec<DnsWarning>) {
    const REASON: &str = "DNSConfigForming";
    if config.servers.len() > MAX_SERVERS {
        config.servers.truncate(MAX_SERVERS);
        let applied = config.servers.join(" ");
        let message = format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {applied}"
        );
        warnings.push(DnsWarning { reason: REASON, message });
    }
    let before = config.searches.len();
    config.searches.truncate(MAX_SEARCHES);
    config.searches.retain(|domain| domain.len() <= MAX_DOMAIN);
    while config.searches.join(" ").len() > MAX_SEARCH_CHARS {
        config.searches.pop();
    }
    if config.searches.len() < before {
        let applied = config.searches.join(" ");
        let message = format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {applied}"
        );
        warnings.push(DnsWarning { reason: REASON, message });
    }
}

fn unique(list: impl Iterator<Item = String>) -> Vec<String> {
    let mut out: Vec<String> = vec![];
    for item in list {
        if !out.contains(&item) {
            out.push(item);
        }
    }
    out
}
