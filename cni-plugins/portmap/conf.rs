//! The portmap plugin's options, checked.

use std::fmt;
use std::net::IpAddr;

use keelson_kit::cidr::IpNetwork;
use serde::Deserialize;

use crate::skel::{Attachment, Call, CniResult, Failure, Json, decode, decode_readable};

/// The bit that marks packets to be masqueraded when iptables does it. Kubernetes uses 14 and 15.
const DEFAULT_MARK_BIT: u8 = 13;

/// Checked options.
#[derive(Debug, Clone)]
pub struct PortmapConf {
    pub backend: Backend,
    pub snat: bool,
    pub masquerade_all: bool,
    pub mark_bit: u8,
    /// A chain of somebody else's that marks packets, for the iptables backend.
    pub set_mark_chain: Option<String>,
    pub conditions_v4: Vec<String>,
    pub conditions_v6: Vec<String>,
    pub mappings: Vec<Mapping>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// The default: nf_tables, in a table of our own.
    Own,
    /// nf_tables, in the reference plugin's tables.
    Nftables,
    Iptables,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

/// A port of the host that leads to one of the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    pub protocol: Protocol,
    pub host_port: u16,
    pub container_port: u16,
    /// The address of the host; an unspecified one means any of that family.
    pub host_ip: Option<IpAddr>,
}

impl Protocol {
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        })
    }
}

impl Mapping {
    /// Whether the mapping is for that family at all.
    pub fn is_for(&self, v4: bool) -> bool {
        self.host_ip.is_none_or(|ip| ip.is_ipv4() == v4)
    }

