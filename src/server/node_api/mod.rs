//! The node's HTTPS API, by default on port 10250: what the kubelet serves, so that kubectl, the apiserver and whoever
//! gathers metrics work unchanged.
//!
//! A connection takes a seat, shakes hands, and then each of its requests is authenticated, authorised and routed, in this
//! order; only then an endpoint sees it. Endpoints are in `endpoints`, one file each.
//!
//! Architecture invariant: there is no way to an endpoint that passes the two checks by, and no port without them.

mod answer;
mod authenticate;
mod authorize;
mod cache;
mod ciphers;
mod crowd;
mod endpoints;
mod listener;
mod seats;
mod self_signed;
mod streaming;
mod tls;
mod traffic;

#[cfg(test)]
mod tests;

pub use listener::{ListenError, NodeApi, listen};
