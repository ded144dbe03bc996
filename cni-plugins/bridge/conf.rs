//! The bridge plugin's options, checked.

use std::collections::BTreeSet;

use keelson_netkit::{IfName, Mac};
use serde::Deserialize;

use crate::skel::{Call, Dns, Failure, decode, decode_readable, parse_args};

/// Checked options, one field for each that the reference plugin documents and that is acted on.
#[derive(Debug, Clone)]
pub struct BridgeConf {
    pub bridge: IfName,
    pub is_gateway: bool,
    pub is_default_gateway: bool,
    pub force_address: bool,
    /// How to masquerade, if at all.
    pub masquerade: Option<MasqueradeBackend>,
    pub mtu: Option<u32>,
    pub hairpin: bool,
    pub promiscuous: bool,
    pub vlans: Vlans,
    pub mac_spoof_check: bool,
    pub duplicate_detection: bool,
    pub container_interface: bool,
    pub port_isolation: bool,
    /// The MAC asked for, from whichever of the three places.
    pub mac: Option<Mac>,
    /// The type of the IPAM plugin; without one the network is layer two only.
    pub ipam: Option<String>,
    pub dns: Dns,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MasqueradeBackend {
    /// The default: nf_tables, in a table of our own.
    Own,
    /// nf_tables, in the reference plugins' table.
    Nftables,
    Iptables,
}

/// Which VLANs a port carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vlans {
    /// The port's own VLAN, untagged.
    pub access: Option<u16>,
    /// Further VLANs, tagged; None when no trunk is configured at all.
    pub trunk: Option<Vec<u16>>,
    /// Keep the VLAN that the bridge gives new ports.
    pub preserve_default: bool,
}

impl Vlans {
    /// Whether the bridge has to tell VLANs apart.
    pub fn needs_filtering(&self) -> bool {
        self.access.is_some() || self.trunk.is_some()
    }
}

