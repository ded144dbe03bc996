//! The overlay's flags: flannel's, with a few of our own, and what they come to.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::ArgMatches;
use keelson_overlay::config::{
    EtcdOptions, FileOptions, FirewallOptions, InterfaceChoice, KubeOptions, LeaseSource, Options,
};

use super::{SOCKET, STATE};

/// Name, form, default, help.
pub(super) type Flag = (&'static str, Form, &'static str, &'static str);

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Form {
    Text,
    Path,
    Switch,
    Many,
}

pub(super) const FLAGS: &[Flag] = &[
    ("kube-subnet-mgr", Form::Switch, "false", "Take leases from Kubernetes instead of etcd"),
    ("kubeconfig-file", Form::Path, "", "How to reach the apiserver; without it, the pod's service account"),
    ("kube-api-url", Form::Text, "", "The apiserver's URL, for a pod that cannot use the service address"),
    (
        "kube-annotation-prefix",
        Form::Text,
        "flannel.alpha.coreos.com",
        "What the names of annotations begin with",
    ),
    ("node-name", Form::Text, "", "This node's name [default: NODE_NAME, else the machine's]"),
    (
        "set-node-network-unavailable",
        Form::Switch,
        "true",
        "Clear the Node's condition NetworkUnavailable when ready",
    ),
    (
        "net-config-path",
        Form::Path,
        "/etc/kube-flannel/net-conf.json",
        "The network configuration, unless etcd has it",
    ),
    (
        "backend",
        Form::Text,
        "",
        "udp, vxlan, host-gw or none, instead of what the network configuration says",
    ),
    ("etcd-endpoints", Form::Text, "http://127.0.0.1:4001,http://127.0.0.1:2379", "Separated by commas"),
    ("etcd-prefix", Form::Text, "/coreos.com/network", "Prefix of flannel's keys in etcd"),
    ("etcd-keyfile", Form::Path, "", "Key of the client certificate for etcd"),
    ("etcd-certfile", Form::Path, "", "Client certificate for etcd"),
    ("etcd-cafile", Form::Path, "", "Certificate authority that etcd's certificate is checked against"),
    ("etcd-username", Form::Text, "", "User at etcd"),
    (
        "etcd-password",
        Form::Text,
        "",
        "Its password; better in FLANNELD_ETCD_PASSWORD, which others cannot see",
    ),
    (
        "subnet-lease-renew-margin",
        Form::Text,
        "60",
        "Renew the lease in etcd this many minutes before it ends",
    ),
    ("iface", Form::Many, "", "Name or address of the interface to other hosts; the first that is there"),
    ("iface-regex", Form::Many, "", "The same by regular expression, tried after those"),
    ("iface-can-reach", Form::Text, "", "The interface that packets to this address leave by"),
    ("public-ip", Form::Text, "", "The address that other hosts reach this one by"),
    ("public-ipv6", Form::Text, "", "The same for IPv6"),
    ("subnet-file", Form::Path, "/run/flannel/subnet.env", "Where this host's subnet and MTU are written"),
    (
        "cni-conf",
        Form::Path,
        "",
        "Write a CNI network (bridge, host-local, portmap) there when the network is ready",
    ),
    ("ip-masq", Form::Switch, "false", "Give what leaves the pod network this host's address"),
    ("ip-masq-fully-random-disable", Form::Switch, "false", "Do not choose ports at random for that"),
    ("iptables-forward-rules", Form::Switch, "true", "Accept forwarded pod traffic"),
    ("leased-only", Form::Switch, "true", "Drop what comes to the VXLAN port from hosts without a lease"),
    ("healthz-ip", Form::Text, "0.0.0.0", "Address for /healthz, /readyz and /metrics"),
    ("healthz-port", Form::Text, "0", "Port for them; 0 is off"),
    ("state-dir", Form::Path, STATE, "What must outlive a reboot: own subnet, last known peers"),
    ("check-every", Form::Text, "30", "Seconds between checks of all routes, devices and rules"),
    ("probe-every", Form::Text, "10", "Seconds between probes of each peer; 0 is off"),
    ("iptables-resync", Form::Text, "5", "Accepted and not needed: the kernel reports changes"),
    ("v", Form::Text, "0", "Verbosity: 4 and more for debugging"),
    ("log-format", Form::Text, "text", "text or json"),
];

/// A flag's value: from the command line, else from flannel's environment variable of that name, else the default.
pub(super) struct Flags<'a> {
    pub(super) matches: &'a ArgMatches,
}

