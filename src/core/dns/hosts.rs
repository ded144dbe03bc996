//! The /etc/hosts that the containers of a pod share.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::HostAlias;

use super::names::PodNames;

/// The first line tells that an edit does not last.
const HEADER: &str = "# Kubernetes-managed hosts file.\n";
const HEADER_HOST_NETWORK: &str = "# Kubernetes-managed hosts file (host network).\n";

const LOOPBACK: &str = "127.0.0.1\tlocalhost\n\
    ::1\tlocalhost ip6-localhost ip6-loopback\n\
    fe00::0\tip6-localnet\n\
    fe00::0\tip6-mcastprefix\n\
    fe00::1\tip6-allnodes\n\
    fe00::2\tip6-allrouters\n";

/// For a pod with a network of its own.
pub fn hosts_file(ips: &[IpAddr], names: &PodNames, aliases: &[HostAlias]) -> String {
    let mut text = format!("{HEADER}{LOOPBACK}");
    for ip in ips {
        match names.domain.as_str() {
            "" => text.push_str(&format!("{ip}\t{}\n", names.hostname)),
            domain => text.push_str(&format!("{ip}\t{0}.{domain}\t{0}\n", names.hostname)),
        }
    }
    push_aliases(&mut text, aliases);
    text
}

/// For a pod on the host's network: what the host knows, and the pod's aliases below it.
pub fn host_network_hosts_file(of_host: &str, aliases: &[HostAlias]) -> String {
    let mut text = format!("{HEADER_HOST_NETWORK}{of_host}");
    push_aliases(&mut text, aliases);
    text
}

fn push_aliases(text: &mut String, aliases: &[HostAlias]) {
    if aliases.is_empty() {
        return;
    }
    text.push_str("\n# Entries added by HostAliases.\n");
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default();
        text.push_str(&format!("{}\t{}\n", alias.ip, names.join("\t")));
    }
}
