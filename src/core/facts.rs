//! What a pure decision may not fetch for itself and no pod remembers: the time, probe verdicts, the node's own figures.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;

use crate::ids::ContainerId;
use crate::probe::ProbeKind;

#[derive(Debug, Clone)]
pub struct Facts {
    pub now: Timestamp,
    /// Keyed by container instance, so that a verdict never outlives what it judged.
    pub probes: BTreeMap<ContainerId, ProbeVerdicts>,
    /// The node's addresses, primary first.
    pub host_ips: Vec<IpAddr>,
    /// What the runtime calls itself (containerd, cri-o): the scheme of every containerID in a status.
    pub runtime_name: String,
    /// The runtime handler of this pod can mount recursively read-only.
    pub recursive_read_only: bool,
}

/// The verdicts of one container instance's probes. Without a probe of a kind the verdict is its neutral one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeVerdicts {
    pub started: bool,
    pub ready: bool,
    /// The probe that failed for good, liveness or startup. The container is to be killed.
    pub unhealthy: Option<ProbeKind>,
}
