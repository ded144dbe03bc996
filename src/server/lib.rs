//! What this node answers: the root-only socket behind `keelson pods`, the health endpoint on 10248, and the HTTPS API
//! on 10250.

pub mod client;
pub mod healthz;
pub mod local;
pub mod node_api;
mod port;
mod reply;

#[cfg(test)]
mod tests;
