//! Everything that runs, as it was measured at one time.

use jiff::Timestamp;

use super::usage::{Filesystem, Interface, Usage};

#[derive(Debug, Clone)]
pub struct Report {
    pub at: Timestamp,
    pub node: NodeReport,
    pub pods: Vec<PodReport>,
    /// Something that should have been there could not be read.
    pub incomplete: bool,
}

#[derive(Debug, Clone, Default)]
pub struct NodeReport {
    pub name: String,
    pub booted: Timestamp,
    pub usage: Usage,
    pub interfaces: Vec<Interface>,
    pub fs: Option<Filesystem>,
    /// Cgroups of the node itself: kubelet, runtime, pods.
    pub system: Vec<(&'static str, Usage)>,
}

#[derive(Debug, Clone)]
pub struct PodReport {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub created: Timestamp,
    /// Its path below the hierarchies, beginning with a slash.
    pub cgroup: String,
    pub usage: Usage,
    /// `None` for a pod in the host's network.
    pub interfaces: Option<Vec<Interface>>,
    pub containers: Vec<ContainerReport>,
}

#[derive(Debug, Clone)]
pub struct ContainerReport {
    pub id: String,
    pub name: String,
    pub image: String,
    pub created: Timestamp,
    pub started: Option<Timestamp>,
    pub cgroup: String,
    pub usage: Usage,
}
