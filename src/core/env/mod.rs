//! A container's environment, and the objects that a pod needs before it can have one.

mod file;
mod refs;
mod services;
#[cfg(test)]
mod tests;
mod variables;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVarSource, Pod, Secret};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::downward::{Addresses, DownwardError, env_field, resource_field};
use crate::expand::expand;
use crate::security::SecurityError;
use file::file_key;

pub use file::{EnvFile, EnvFileContent, FileKeyProblem, MAX_FILE_BYTES, env_files};
pub use refs::{ObjectRefs, object_refs};
pub use services::{ServiceEnv, ServicePort, service_env};
pub use variables::{CommandLine, MAX_STRING_BYTES, MAX_TOTAL_BYTES, Variables};

/// What keeps a container from being created although nothing is wrong with the machine. It becomes the container's
/// CreateContainerConfigError and goes away when the object appears.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("configmap {name:?} not found")]
    ConfigMapMissing { name: String },
    #[error("secret {name:?} not found")]
    SecretMissing { name: String },
    #[error("couldn't find key {key} in ConfigMap {namespace}/{name}")]
    ConfigMapKey { namespace: String, name: String, key: String },
    #[error("couldn't find key {key} in Secret {namespace}/{name}")]
    SecretKey { namespace: String, name: String, key: String },
    #[error(
        "{what} refers to a value that is not UTF-8 text, which only an environment variable or a file can hold"
    )]
    NotText { what: String },
    #[error(
        "{what} is longer than {MAX_STRING_BYTES} bytes, which is the most that Linux takes for one variable or argument; put it into a file of a volume"
    )]
    TooLong { what: String },
    #[error(
        "{what} makes the environment and the arguments larger than {MAX_TOTAL_BYTES} bytes, which is the most that Linux takes for a program; put what is large into files of a volume, and leave out what is not needed (enableServiceLinks: false leaves out services)"
    )]
    TooMuch { what: String },
    #[error("environment variable {name}: its value contains a NUL byte, which no environment can hold")]
    Nul { name: String },
    #[error("environment variable {name}: {source}")]
    FileKeyRef { name: String, source: FileKeyProblem },
    #[error("environment variable {name}: {source}")]
    Downward { name: String, source: DownwardError },
    #[error(transparent)]
    Security(#[from] SecurityError),
}

/// Everything a container's environment is made of. Objects are keyed by name; all are of the pod's namespace.
#[derive(Debug, Clone, Copy)]
pub struct EnvInput<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub config_maps: &'a BTreeMap<String, Arc<ConfigMap>>,
    pub secrets: &'a BTreeMap<String, Arc<Secret>>,
    /// What [`env_files`] names.
    pub files: &'a BTreeMap<EnvFile, EnvFileContent>,
    /// Every service of the cluster, or at least those of the pod's namespace and of `default`.
    pub services: &'a [ServiceEnv],
    pub pod_ips: &'a [IpAddr],
    pub host_ips: &'a [IpAddr],
    pub node_allocatable: &'a BTreeMap<String, Quantity>,
}

/// Service variables first, then envFrom, then env in the order it was written. A later one replaces an earlier one
/// of the same name where that stood. References in `env` see what was set above them, and service variables last.
pub fn environment(input: &EnvInput<'_>) -> Result<Variables, ConfigError> {
    let namespace = input.pod.metadata.namespace.as_deref().unwrap_or("default");
    let links = input.pod.spec.as_ref().and_then(|s| s.enable_service_links).unwrap_or(true);
    let services = service_env(namespace, links, input.services)?;

    let mut own = Variables::default();
    env_from(&mut own, input)?;
    for var in input.container.env.iter().flatten() {
        let value = match (var.value.as_deref().unwrap_or_default(), &var.value_from) {
            ("", Some(source)) => match resolve(input, namespace, &var.name, source)? {
                Some(value) => value,
                None => continue,
            },
            (text, _) => {
                let known = |name: &str| own.get(name).or_else(|| services.get(name));
                let too_long =
                    |_| ConfigError::TooLong { what: format!("environment variable {}", var.name) };
                expand(text, MAX_STRING_BYTES, known).map_err(too_long)?
            }
        };
        own.set(&var.name, value)?;
    }
    let mut all = Variables::default();
    for (name, value) in services.into_pairs() {
        if own.get(&name).is_none() {
            all.set(&name, value)?;
        }
    }
    for (name, value) in own.into_pairs() {
        all.set(&name, value)?;
    }
    Ok(all)
}

