//! The variables that tell a container where services are.

use std::collections::BTreeMap;

use super::{ConfigError, Variables};

/// What of a Service its variables are made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceEnv {
    pub namespace: String,
    pub name: String,
    /// Empty or "None" for a service without an address of its own.
    pub cluster_ip: String,
    pub ports: Vec<ServicePort>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    pub name: String,
    pub port: i32,
    /// Empty stands for TCP.
    pub protocol: String,
}

/// The services of the pod's namespace when links are wanted, and in any case kubernetes.default, because that is how
/// a program finds the API. A service of the pod's namespace wins over that one.
pub fn service_env(namespace: &str, links: bool, services: &[ServiceEnv]) -> Result<Variables, ConfigError> {
    let addressed =
        |s: &&ServiceEnv| !s.cluster_ip.is_empty() && s.cluster_ip != "None" && !s.ports.is_empty();
    let master = |s: &ServiceEnv| s.namespace == "default" && s.name == "kubernetes";

    let mut chosen = BTreeMap::new();
    for service in services.iter().filter(addressed) {
        if master(service) {
            chosen.entry(service.name.as_str()).or_insert(service);
        } else if links && service.namespace == namespace {
            chosen.insert(service.name.as_str(), service);
        }
    }
    let mut all = Variables::default();
    for (name, value) in chosen.into_values().flat_map(variables) {
        all.set(&name, value.into_bytes())?;
    }
    Ok(all)
}

fn variables(service: &ServiceEnv) -> Vec<(String, String)> {
    let prefix = upper(&service.name);
    let mut vars = vec![(format!("{prefix}_SERVICE_HOST"), service.cluster_ip.clone())];
    let host = match service.cluster_ip.contains(':') {
        true => format!("[{}]", service.cluster_ip),
        false => service.cluster_ip.clone(),
    };
    for (index, port) in service.ports.iter().enumerate() {
        let number = port.port.to_string();
        let protocol = if port.protocol.is_empty() { "TCP" } else { port.protocol.as_str() };
        let url = format!("{}://{host}:{number}", protocol.to_lowercase());
        if index == 0 {
            vars.push((format!("{prefix}_SERVICE_PORT"), number.clone()));
            vars.push((format!("{prefix}_PORT"), url.clone()));
        }
        if !port.name.is_empty() {
            vars.push((format!("{prefix}_SERVICE_PORT_{}", upper(&port.name)), number.clone()));
        }
        let port_prefix = format!("{prefix}_PORT_{number}_{}", protocol.to_uppercase());
        vars.push((format!("{port_prefix}_PROTO"), protocol.to_lowercase()));
        vars.push((format!("{port_prefix}_PORT"), number));
        vars.push((format!("{port_prefix}_ADDR"), service.cluster_ip.clone()));
        vars.push((port_prefix, url));
    }
    vars
}

fn upper(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}
