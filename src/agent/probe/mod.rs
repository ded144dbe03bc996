//! Probes, and the requests that they share with lifecycle hooks: exec, HTTP, TCP and gRPC.

pub mod grpc_health;
pub mod handler;
pub mod http;
pub mod insecure_tls;
pub mod prober;
pub mod resolver;
#[cfg(test)]
pub mod test_server;
