//! Names: what a pod is called, whom it asks for other names, and its /etc/hosts.

mod hosts;
mod names;
mod resolver;
#[cfg(test)]
mod tests;

pub use hosts::{host_network_hosts_file, hosts_file};
pub use names::{HostnameError, PodNames, pod_names};
pub use resolver::{DnsConfig, DnsWarning, NodeDns, PodDns, parse_resolv_conf, pod_dns};
