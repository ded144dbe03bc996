//! The overlay's status, as `keelson overlay status` shows it.

use serde::{Deserialize, Serialize};

/// Everything that `keelson overlay status` shows. All in one struct, because it is the JSON document that scripts read.
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
    /// Whether the leases in force come from that source, or from the saved state.
    pub heard: bool,
    pub peers: Vec<PeerStatus>,
    /// Problems of this host. Empty when all is well.
    pub problems: Vec<String>,
    /// How often a change by other programs had to be repaired.
    pub repairs: u64,
    pub ready: bool,
    /// Named counters of the udp data path and of the peer filter.
    pub counters: Vec<(String, u64)>,
    /// Netlink messages sent, and bytes received.
    #[serde(default)]
    pub kernel_requests: u64,
    #[serde(default)]
    pub kernel_bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PeerStatus {
    pub holder: String,
    pub subnets: Vec<String>,
    /// How the first of its subnets is reached.
    #[serde(flatten)]
    pub path: PathStatus,
    /// How the second is, of a peer that has both families.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<PathStatus>,
    pub problems: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PathStatus {
    pub public: String,
    /// "vxlan", "udp", "direct", or "none" where it cannot be reached.
    pub path: String,
    /// Share of the latest probes that were lost, in percent; None before the first.
    pub loss: Option<u8>,
    /// Milliseconds.
    pub rtt: Option<f64>,
    /// The largest packet that got through.
    pub mtu: Option<u32>,
}

impl PeerStatus {
    /// Each path to the peer, with its address family.
    pub fn paths(&self) -> impl Iterator<Item = (&'static str, &PathStatus)> {
        let family = |path: &PathStatus| if path.public.contains(':') { "ipv6" } else { "ipv4" };
        std::iter::once(&self.path).chain(&self.second).map(move |path| (family(path), path))
    }
}
