//! What must outlive this process and the machine's next boot, in one file: while the apiserver or etcd is away, a host
//! that starts knows its subnet and its peers from here.

use std::path::{Path, PathBuf};

use keelson_netkit::{IpNet, Mac};
use serde::{Deserialize, Serialize};

use crate::files::{self, WriteError};
use crate::lease::{Lease, Place, Vtep};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// The network configuration as it was last read from etcd.
    pub network_config: Option<String>,
    pub subnets: Vec<String>,
    /// The addresses that this host was published under.
    pub published: Vec<String>,
    /// Of the VXLAN devices: other hosts have these in their tables.
    pub mac4: Option<String>,
    pub mac6: Option<String>,
    /// Devices that were made.
    pub devices: Vec<String>,
    peers: Vec<StoredLease>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StoredLease {
    holder: String,
    backend: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    v4: Option<StoredPlace>,
    #[serde(skip_serializing_if = "Option::is_none")]
    v6: Option<StoredPlace>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StoredPlace {
    subnet: String,
    public: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    vni: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mac: Option<String>,
}

fn path(dir: &Path) -> PathBuf {
    dir.join("state.json")
}

impl State {
    /// What was kept; nothing when there is no file or it cannot be read, which is only worth a warning.
    pub fn load(dir: &Path) -> Self {
        let path = path(dir);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return State::default(),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot read what was kept; starting without it");
                return State::default();
            }
        };
        serde_json::from_slice(&text).unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "what was kept cannot be understood; starting without it");
            State::default()
        })
    }

    pub fn save(&self, dir: &Path) -> Result<(), WriteError> {
        let text = serde_json::to_vec_pretty(self).unwrap_or_default();
        files::replace(&path(dir), &text, 0o600).map(drop)
    }

    pub fn subnets(&self) -> Vec<IpNet> {
        self.subnets.iter().filter_map(|text| text.parse().ok()).collect()
    }

    pub fn macs(&self) -> (Option<Mac>, Option<Mac>) {
        let read = |text: &Option<String>| text.as_ref().and_then(|text| text.parse().ok());
        (read(&self.mac4), read(&self.mac6))
    }

    pub fn peers(&self) -> Vec<Lease> {
        let place = |stored: &StoredPlace| {
            let vtep = match (stored.vni, &stored.mac) {
                (Some(vni), Some(mac)) => Some(Vtep { vni, mac: mac.parse().ok()? }),
                _ => None,
            };
            Some(Place { subnet: stored.subnet.parse().ok()?, public: stored.public.parse().ok()?, vtep })
        };
        let lease = |stored: &StoredLease| Lease {
            holder: stored.holder.clone(),
            backend: stored.backend.clone(),
            v4: stored.v4.as_ref().and_then(place),
            v6: stored.v6.as_ref().and_then(place),
        };
        self.peers.iter().map(lease).collect()
    }

    pub fn set_peers(&mut self, peers: &[Lease]) {
        let place = |place: &Place| StoredPlace {
            subnet: place.subnet.to_string(),
            public: place.public.to_string(),
            vni: place.vtep.map(|v| v.vni),
            mac: place.vtep.map(|v| v.mac.to_string()),
        };
        let lease = |lease: &Lease| StoredLease {
            holder: lease.holder.clone(),
            backend: lease.backend.clone(),
            v4: lease.v4.as_ref().map(place),
            v6: lease.v6.as_ref().map(place),
        };
        self.peers = peers.iter().map(lease).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_read_back_as_kept_and_garbage_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place {
            subnet: "10.1.2.0/24".parse().unwrap(),
            public: "192.0.2.7".parse().unwrap(),
            vtep: Some(Vtep { vni: 1, mac: "6a:0b:c4:11:22:33".parse().unwrap() }),
        };
        let peer = Lease { holder: "n1".into(), backend: "vxlan".into(), v4: Some(place), v6: None };
        let mut state = State { subnets: vec!["10.1.3.0/24".into()], ..State::default() };
        state.set_peers(std::slice::from_ref(&peer));
        state.save(dir.path()).unwrap();
        let read = State::load(dir.path());
        assert_eq!((read.peers(), read.subnets().len()), (vec![peer], 1));
        for garbage in ["", "{", "[]", r#"{"peers": 7}"#] {
            std::fs::write(dir.path().join("state.json"), garbage).unwrap();
            assert_eq!(State::load(dir.path()), State::default(), "{garbage:?}");
        }
    }
}
