//! The path on real devices and sockets: hosts are network namespaces around a router.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../rig/mod.rs"]
mod rig;

mod interop;
mod life;
mod reach;
mod router;
mod strangers;
