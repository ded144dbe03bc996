//! What the parts of a node report about it as they learn of it: whoever manages disks, volumes, devices or the network.
//! It goes into the Node object with everything else that is known.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::Pressure;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeSignals {
    pub pressure: Pressure,
    /// What keeps the node from being ready, in words: storage, a shutdown in progress. One sentence from each source.
    pub problems: BTreeMap<SignalSource, String>,
    /// Unique names of attachable volumes in use.
    pub volumes_in_use: BTreeSet<String>,
    /// Resources that devices offer, and how much of each.
    pub extended: BTreeMap<String, u64>,
    /// Primary first; a second one of the other family makes the node dual-stack.
    pub addresses: Vec<IpAddr>,
}

/// The part of the agent that reports a problem. It alone takes it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SignalSource(pub &'static str);
