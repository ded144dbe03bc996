//! What this node answers: the root-only socket behind `keelson pods`, and the health endpoint on 10248. The HTTPS API
//! on 10250 joins them here.

pub mod client;
mod connections;
pub mod healthz;
pub mod local;
mod reply;
mod socket;

#[cfg(test)]
mod tests;

pub use socket::SocketError;
