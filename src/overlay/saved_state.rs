//! The state file: what must survive a reboot. While the apiserver or etcd is not available, a host that starts reads its
//! subnet and its peers from here.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use keelson_kit::cidr::{self, IpNetwork};
use keelson_netkit::Mac;
use serde::{Deserialize, Serialize};

use crate::files::{self, WriteError};
use crate::lease::{Lease, LeasedSubnet, Vtep};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedState {
    /// The network configuration as it was last read from etcd.
    pub network_config: Option<String>,
    pub subnets: Vec<String>,
    /// This host's published addresses.
    pub published: Vec<String>,
    /// MACs of the VXLAN devices: other hosts have these in their tables.
    pub mac4: Option<String>,
    pub mac6: Option<String>,
    /// Devices that were created.
    pub devices: Vec<String>,
}

/// The file as it is read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct StateFile {
    #[serde(flatten)]
    state: SavedState,
    peers: Vec<SavedLease>,
}

/// The file as it is written: peers are serialised one by one, because together they take more memory than the rest of the
/// process.
#[derive(Serialize)]
struct StateWriter<'a, I: Iterator<Item = &'a Lease>> {
    #[serde(flatten)]
    state: &'a SavedState,
    #[serde(serialize_with = "each")]
    peers: RefCell<I>,
}

fn each<'a, I, S>(peers: &RefCell<I>, serializer: S) -> Result<S::Ok, S::Error>
where
    I: Iterator<Item = &'a Lease>,
    S: serde::Serializer,
{
    serializer.collect_seq(peers.borrow_mut().by_ref().map(SavedLease::of))
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SavedLease {
    holder: String,
    backend: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    v4: Option<SavedSubnet>,
    #[serde(skip_serializing_if = "Option::is_none")]
    v6: Option<SavedSubnet>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SavedSubnet {
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

impl SavedState {
    /// The saved state and peers. Empty without a file; an unreadable one is logged and ignored.
    pub fn load(dir: &Path) -> (Self, Vec<Lease>) {
        let path = path(dir);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Default::default(),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot read the saved state; starting without it");
                return Default::default();
            }
        };
        let stored: StateFile = serde_json::from_slice(&text).unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "the saved state cannot be parsed; starting without it");
            StateFile::default()
        });
        (stored.state, stored.peers.iter().map(SavedLease::lease).collect())
    }

    pub fn save<'a>(&'a self, dir: &Path, peers: impl Iterator<Item = &'a Lease>) -> Result<(), WriteError> {
        let written = StateWriter { state: self, peers: RefCell::new(peers) };
        files::write(&path(dir), 0o600, |file| {
            let mut file = std::io::BufWriter::new(file);
            serde_json::to_writer(&mut file, &written)?;
            std::io::Write::flush(&mut file)
        })
    }

    pub fn subnets(&self) -> Vec<IpNetwork> {
        self.subnets.iter().filter_map(|text| cidr::parse_cidr(text).ok()).collect()
    }

    pub fn macs(&self) -> (Option<Mac>, Option<Mac>) {
        let read = |text: &Option<String>| text.as_ref().and_then(|text| text.parse().ok());
        (read(&self.mac4), read(&self.mac6))
    }
}

impl SavedLease {
    fn of(lease: &Lease) -> Self {
        let subnet = |subnet: &LeasedSubnet| SavedSubnet {
            subnet: subnet.subnet.to_string(),
            public: subnet.public.to_string(),
            vni: subnet.vtep.map(|v| v.vni),
            mac: subnet.vtep.map(|v| v.mac.to_string()),
        };
        SavedLease {
            holder: lease.holder.to_string(),
            backend: lease.backend.to_string(),
            v4: lease.v4.as_ref().map(subnet),
            v6: lease.v6.as_ref().map(subnet),
        }
    }

    fn lease(&self) -> Lease {
        let subnet = |stored: &SavedSubnet| {
            let vtep = match (stored.vni, &stored.mac) {
                (Some(vni), Some(mac)) => Some(Vtep { vni, mac: mac.parse().ok()? }),
                _ => None,
            };
            Some(LeasedSubnet {
                subnet: cidr::parse_cidr(&stored.subnet).ok()?,
                public: stored.public.parse().ok()?,
                vtep,
            })
        };
        Lease::new(
            &self.holder,
            &self.backend,
            self.v4.as_ref().and_then(subnet),
            self.v6.as_ref().and_then(subnet),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_read_back_as_saved_and_garbage_reads_as_empty() {
        let dir = tempfile::tempdir().unwrap();
        let subnet = LeasedSubnet {
            subnet: "10.1.2.0/24".parse().unwrap(),
            public: "192.0.2.7".parse().unwrap(),
            vtep: Some(Vtep { vni: 1, mac: "6a:0b:c4:11:22:33".parse().unwrap() }),
        };
        let peer = Lease::new("n1", "vxlan", Some(subnet), None);
        let state = SavedState { subnets: vec!["10.1.3.0/24".into()], ..SavedState::default() };
        state.save(dir.path(), std::iter::once(&peer)).unwrap();
        assert_eq!(SavedState::load(dir.path()), (state, vec![peer]));
        for garbage in ["", "{", "[]", r#"{"peers": 7}"#] {
            std::fs::write(dir.path().join("state.json"), garbage).unwrap();
            assert_eq!(SavedState::load(dir.path()), Default::default(), "{garbage:?}");
        }
    }
}