    /// The one address of the host that the mapping is for, if not any.
    pub fn single_host_ip(&self) -> Option<IpAddr> {
        self.host_ip.filter(|ip| !ip.is_unspecified())
    }
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Written {
    backend: Option<String>,
    snat: Option<bool>,
    #[serde(rename = "conditionsV4")]
    conditions_v4: Vec<String>,
    #[serde(rename = "conditionsV6")]
    conditions_v6: Vec<String>,
    masq_all: bool,
    mark_masq_bit: Option<i64>,
    external_set_mark_chain: Option<String>,
    runtime_config: RuntimeConfig,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct RuntimeConfig {
    port_mappings: Vec<WrittenMapping>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct WrittenMapping {
    host_port: i64,
    container_port: i64,
    protocol: String,
    #[serde(rename = "hostIP")]
    host_ip: String,
}

impl PortmapConf {
    pub fn load(call: &Call) -> Result<Self, Failure> {
        let written: Written = decode(&call.conf)?;
        if written.mark_masq_bit.is_some() && written.external_set_mark_chain.is_some() {
            return Err(Failure::config("\"markMasqBit\" and \"externalSetMarkChain\" exclude each other"));
        }
        let mark_bit = match written.mark_masq_bit {
            None => DEFAULT_MARK_BIT,
            Some(bit) => u8::try_from(bit)
                .ok()
                .filter(|bit| *bit < 32)
                .ok_or_else(|| Failure::config(format!("\"markMasqBit\" is {bit}; 0 to 31 is expected")))?,
        };
        let backend = choose_backend(&written)?;
        let mappings =
            written.runtime_config.port_mappings.into_iter().map(mapping).collect::<Result<_, _>>();
        Ok(PortmapConf {
            backend,
            snat: written.snat.unwrap_or(true),
            masquerade_all: written.masq_all,
            mark_bit,
            set_mark_chain: written.external_set_mark_chain,
            conditions_v4: written.conditions_v4,
            conditions_v6: written.conditions_v6,
            mappings: mappings.map_err(|e| Failure::config(format!("\"portMappings\": {e}")))?,
        })
    }
}

/// What DEL needs, read from whatever of the configuration can be.
#[derive(Debug, Clone)]
pub struct Release {
    /// Whether the rules may be such as only the iptables programs see.
    pub by_iptables: bool,
    pub mappings: Vec<Mapping>,
}

impl Release {
    pub fn load(call: &Call) -> Self {
        let written: Written = decode_readable(&call.conf);
        Release {
            by_iptables: written.backend.as_deref() == Some("iptables")
                || hints(&written).into_iter().any(|(_, hint)| hint == Some(Backend::Iptables)),
            mappings: mappings_of(call).into_iter().filter_map(|written| mapping(written).ok()).collect(),
        }
    }
}

/// The mappings that can be read, one by one.
fn mappings_of(call: &Call) -> Vec<WrittenMapping> {
    match call.conf.get("runtimeConfig").and_then(|runtime| runtime.get("portMappings")) {
        Some(Json::List(items)) => items.iter().map(decode_readable).collect(),
        _ => Vec::new(),
    }
}

/// The backends that options are written for, by the options' names.
fn hints(written: &Written) -> [(&'static str, Option<Backend>); 3] {
    let style = |conditions: &[String]| match conditions.first().and_then(|c| c.chars().next()) {
        None => None,
        Some('-' | '!') => Some(Backend::Iptables),
        Some(_) => Some(Backend::Nftables),
    };
    [
        ("externalSetMarkChain", written.external_set_mark_chain.as_ref().map(|_| Backend::Iptables)),
        ("conditionsV4", style(&written.conditions_v4)),
        ("conditionsV6", style(&written.conditions_v6)),
    ]
}

/// The backend that is asked for, or the one that the options are written for, or our own.
fn choose_backend(written: &Written) -> Result<Backend, Failure> {
    let hints = hints(written);
    let backend = match written.backend.as_deref() {
        Some("nftables") => Backend::Nftables,
        Some("iptables") => Backend::Iptables,
        Some(other) => {
            return Err(Failure::config(format!(
                "\"backend\": {other:?} is unknown; nftables or iptables is expected"
            )));
        }
        None if hints.iter().any(|(_, hint)| *hint == Some(Backend::Iptables)) => Backend::Iptables,
        None => Backend::Own,
    };
    let language = if backend == Backend::Iptables { Backend::Iptables } else { Backend::Nftables };
    match hints.iter().find(|(_, hint)| hint.is_some_and(|h| h != language)) {
        None => Ok(backend),
        Some((key, _)) => {
            Err(Failure::config(format!("{key:?} is not written for the {language:?} backend")))
        }
    }
}

fn mapping(written: WrittenMapping) -> Result<Mapping, String> {
    let port = |key: &str, value: i64| match u16::try_from(value) {
        Ok(port @ 1..) => Ok(port),
        _ => Err(format!("{key} {value} is no port; 1 to 65535 are")),
    };
    let protocol = match written.protocol.to_ascii_lowercase().as_str() {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        "" => return Err("protocol is missing; tcp, udp or sctp is expected".into()),
        other => return Err(format!("protocol {other:?} is unknown; tcp, udp or sctp is expected")),
    };
    let host_ip = match written.host_ip.as_str() {
        "" => None,
        text => Some(
            text.parse::<IpAddr>()
                .map_err(|_| format!("hostIP {text:?} is not an IP address"))?
                .to_canonical(),
        ),
    };
    Ok(Mapping {
        protocol,
        host_port: port("hostPort", written.host_port)?,
        container_port: port("containerPort", written.container_port)?,
        host_ip,
    })
}

/// The container's addresses: the first of each family that is on its interface, as far as the result says.
pub fn container_addresses(result: &CniResult, at: &Attachment) -> (Option<IpNetwork>, Option<IpNetwork>) {
    let on_container = |index: Option<usize>| {
        let interface = index.and_then(|i| result.interfaces.get(i));
        interface.is_none_or(|i| i.name == at.ifname.as_str() && !i.sandbox.is_empty())
    };
    let first = |v4: bool| {
        let own = result.ips.iter().find(|ip| ip.address.is_ipv4() == v4 && on_container(ip.interface));
        own.map(|ip| ip.address)
    };
    (first(true), first(false))
}

#[cfg(test)]
#[path = "conf_tests.rs"]
pub(crate) mod tests;
