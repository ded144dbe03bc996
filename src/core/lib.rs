//! What should happen on a node, decided without touching anything.
//!
//! Architecture invariant: nothing here reads a clock, a file, an environment variable or a socket. Whatever a
//! decision needs is passed in, so every decision can be tested by a table and replayed.

pub mod admission;
pub mod allocation;
pub mod backoff;
pub mod config;
pub mod cpu_manager;
pub mod cpuset;
pub mod credential_provider;
pub mod defaults;
pub mod der;
pub mod desired;
pub mod dns;
pub mod downward;
pub mod env;
pub mod expand;
pub mod facts;
pub mod firewall;
pub mod hash;
pub mod ids;
pub mod image;
mod likeness;
pub mod logs;
pub mod machine_topology;
pub mod manifest;
pub mod memory_manager;
pub mod node;
pub mod node_api;
pub mod observed;
pub mod plan;
pub mod pod;
pub mod probe;
pub mod qos;
pub mod resource_managers;
pub mod resources;
pub mod security;
pub mod stats;
pub mod status;
pub mod timeline;
pub mod topology_manager;
pub mod user_namespaces;
pub mod view;
pub mod volumes;
mod yaml;