/// The options as written: one field for each key of the reference plugin's configuration.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Written {
    bridge: Option<String>,
    is_gateway: bool,
    is_default_gateway: bool,
    force_address: bool,
    ip_masq: bool,
    ip_masq_backend: Option<String>,
    mtu: i64,
    hairpin_mode: bool,
    promisc_mode: bool,
    vlan: i64,
    vlan_trunk: Option<Vec<Trunk>>,
    preserve_default_vlan: bool,
    macspoofchk: bool,
    enabledad: bool,
    disable_container_interface: bool,
    port_isolation: bool,
    args: Args,
    runtime_config: MacHolder,
    ipam: Ipam,
    dns: Dns,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Trunk {
    #[serde(rename = "minID")]
    min: Option<i64>,
    #[serde(rename = "maxID")]
    max: Option<i64>,
    id: Option<i64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Args {
    cni: MacHolder,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct MacHolder {
    mac: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Ipam {
    r#type: String,
}

impl BridgeConf {
    pub fn load(call: &Call) -> Result<Self, Failure> {
        let written: Written = decode(&call.conf)?;
        let wrong = |key: &str, why: String| Failure::config(format!("{key:?}: {why}"));
        let [env_mac] = parse_args(&call.args, ["MAC"])?;
        let macs = [&written.runtime_config.mac, &written.args.cni.mac, &env_mac.unwrap_or_default()];
        let mac = match macs.into_iter().find(|m| !m.is_empty()) {
            Some(text) => Some(text.parse::<Mac>().map_err(|e| wrong("mac", e.to_string()))?),
            None => None,
        };
        let bridge = written.bridge.as_deref().unwrap_or("cni0");
        let backend = backend(written.ip_masq_backend.as_deref()).map_err(|e| wrong("ipMasqBackend", e))?;
        let mtu =
            u32::try_from(written.mtu).map_err(|_| wrong("mtu", format!("{} is no MTU", written.mtu)))?;
        Ok(BridgeConf {
            bridge: IfName::try_from(bridge).map_err(|e| wrong("bridge", e.to_string()))?,
            is_gateway: written.is_gateway || written.is_default_gateway,
            is_default_gateway: written.is_default_gateway,
            force_address: written.force_address,
            masquerade: written.ip_masq.then_some(backend),
            mtu: Some(mtu).filter(|mtu| *mtu > 0),
            hairpin: written.hairpin_mode,
            promiscuous: written.promisc_mode,
            vlans: Vlans {
                access: access(written.vlan).map_err(|e| wrong("vlan", e))?,
                trunk: written.vlan_trunk.map(trunk).transpose().map_err(|e| wrong("vlanTrunk", e))?,
                preserve_default: written.preserve_default_vlan,
            },
            mac_spoof_check: written.macspoofchk,
            duplicate_detection: written.enabledad,
            container_interface: !written.disable_container_interface,
            port_isolation: written.port_isolation,
            mac,
            ipam: Some(written.ipam.r#type).filter(|kind| !kind.is_empty()),
            dns: written.dns,
        })
    }

    /// Options that exclude each other. Only ADD asks: what was never made can be deleted all the same.
    pub fn check_combinations(&self) -> Result<(), Failure> {
        if self.ipam.is_some() && !self.container_interface {
            return Err(Failure::config(
                "\"disableContainerInterface\" does not go with \"ipam\": there is no interface to give an address",
            ));
        }
        if self.hairpin && self.promiscuous {
            return Err(Failure::config(
                "\"hairpinMode\" and \"promiscMode\" exclude each other; both let a container reach itself",
            ));
        }
        Ok(())
    }
}

/// What DEL needs, read from whatever of the configuration can be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    pub masquerade: Option<MasqueradeBackend>,
    pub mac_spoof_check: bool,
    pub ipam: Option<String>,
}

impl Release {
    pub fn load(call: &Call) -> Self {
        let written: Written = decode_readable(&call.conf);
        // A backend that is unknown here made nothing that could be known.
        let backend = backend(written.ip_masq_backend.as_deref()).unwrap_or(MasqueradeBackend::Own);
        Release {
            masquerade: written.ip_masq.then_some(backend),
            mac_spoof_check: written.macspoofchk,
            ipam: Some(written.ipam.r#type).filter(|kind| !kind.is_empty()),
        }
    }
}

fn backend(written: Option<&str>) -> Result<MasqueradeBackend, String> {
    match written {
        None => Ok(MasqueradeBackend::Own),
        Some("nftables") => Ok(MasqueradeBackend::Nftables),
        Some("iptables") => Ok(MasqueradeBackend::Iptables),
        Some(other) => Err(format!("{other:?} is unknown; nftables or iptables is expected")),
    }
}

fn access(vlan: i64) -> Result<Option<u16>, String> {
    match u16::try_from(vlan) {
        Ok(0) => Ok(None),
        Ok(id @ 1..=4094) => Ok(Some(id)),
        _ => Err(format!("{vlan} is no VLAN ID; 1 to 4094 are, 0 means none")),
    }
}

fn trunk(entries: Vec<Trunk>) -> Result<Vec<u16>, String> {
    let id = |key: &str, value: i64| match u16::try_from(value) {
        Ok(id @ 1..=4094) => Ok(id),
        _ => Err(format!("{key} {value} is no VLAN ID; 1 to 4094 are")),
    };
    let mut ids = BTreeSet::new();
    for entry in entries {
        match (entry.min, entry.max) {
            (Some(min), Some(max)) => {
                let (min, max) = (id("minID", min)?, id("maxID", max)?);
                if min > max {
                    return Err(format!("minID {min} is greater than maxID {max}"));
                }
                ids.extend(min..=max);
            }
            (None, None) => {}
            _ => return Err("minID and maxID belong together".into()),
        }
        if let Some(single) = entry.id {
            ids.insert(id("id", single)?);
        }
    }
    Ok(ids.into_iter().collect())
}

#[cfg(test)]
#[path = "conf_tests.rs"]
mod tests;
