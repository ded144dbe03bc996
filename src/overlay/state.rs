//! What must outlive this process and the machine's next boot, in one file: while the apiserver or etcd is away, a host
//! that starts knows its subnet and its peers from here.

use std::cell::RefCell;
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
}

/// The file as it is read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Stored {
    #[serde(flatten)]
    state: State,
    peers: Vec<StoredLease>,
}

/// The file as it is written: the peers one by one, because together they take more room than the rest of the process.
#[derive(Serialize)]
struct Written<'a, I: Iterator<Item = &'a Lease>> {
    #[serde(flatten)]
    state: &'a State,
    #[serde(serialize_with = "each")]
    peers: RefCell<I>,
}

fn each<'a, I, S>(peers: &RefCell<I>, serializer: S) -> Result<S::Ok, S::Error>
where
    I: Iterator<Item = &'a Lease>,
    S: serde::Serializer,
{
    serializer.collect_seq(peers.borrow_mut().by_ref().map(StoredLease::of))
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
    /// What was kept, with the peers; nothing when there is no file or it cannot be read, which is only worth a warning.
    pub fn load(dir: &Path) -> (Self, Vec<Lease>) {
        let path = path(dir);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Default::default(),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot read what was kept; starting without it");
                return Default::default();
            }
        };
        let stored: Stored = serde_json::from_slice(&text).unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "what was kept cannot be understood; starting without it");
            Stored::default()
        });
        (stored.state, stored.peers.iter().map(StoredLease::lease).collect())
    }

    pub fn save<'a>(&'a self, dir: &Path, peers: impl Iterator<Item = &'a Lease>) -> Result<(), WriteError> {
        let written = Written { state: self, peers: RefCell::new(peers) };
        files::write(&path(dir), 0o600, |file| {
            let mut file = std::io::BufWriter::new(file);
            serde_json::to_writer(&mut file, &written)?;
            std::io::Write::flush(&mut file)
        })
    }

    pub fn subnets(&self) -> Vec<IpNet> {
        self.subnets.iter().filter_map(|text| text.parse().ok()).collect()
    }

    pub fn macs(&self) -> (Option<Mac>, Option<Mac>) {
        let read = |text: &Option<String>| text.as_ref().and_then(|text| text.parse().ok());
        (read(&self.mac4), read(&self.mac6))
    }
}

impl StoredLease {
    fn of(lease: &Lease) -> Self {
        let place = |place: &Place| StoredPlace {
            subnet: place.subnet.to_string(),
            public: place.public.to_string(),
            vni: place.vtep.map(|v| v.vni),
            mac: place.vtep.map(|v| v.mac.to_string()),
        };
        StoredLease {
            holder: lease.holder.to_string(),
            backend: lease.backend.to_string(),
            v4: lease.v4.as_ref().map(place),
            v6: lease.v6.as_ref().map(place),
        }
    }

    fn lease(&self) -> Lease {
        let place = |stored: &StoredPlace| {
            let vtep = match (stored.vni, &stored.mac) {
                (Some(vni), Some(mac)) => Some(Vtep { vni, mac: mac.parse().ok()? }),
                _ => None,
            };
            Some(Place { subnet: stored.subnet.parse().ok()?, public: stored.public.parse().ok()?, vtep })
        };
        Lease::new(
            &self.holder,
            &self.backend,
            self.v4.as_ref().and_then(place),
            self.v6.as_ref().and_then(place),
        )
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
        let peer = Lease::new("n1", "vxlan", Some(place), None);
        let state = State { subnets: vec!["10.1.3.0/24".into()], ..State::default() };
        state.save(dir.path(), std::iter::once(&peer)).unwrap();
        assert_eq!(State::load(dir.path()), (state, vec![peer]));
        for garbage in ["", "{", "[]", r#"{"peers": 7}"#] {
            std::fs::write(dir.path().join("state.json"), garbage).unwrap();
            assert_eq!(State::load(dir.path()), Default::default(), "{garbage:?}");
        }
    }
}
