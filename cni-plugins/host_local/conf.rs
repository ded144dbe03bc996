//! The "ipam" part of the configuration, with what the runtime adds to it.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use keelson_kit::cidr::parse_cidr;
use serde::{Deserialize, Deserializer};

use super::range::{Draft, RangeSet};
use crate::skel::{Call, CniVersion, Failure, Route, decode, decode_readable, parse_args};

/// Where leases are kept when the configuration does not say; the reference plugin's place.
const DEFAULT_DATA_DIR: &str = "/var/lib/cni/networks";

/// Checked options.
#[derive(Debug)]
pub struct IpamConf {
    pub data_dir: PathBuf,
    pub resolv_conf: Option<String>,
    pub routes: Vec<Route>,
    /// One address is given out of each set.
    pub ranges: Vec<RangeSet>,
    /// Addresses that were asked for, without duplicates.
    pub requested: Vec<IpAddr>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Written {
    ipam: Option<Ipam>,
    runtime_config: RuntimeConfig,
    args: Args,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Ipam {
    // The four of a single range; flattening them in would hide their names from the reader.
    subnet: String,
    range_start: String,
    range_end: String,
    gateway: String,
    routes: Vec<Route>,
    data_dir: String,
    resolv_conf: String,
    ranges: Vec<Vec<RangeText>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct RuntimeConfig {
    #[serde(rename = "ipRanges")]
    ip_ranges: Vec<Vec<RangeText>>,
    ips: Vec<RequestedIp>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Args {
    cni: CniArgs,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct CniArgs {
    ips: Vec<RequestedIp>,
}

#[derive(Deserialize, Default, Clone)]
#[serde(default, rename_all = "camelCase")]
struct RangeText {
    subnet: String,
    range_start: String,
    range_end: String,
    gateway: String,
}

/// An address, with or without a prefix length; nothing at all is none.
struct RequestedIp(Option<IpAddr>);

impl<'de> Deserialize<'de> for RequestedIp {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        requested(&String::deserialize(from)?).map(RequestedIp).map_err(serde::de::Error::custom)
    }
}

impl IpamConf {
    pub fn load(call: &Call) -> Result<Self, Failure> {
        let written: Written = decode(&call.conf)?;
        let Some(ipam) = written.ipam else {
            return Err(Failure::config("\"ipam\" is missing; host-local takes its ranges from there"));
        };
        let mut wanted = Vec::new();
        let [ip] = parse_args(&call.args, ["IP"])?;
        wanted.extend(
            requested(&ip.unwrap_or_default())
                .map_err(|e| Failure::environment(format!("CNI_ARGS: IP: {e}")))?,
        );
        wanted.extend(written.args.cni.ips.iter().chain(&written.runtime_config.ips).filter_map(|ip| ip.0));
        let mut unique: Vec<IpAddr> = Vec::new();
        for ip in wanted {
            if !unique.contains(&ip) {
                unique.push(ip);
            }
        }

        let mut sets = written.runtime_config.ip_ranges;
        if !ipam.subnet.is_empty() {
            let Ipam { subnet, range_start, range_end, gateway, .. } = ipam;
            sets.push(vec![RangeText { subnet, range_start, range_end, gateway }]);
        }
        sets.extend(ipam.ranges);
        Ok(IpamConf {
            data_dir: data_dir(ipam.data_dir),
            resolv_conf: Some(ipam.resolv_conf).filter(|path| !path.is_empty()),
            routes: ipam.routes,
            ranges: check_sets(sets, call.version)?,
            requested: unique,
        })
    }

    /// The directory of the network's leases.
    pub fn directory(&self, call: &Call) -> PathBuf {
        Path::new(&self.data_dir).join(call.network.as_str())
    }
}

/// Where leases are to be freed: all that DEL needs, read from whatever of the configuration can be.
#[derive(Debug, PartialEq, Eq)]
pub struct Release {
    pub directory: PathBuf,
    /// How many range sets there seem to be.
    pub sets: usize,
}

impl Release {
    pub fn load(call: &Call) -> Self {
        let part = |key: &str| call.conf.get(key);
        let ipam: Ipam = part("ipam").map(decode_readable).unwrap_or_default();
        let runtime: RuntimeConfig = part("runtimeConfig").map(decode_readable).unwrap_or_default();
        let single = usize::from(!ipam.subnet.is_empty());
        Release {
            directory: data_dir(ipam.data_dir).join(call.network.as_str()),
            sets: runtime.ip_ranges.len() + single + ipam.ranges.len(),
        }
    }
}

fn data_dir(written: String) -> PathBuf {
    if written.is_empty() { DEFAULT_DATA_DIR.into() } else { written.into() }
}

fn check_sets(sets: Vec<Vec<RangeText>>, version: CniVersion) -> Result<Vec<RangeSet>, Failure> {
    if sets.is_empty() {
        return Err(Failure::config("\"ipam\" has no ranges; give \"ranges\" or \"subnet\""));
    }
    let mut checked: Vec<RangeSet> = Vec::new();
    for (i, set) in sets.into_iter().enumerate() {
        let wrong = |why: String| Failure::config(format!("range set {i}: {why}"));
        let drafts = set.into_iter().map(draft).collect::<Result<Vec<_>, _>>().map_err(wrong)?;
        let set = RangeSet::check(drafts).map_err(wrong)?;
        if let Some(j) = checked.iter().position(|other| other.overlaps(&set)) {
            return Err(Failure::config(format!("range sets {j} and {i} overlap")));
        }
        checked.push(set);
    }
    let v4 = checked.iter().filter(|set| set.is_v4()).count();
    if version < CniVersion::V030 && (v4 > 1 || checked.len() - v4 > 1) {
        // The reference's words, which callers match.
        return Err(Failure::new(
            Failure::INVALID_CONFIG,
            format!("CNI version {version} does not support more than 1 address per family"),
            "",
        ));
    }
    Ok(checked)
}

fn draft(text: RangeText) -> Result<Draft, String> {
    let addr = |key: &str, text: &str| match text {
        "" => Ok(None),
        _ => text.parse::<IpAddr>().map(Some).map_err(|_| format!("{key} {text:?} is not an IP address")),
    };
    let subnet = parse_cidr(&text.subnet).map_err(|e| format!("subnet {e}"))?;
    Ok(Draft {
        subnet,
        start: addr("rangeStart", &text.range_start)?,
        end: addr("rangeEnd", &text.range_end)?,
        gateway: addr("gateway", &text.gateway)?,
    })
}

fn requested(text: &str) -> Result<Option<IpAddr>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let addr = match parse_cidr(text) {
        Ok(net) => net.ip(),
        Err(_) => text.parse().map_err(|_| format!("{text:?} is not an IP address"))?,
    };
    Ok(Some(addr.to_canonical()))
}