impl Flags<'_> {
    pub(super) fn text(&self, name: &str) -> Option<String> {
        let given = self.matches.get_one::<String>(name).cloned();
        let variable = format!("FLANNELD_{}", name.to_uppercase().replace('-', "_"));
        let default = || FLAGS.iter().find(|flag| flag.0 == name).map(|flag| flag.2.to_owned());
        given.or_else(|| std::env::var(variable).ok()).or_else(default).filter(|text| !text.is_empty())
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    fn many(&self, name: &str) -> Vec<String> {
        match self.matches.get_many::<String>(name) {
            Some(given) => given.cloned().collect(),
            None => self.text(name).into_iter().collect(),
        }
    }

    fn switch(&self, name: &str) -> anyhow::Result<bool> {
        match self.text(name).as_deref() {
            Some("true") => Ok(true),
            Some("false") | None => Ok(false),
            Some(other) => bail!("--{name} {other:?}: true or false is expected"),
        }
    }

    pub(super) fn number<T: std::str::FromStr>(&self, name: &str) -> anyhow::Result<T> {
        let text = self.text(name).unwrap_or_default();
        text.parse().map_err(|_| anyhow::anyhow!("--{name} {text:?}: a number is expected"))
    }

    fn address<T: std::str::FromStr>(&self, name: &str) -> anyhow::Result<Option<T>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        text.parse()
            .map(Some)
            .map_err(|_| anyhow::anyhow!("--{name} {text:?}: an address of its family is expected"))
    }
}

pub(super) fn options(flags: &Flags<'_>) -> anyhow::Result<Options> {
    let backend = flags.text("backend");
    let alone = backend.as_deref() == Some("none");
    let leases = match flags.switch("kube-subnet-mgr")? {
        true => LeaseSource::Kube(kube(flags)?),
        false if alone && !was_given(flags, "etcd-endpoints") => LeaseSource::Alone,
        false => LeaseSource::Etcd(etcd(flags)?),
    };
    let health_port: u16 = flags.number("healthz-port")?;
    let health_ip: Option<IpAddr> = flags.address("healthz-ip")?;
    let probe: u64 = flags.number("probe-every")?;
    let required = |name: &str| flags.path(name).with_context(|| format!("--{name} may not be empty"));
    Ok(Options {
        leases,
        net_config: required("net-config-path")?,
        backend,
        interface: InterfaceChoice {
            named: flags.many("iface"),
            matching: flags.many("iface-regex"),
            towards: flags.address("iface-can-reach")?,
        },
        public_v4: flags.address("public-ip")?,
        public_v6: flags.address("public-ipv6")?,
        firewall: FirewallOptions {
            masquerade: flags.switch("ip-masq")?,
            random_ports: !flags.switch("ip-masq-fully-random-disable")?,
            forward_rules: flags.switch("iptables-forward-rules")?,
            leased_only: flags.switch("leased-only")?,
        },
        files: FileOptions {
            subnet_file: required("subnet-file")?,
            cni_conf: flags.path("cni-conf"),
            state_dir: required("state-dir")?,
        },
        health: health_ip.filter(|_| health_port > 0).map(|ip| SocketAddr::new(ip, health_port)),
        socket: flags.matches.get_one::<PathBuf>("socket").cloned().unwrap_or_else(|| SOCKET.into()),
        check_every: Duration::from_secs(flags.number::<u64>("check-every")?.max(1)),
        probe_every: (probe > 0).then(|| Duration::from_secs(probe)),
    })
}

fn was_given(flags: &Flags<'_>, name: &str) -> bool {
    flags.matches.value_source(name) == Some(clap::parser::ValueSource::CommandLine)
}

fn kube(flags: &Flags<'_>) -> anyhow::Result<KubeOptions> {
    let machine = || rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    let node_name = flags
        .text("node-name")
        .or_else(|| std::env::var("NODE_NAME").ok().filter(|n| !n.is_empty()))
        .unwrap_or_else(machine);
    Ok(KubeOptions {
        kubeconfig: flags.path("kubeconfig-file"),
        api_url: flags.text("kube-api-url"),
        annotation_prefix: flags.text("kube-annotation-prefix").unwrap_or_default(),
        node_name,
        clear_network_unavailable: flags.switch("set-node-network-unavailable")?,
    })
}

fn etcd(flags: &Flags<'_>) -> anyhow::Result<EtcdOptions> {
    let endpoints = flags.text("etcd-endpoints").unwrap_or_default();
    let margin: u64 = flags.number("subnet-lease-renew-margin")?;
    if !(1..1440).contains(&margin) {
        bail!("--subnet-lease-renew-margin {margin}: minutes from 1 to 1439 are expected");
    }
    let (cert, key) = (flags.path("etcd-certfile"), flags.path("etcd-keyfile"));
    if cert.is_some() != key.is_some() {
        bail!("--etcd-certfile and --etcd-keyfile belong together: give both, or neither");
    }
    if flags.text("etcd-password").is_some() && flags.text("etcd-username").is_none() {
        bail!("--etcd-password is given without --etcd-username");
    }
    Ok(EtcdOptions {
        endpoints: endpoints.split(',').map(|e| e.trim().to_owned()).filter(|e| !e.is_empty()).collect(),
        prefix: flags.text("etcd-prefix").unwrap_or_default(),
        key_file: key,
        cert_file: cert,
        ca_file: flags.path("etcd-cafile"),
        username: flags.text("etcd-username"),
        password: flags.text("etcd-password"),
        renew_margin: Duration::from_secs(margin * 60),
        backend: flags.text("backend"),
    })
}
