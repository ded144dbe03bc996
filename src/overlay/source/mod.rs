//! Where leases come from. Each source sends what it knows through a [`channel`], and recovers by itself when its server is
//! away for a while.

mod channel;
pub mod etcd;
pub mod kube;
mod registration;

pub use channel::{SourceReceiver, SourceSender, SourceStatus, channel};
pub use registration::LastRegistration;