fn env_from(own: &mut Variables, input: &EnvInput<'_>) -> Result<(), ConfigError> {
    for source in input.container.env_from.iter().flatten() {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        if let Some(wanted) = &source.config_map_ref {
            match input.config_maps.get(&wanted.name) {
                Some(found) => {
                    for (key, value) in found.data.iter().flatten() {
                        own.set(&format!("{prefix}{key}"), value.clone().into_bytes())?;
                    }
                }
                None if wanted.optional == Some(true) => {}
                None => return Err(ConfigError::ConfigMapMissing { name: wanted.name.clone() }),
            }
        } else if let Some(wanted) = &source.secret_ref {
            match input.secrets.get(&wanted.name) {
                Some(found) => {
                    for (key, value) in found.data.iter().flatten() {
                        own.set(&format!("{prefix}{key}"), value.0.clone())?;
                    }
                }
                None if wanted.optional == Some(true) => {}
                None => return Err(ConfigError::SecretMissing { name: wanted.name.clone() }),
            }
        }
    }
    Ok(())
}

/// None when the source is optional and absent: then the variable is not set at all.
fn resolve(
    input: &EnvInput<'_>,
    namespace: &str,
    variable: &str,
    source: &EnvVarSource,
) -> Result<Option<Vec<u8>>, ConfigError> {
    let downward = |source| ConfigError::Downward { name: variable.to_owned(), source };
    if let Some(field) = &source.field_ref {
        let addresses = Addresses { pod_ips: input.pod_ips, host_ips: input.host_ips };
        let text = env_field(field, input.pod, addresses).map_err(downward)?;
        return Ok(Some(text.into_bytes()));
    }
    if let Some(field) = &source.resource_field_ref {
        let text = resource_field(field, input.pod, Some(input.container), input.node_allocatable)
            .map_err(downward)?;
        return Ok(Some(text.into_bytes()));
    }
    if let Some(wanted) = &source.config_map_key_ref {
        let optional = wanted.optional == Some(true);
        let (name, key) = (wanted.name.clone(), wanted.key.clone());
        let Some(found) = input.config_maps.get(&name) else {
            return if optional { Ok(None) } else { Err(ConfigError::ConfigMapMissing { name }) };
        };
        return match found.data.as_ref().and_then(|d| d.get(&key)) {
            Some(value) => Ok(Some(value.clone().into_bytes())),
            None if optional => Ok(None),
            None => Err(ConfigError::ConfigMapKey { namespace: namespace.to_owned(), name, key }),
        };
    }
    if let Some(wanted) = &source.secret_key_ref {
        let optional = wanted.optional == Some(true);
        let (name, key) = (wanted.name.clone(), wanted.key.clone());
        let Some(found) = input.secrets.get(&name) else {
            return if optional { Ok(None) } else { Err(ConfigError::SecretMissing { name }) };
        };
        return match found.data.as_ref().and_then(|d| d.get(&key)) {
            Some(value) => Ok(Some(value.0.clone())),
            None if optional => Ok(None),
            None => Err(ConfigError::SecretKey { namespace: namespace.to_owned(), name, key }),
        };
    }
    if let Some(wanted) = &source.file_key_ref {
        let named = |source| ConfigError::FileKeyRef { name: variable.to_owned(), source };
        return file_key(input.pod, wanted, input.files).map_err(named);
    }
    Ok(Some(vec![]))
}
