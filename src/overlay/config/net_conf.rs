//! flannel's network configuration, as it stands in net-conf.json and in etcd.

use std::net::IpAddr;

use keelson_kit::cidr::{self, IpNetwork};
use serde::Deserialize;
use serde_json::Value;

/// flannel's default ports.
pub const UDP_PORT: u16 = 8285;
pub const VXLAN_PORT: u16 = 8472;
const LARGEST_VNI: u32 = 0xff_ffff;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the network configuration {0}")]
pub struct NetConfError(String);

/// Checked, with flannel's defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetConf {
    pub v4: Option<IpNetwork>,
    pub v6: Option<IpNetwork>,
    pub backend: Backend,
    /// How hosts choose their subnets where Kubernetes does not assign them; see [`super::SubnetPool`].
    pub subnet_range4: SubnetRange,
    pub subnet_range6: SubnetRange,
}

/// As configured, zero or absent meaning "by default".
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubnetRange {
    pub subnet_len: Option<u8>,
    pub min: Option<IpAddr>,
    pub max: Option<IpAddr>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    Udp {
        port: u16,
    },
    Vxlan(Vxlan),
    HostGw,
    /// Nothing is carried between hosts.
    None,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vxlan {
    pub vni: u32,
    pub port: u16,
    pub group_policy: bool,
    pub learning: bool,
    /// Peers on the same link are routed to, without a tunnel.
    pub direct_routing: bool,
    /// Where the VXLAN port is filtered, udp carries the traffic on this port.
    pub fallback_port: Option<u16>,
    pub mtu: Option<u32>,
}

impl Backend {
    /// Its name in leases.
    pub fn name(&self) -> &'static str {
        match self {
            Backend::Udp { .. } => "udp",
            Backend::Vxlan(_) => "vxlan",
            Backend::HostGw => "host-gw",
            Backend::None => "none",
        }
    }
}

#[derive(Deserialize)]
struct NetConfJson {
    #[serde(default = "yes")]
    enableipv4: bool,
    #[serde(default)]
    enableipv6: bool,
    network: Option<String>,
    ipv6network: Option<String>,
    subnetlen: Option<u8>,
    subnetmin: Option<String>,
    subnetmax: Option<String>,
    ipv6subnetlen: Option<u8>,
    ipv6subnetmin: Option<String>,
    ipv6subnetmax: Option<String>,
    backend: Option<Value>,
}

#[derive(Deserialize)]
struct BackendJson {
    #[serde(rename = "type")]
    kind: Option<String>,
    vni: Option<u32>,
    port: Option<u16>,
    mtu: Option<u32>,
    #[serde(default)]
    gbp: bool,
    #[serde(default)]
    learning: bool,
    #[serde(default)]
    directrouting: bool,
    fallback: Option<String>,
    fallbackport: Option<u16>,
}

fn yes() -> bool {
    true
}

impl NetConf {
    /// Reads the JSON. `backend` is the command line's, which overrides the written one.
    pub fn parse(text: &str, backend: Option<&str>) -> Result<Self, NetConfError> {
        let value: Value =
            serde_json::from_str(text).map_err(|e| NetConfError(format!("is not JSON: {e}")))?;
        let written: NetConfJson = serde_json::from_value(lower_keys(value))
            .map_err(|e| NetConfError(format!("has a field of the wrong type: {e}")))?;
        let v4 = match written.enableipv4 {
            true => Some(network("Network", written.network.as_deref(), true)?),
            false => None,
        };
        let v6 = match written.enableipv6 {
            true => Some(network("IPv6Network", written.ipv6network.as_deref(), false)?),
            false => None,
        };
        if v4.is_none() && v6.is_none() {
            return Err(NetConfError(
                "switches both families off: set EnableIPv4 or EnableIPv6 to true".into(),
            ));
        }
        let subnet_range4 = SubnetRange {
            subnet_len: written.subnetlen.filter(|len| *len > 0),
            min: address("SubnetMin", written.subnetmin.as_deref(), true)?,
            max: address("SubnetMax", written.subnetmax.as_deref(), true)?,
        };
        let subnet_range6 = SubnetRange {
            subnet_len: written.ipv6subnetlen.filter(|len| *len > 0),
            min: address("IPv6SubnetMin", written.ipv6subnetmin.as_deref(), false)?,
            max: address("IPv6SubnetMax", written.ipv6subnetmax.as_deref(), false)?,
        };
        let backend = read_backend(written.backend, backend)?;
        Ok(NetConf { v4, v6, backend, subnet_range4, subnet_range6 })
    }

