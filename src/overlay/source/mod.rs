//! Where leases come from. Each source says what it knows in a mailbox, and goes on by itself when the other side is away
//! for a while.

pub mod etcd;
pub mod kube;
mod mailbox;
mod registration;

pub use mailbox::{Inbox, Outbox, View, mailbox};
pub use registration::Memory;
