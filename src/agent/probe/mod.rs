//! Probes and the handlers that they share with lifecycle hooks: exec, HTTP, TCP and gRPC.

pub mod grpc_health;
pub mod handler;
pub mod insecure_tls;
pub mod prober;
