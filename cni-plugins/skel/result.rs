//! Results, read and written in every version of the protocol.

use std::net::IpAddr;

use keelson_kit::cidr::IpNetwork;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::failure::Failure;
use super::json::Json;
use super::version::CniVersion;

/// What an ADD made, in the newest version's shape.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CniResult {
    pub interfaces: Vec<Interface>,
    pub ips: Vec<IpConfig>,
    pub routes: Vec<Route>,
    pub dns: Dns,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Interface {
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The namespace's path, or empty for an interface of the host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub socket_path: String,
    #[serde(rename = "pciID", skip_serializing_if = "String::is_empty")]
    pub pci_id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpConfig {
    /// The place in the list of interfaces.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub interface: Option<usize>,
    #[serde(with = "cidr")]
    pub address: IpNetwork,
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "optional_addr")]
    pub gateway: Option<IpAddr>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    #[serde(with = "cidr")]
    pub dst: IpNetwork,
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "optional_addr")]
    pub gw: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mtu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub advmss: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub priority: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub table: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub scope: Option<u8>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dns {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

/// An address block of the versions up to 0.2.0.
#[derive(Deserialize)]
struct OldIpConfig {
    #[serde(with = "cidr")]
    ip: IpNetwork,
    #[serde(default, deserialize_with = "optional_addr")]
    gateway: Option<IpAddr>,
    #[serde(default)]
    routes: Vec<Route>,
}

impl CniResult {
    /// The result as the given version writes it.
    pub fn to_json(&self, version: CniVersion) -> Result<Value, Failure> {
        let mut out = Map::new();
        out.insert("cniVersion".into(), version.as_str().into());
        if version <= CniVersion::V020 {
            self.put_old(&mut out)?;
            out.insert("dns".into(), json!(self.dns));
            return Ok(Value::Object(out));
        }
        if !self.interfaces.is_empty() {
            let plain = |i: &Interface| Interface {
                name: i.name.clone(),
                mac: i.mac.clone(),
                sandbox: i.sandbox.clone(),
                ..Default::default()
            };
            let old: Vec<Interface> = self.interfaces.iter().map(plain).collect();
            let list = if version >= CniVersion::V100 { json!(self.interfaces) } else { json!(old) };
            out.insert("interfaces".into(), list);
        }
        if !self.ips.is_empty() {
            let mut list = json!(self.ips);
            if version < CniVersion::V100 {
                for (json, ip) in list.as_array_mut().into_iter().flatten().zip(&self.ips) {
                    json["version"] = if ip.address.is_ipv4() { "4" } else { "6" }.into();
                }
            }
            out.insert("ips".into(), list);
        }
        if !self.routes.is_empty() {
            out.insert("routes".into(), json!(self.routes));
        }
        // The older result types always have the key, even with nothing in it.
        if self.dns != Dns::default() || version < CniVersion::V100 {
            out.insert("dns".into(), json!(self.dns));
        }
        Ok(Value::Object(out))
    }

    /// Up to 0.2.0 there was one address of each family, with the routes below it.
    fn put_old(&self, out: &mut Map<String, Value>) -> Result<(), Failure> {
        for (key, v4) in [("ip4", true), ("ip6", false)] {
            let Some(ip) = self.ips.iter().find(|ip| ip.address.is_ipv4() == v4) else { continue };
            let mut block = json!({ "ip": ip.address.to_string() });
            if let Some(gateway) = ip.gateway {
                block["gateway"] = json!(gateway);
            }
            let routes: Vec<Value> = self
                .routes
                .iter()
                .filter(|r| r.dst.is_ipv4() == v4)
                .map(|r| match r.gw {
                    Some(gw) => json!({ "dst": r.dst.to_string(), "gw": gw }),
                    None => json!({ "dst": r.dst.to_string() }),
                })
                .collect();
            if !routes.is_empty() {
                block["routes"] = Value::Array(routes);
            }
            out.insert(key.into(), block);
        }
        if out.len() == 1 {
            // The reference's words, which callers match; versions up to 0.2.0 know no result without an address.
            return Err(Failure::new(
                Failure::INCOMPATIBLE_VERSION,
                "cannot convert: no valid IP addresses",
                "",
            ));
        }
        Ok(())
    }

    /// Reads a result of any version. Without a version of its own it is of the configuration's.
    pub fn from_json(json: &Json, otherwise: CniVersion) -> Result<Self, String> {
        if !matches!(json, Json::Object(_)) {
            return Err(format!("a result is an object, not {json}"));
        }
        let version = match json.get("cniVersion") {
            None => otherwise,
            Some(v) => v
                .as_str()
                .and_then(CniVersion::parse)
                .ok_or_else(|| format!("the result's cniVersion {v} is not a version that is known here"))?,
        };
        let dns: Dns = part(json, "dns")?.unwrap_or_default();
        if version <= CniVersion::V020 {
            let mut result = CniResult { dns, ..Default::default() };
            for key in ["ip4", "ip6"] {
                let Some(old) = part::<OldIpConfig>(json, key)? else { continue };
                result.ips.push(IpConfig { interface: None, address: old.ip, gateway: old.gateway });
                result.routes.extend(old.routes);
            }
            return Ok(result);
        }
        Ok(CniResult {
            interfaces: part(json, "interfaces")?.unwrap_or_default(),
            ips: part(json, "ips")?.unwrap_or_default(),
            routes: part(json, "routes")?.unwrap_or_default(),
            dns,
        })
    }
}

fn part<T: serde::de::DeserializeOwned>(json: &Json, key: &str) -> Result<Option<T>, String> {
    json.get(key).map(T::deserialize).transpose().map_err(|e| format!("{key:?}: {e}"))
}

/// An address, with IPv4 in IPv6 clothing undressed; an empty string is none.
fn optional_addr<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<IpAddr>, D::Error> {
    let text = String::deserialize(from)?;
    if text.is_empty() {
        return Ok(None);
    }
    let bad = || serde::de::Error::custom(format!("{text:?} is not an IP address"));
    text.parse::<IpAddr>().map(|a| Some(a.to_canonical())).map_err(|_| bad())
}

/// Addresses with their prefix length, as text.
pub(crate) mod cidr {
    use keelson_kit::cidr::{IpNetwork, parse_cidr};
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(net: &IpNetwork, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(net)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<IpNetwork, D::Error> {
        parse_cidr(&String::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
#[path = "result_tests.rs"]
mod tests;
