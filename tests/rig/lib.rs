//! The test rig: real parts, started and stopped under a temporary directory, each on ports and sockets of its own.
//!
//! A test target is a `main` that hands its suites to [`schedule::main`]. That puts each into network, mount and process
//! namespaces of its own, so that several run at once without knowing of each other, and nothing they start outlives them.
//!
//! From there a suite builds what it needs: a [`cluster::Cluster`] (etcd, kube-apiserver, scheduler, controllers), nodes that
//! [`join`](cluster::Cluster::join) it (a containerd of either [`Kind`](containerd::Kind) and the agent), a
//! [`registry::Registry`]. What the tests then compare is the API's view ([`pods`]) with the runtime's ([`runtime`]) and
//! with what lies on disk ([`leftovers`]).

pub mod agent;
pub mod built;
pub mod certs;
pub mod cgroups;
pub mod cluster;
pub mod cni;
pub mod containerd;
pub mod control_plane;
pub mod hosts;
pub mod images;
pub mod isolation;
pub mod kubectl;
pub mod leftovers;
pub mod logs;
pub mod machine;
pub mod node_api;
pub mod objects;
pub mod parts;
pub mod pods;
pub mod process;
pub mod registry;
pub mod relay;
pub mod runtime;
pub mod schedule;
pub mod snapshot;
pub mod suite;
pub mod supervisor;
pub mod terminal;
pub mod wait;
