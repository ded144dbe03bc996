//! What is told about the overlay, to people and to machines.

use serde::{Deserialize, Serialize};

/// Everything that `keelson overlay status` shows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub backend: String,
    pub networks: Vec<String>,
    /// This host's own subnets; none while it has no lease.
    pub subnets: Vec<String>,
    pub interface: String,
    pub public: Vec<String>,
    pub mtu: u32,
    /// "kubernetes", "etcd" or "none".
    pub leases: String,
    /// Whether what is in force was heard from there, or is remembered from earlier.
    pub heard: bool,
    pub peers: Vec<PeerStatus>,
    /// What is wrong, in words. Empty when all is well.
    pub problems: Vec<String>,
    /// How often something that others changed had to be put right.
    pub repairs: u64,
    pub ready: bool,
    /// Named numbers of the udp data path and of the guard.
    pub counters: Vec<(String, u64)>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PeerStatus {
    pub holder: String,
    pub subnets: Vec<String>,
    pub public: String,
    /// "vxlan", "udp", "direct", or "none" where it cannot be reached.
    pub path: String,
    /// Share of the latest probes that were lost, in percent; None before the first.
    pub loss: Option<u8>,
    /// Milliseconds.
    pub rtt: Option<f64>,
    /// The largest packet that got through.
    pub mtu: Option<u32>,
    pub problems: Vec<String>,
}

impl Status {
    /// One line for a condition: what is wrong first, and how much more there is.
    pub fn summary(&self) -> Option<String> {
        let all: Vec<&String> =
            self.problems.iter().chain(self.peers.iter().flat_map(|p| p.problems.iter())).collect();
        let first = all.first()?;
        Some(match all.len() {
            1 => (*first).clone(),
            more => format!("{first} (and {} more)", more - 1),
        })
    }
}
