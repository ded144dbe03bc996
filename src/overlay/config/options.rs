//! The overlay's options, as the command line sets them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Names in comments are flannel's flags.
#[derive(Debug, Clone)]
pub struct Options {
    pub leases: LeaseSource,
    /// --net-config-path
    pub net_config: PathBuf,
    /// --backend, overrides the network configuration.
    pub backend: Option<String>,
    pub interface: InterfaceChoice,
    /// --public-ip
    pub public_v4: Option<Ipv4Addr>,
    /// --public-ipv6
    pub public_v6: Option<Ipv6Addr>,
    pub firewall: FirewallOptions,
    pub files: FileOptions,
    /// --healthz-ip and --healthz-port
    pub health: Option<SocketAddr>,
    /// The root-only socket behind `keelson overlay status`.
    pub socket: PathBuf,
    /// Routes, devices and rules are checked this often, even without a notification.
    pub check_every: Duration,
    /// Each peer is probed this often; None disables probing.
    pub probe_every: Option<Duration>,
}

/// Which nf_tables rules are set.
#[derive(Debug, Clone)]
pub struct FirewallOptions {
    /// --ip-masq
    pub masquerade: bool,
    /// Not --ip-masq-fully-random-disable
    pub random_ports: bool,
    /// --iptables-forward-rules
    pub forward_rules: bool,
    /// Drop what comes to the tunnel from hosts without a lease.
    pub leased_only: bool,
}

/// Where files are written.
#[derive(Debug, Clone)]
pub struct FileOptions {
    /// --subnet-file
    pub subnet_file: PathBuf,
    /// --cni-conf
    pub cni_conf: Option<PathBuf>,
    /// What must outlive a reboot: own subnet and addresses, the last known peers.
    pub state_dir: PathBuf,
}

#[derive(Debug, Clone)]
pub enum LeaseSource {
    Kube(KubeOptions),
    Etcd(EtcdOptions),
    /// One host alone: the first subnet of the network is its own.
    Alone,
}

#[derive(Debug, Clone)]
pub struct KubeOptions {
    /// --kubeconfig-file; without one, the service account of the pod that this runs in.
    pub kubeconfig: Option<PathBuf>,
    /// --kube-api-url
    pub api_url: Option<String>,
    /// --kube-annotation-prefix
    pub annotation_prefix: String,
    pub node_name: String,
    /// --set-node-network-unavailable
    pub clear_network_unavailable: bool,
}

#[derive(Clone)]
pub struct EtcdOptions {
    pub endpoints: Vec<String>,
    pub prefix: String,
    pub key_file: Option<PathBuf>,
    pub cert_file: Option<PathBuf>,
    pub ca_file: Option<PathBuf>,
    pub username: Option<String>,
    pub password: Option<String>,
    /// --subnet-lease-renew-margin
    pub renew_margin: Duration,
    /// --backend, as in [`Options`].
    pub backend: Option<String>,
}

impl std::fmt::Debug for EtcdOptions {
    /// Everything but the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdOptions")
            .field("endpoints", &self.endpoints)
            .field("prefix", &self.prefix)
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

/// Which interface the other hosts are reached by.
#[derive(Debug, Clone, Default)]
pub struct InterfaceChoice {
    /// --iface: names or addresses, the first that is there.
    pub named: Vec<String>,
    /// --iface-regex: against addresses and names, after those above.
    pub matching: Vec<String>,
    /// --iface-can-reach
    pub towards: Option<IpAddr>,
}
