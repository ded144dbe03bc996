//! What the overlay is told to do: flannel's network configuration and flags. Nothing here touches the machine.

mod net_conf;
mod options;
mod pool;

pub use net_conf::{Backend, Division, NetConf, NetConfError, UDP_PORT, VXLAN_PORT, Vxlan};
pub use options::{EtcdOptions, InterfaceChoice, KubeOptions, LeaseSource, Options};
pub use pool::{Pool, PoolError};