    /// Describes how the configuration `text`, read from `place`, differs from this one, which is in force. A host does not
    /// adopt a new one by itself: pods keep their addresses, so the administrator decides when each host restarts.
    pub fn differs_from(&self, text: &str, backend: Option<&str>, place: &str) -> Option<String> {
        match NetConf::parse(text, backend) {
            Ok(now) if now == *self => None,
            Ok(now) => Some(format!(
                "the network configuration {place} was changed (now {}, backend {}); this host goes on with {}, backend {}, \
                 until the overlay is restarted here",
                now.shown_networks(),
                now.backend.name(),
                self.shown_networks(),
                self.backend.name()
            )),
            Err(error) => Some(format!(
                "the network configuration {place} was changed and cannot be used: {error}; this host goes on with the one \
                 before, and would not start with this one"
            )),
        }
    }

    fn shown_networks(&self) -> String {
        self.networks().map(|net| net.to_string()).collect::<Vec<_>>().join(", ")
    }

    pub fn networks(&self) -> impl Iterator<Item = IpNetwork> + '_ {
        self.v4.into_iter().chain(self.v6)
    }
}

fn read_backend(written: Option<Value>, wanted: Option<&str>) -> Result<Backend, NetConfError> {
    let written: BackendJson =
        serde_json::from_value(written.unwrap_or_else(|| Value::Object(serde_json::Map::new())))
            .map_err(|e| NetConfError(format!("has a Backend with a field of the wrong type: {e}")))?;
    let kind = wanted.or(written.kind.as_deref()).unwrap_or("udp");
    // Settings written for one backend do not apply to another.
    let is_own = written.kind.as_deref().unwrap_or("udp") == kind;
    let port = written.port.filter(|port| is_own && *port > 0);
    match kind {
        "udp" => Ok(Backend::Udp { port: port.unwrap_or(UDP_PORT) }),
        "host-gw" => Ok(Backend::HostGw),
        "none" | "alloc" => Ok(Backend::None),
        "vxlan" => {
            let vni = written.vni.filter(|_| is_own).unwrap_or(1);
            if vni == 0 || vni > LARGEST_VNI {
                return Err(NetConfError(format!(
                    "has Backend.VNI {vni}: a number from 1 to {LARGEST_VNI} is expected"
                )));
            }
            let fallback_port = match written.fallback.as_deref() {
                None | Some("" | "none") => None,
                Some("udp") => Some(written.fallbackport.filter(|p| *p > 0).unwrap_or(UDP_PORT)),
                Some(other) => {
                    return Err(NetConfError(format!(
                        "has Backend.Fallback {other:?}: only \"udp\" can stand in for vxlan"
                    )));
                }
            };
            Ok(Backend::Vxlan(Vxlan {
                vni,
                port: port.unwrap_or(VXLAN_PORT),
                group_policy: is_own && written.gbp,
                learning: is_own && written.learning,
                direct_routing: is_own && written.directrouting,
                fallback_port,
                mtu: written.mtu.filter(|mtu| is_own && *mtu > 0),
            }))
        }
        other => Err(NetConfError(format!(
            "asks for Backend.Type {other:?}, which is not supported: udp, vxlan, host-gw and none are"
        ))),
    }
}

fn network(field: &str, text: Option<&str>, v4: bool) -> Result<IpNetwork, NetConfError> {
    let example = if v4 { "10.244.0.0/16" } else { "fd00:10:244::/56" };
    let bad = |what: String| NetConfError(format!("{what}: a network such as {example:?} is expected"));
    let text = text.ok_or_else(|| bad(format!("lacks {field}")))?;
    let net = cidr::parse_cidr(text).map_err(|_| bad(format!("has {field} {text:?}")))?;
    if net.is_ipv4() != v4 {
        return Err(bad(format!("has {field} {text:?}, which is of the other family")));
    }
    if net.prefix() == 0 {
        return Err(bad(format!("has {field} {text:?}, which is every address there is")));
    }
    Ok(cidr::truncated(net))
}

fn address(field: &str, text: Option<&str>, v4: bool) -> Result<Option<IpAddr>, NetConfError> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
    let bad = || NetConfError(format!("has {field} {text:?}, which is no address of its family"));
    text.parse::<IpAddr>().ok().filter(|a| a.is_ipv4() == v4).ok_or_else(bad).map(Some)
}

/// Go reads field names in any case, and real configurations rely on that.
fn lower_keys(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields.into_iter().map(|(name, value)| (name.to_lowercase(), lower_keys(value))).collect(),
        ),
        other => other,
    }
}

#[cfg(test)]
#[path = "net_conf_tests.rs"]
mod tests;
