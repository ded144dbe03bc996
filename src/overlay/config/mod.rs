//! The overlay's configuration: flannel's network configuration and flags. Nothing here touches the machine.

mod net_conf;
mod options;
mod pool;

pub use net_conf::{Backend, NetConf, NetConfError, SubnetRange, UDP_PORT, VXLAN_PORT, Vxlan};
pub use options::{
    EtcdOptions, FileOptions, FirewallOptions, InterfaceChoice, KubeOptions, LeaseSource, Options,
};
pub use pool::{PoolError, SubnetPool};
