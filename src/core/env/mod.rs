//! A container's environment, and the objects that a pod needs before it can have one.

mod refs;
mod services;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVarSource, Pod, Secret};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::downward::{Addresses, DownwardError, env_field, resource_field};
use crate::expand::expand;
use crate::security::SecurityError;

pub use refs::{ObjectRefs, object_refs};
pub use services::{ServiceEnv, ServicePort, service_env};

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
        "key {key} in Secret {namespace}/{name} is not UTF-8 text and cannot be an environment variable; mount it as a file"
    )]
    NotText { namespace: String, name: String, key: String },
    #[error("environment variable {name}: its value contains a NUL byte, which no environment can hold")]
    Nul { name: String },
    #[error(
        "environment variable {name}: fileKeyRef is not supported by this agent; use a configMapKeyRef or a secretKeyRef"
    )]
    FileKeyRef { name: String },
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
    /// Every service of the cluster, or at least those of the pod's namespace and of `default`.
    pub services: &'a [ServiceEnv],
    pub pod_ips: &'a [IpAddr],
    pub host_ips: &'a [IpAddr],
    pub node_allocatable: &'a BTreeMap<String, Quantity>,
}

/// Service variables first, then envFrom, then env in the order it was written. A later one replaces an earlier one
/// of the same name where that stood. References in `env` see what was set above them, and service variables last.
pub fn environment(input: &EnvInput<'_>) -> Result<Vec<(String, String)>, ConfigError> {
    let namespace = input.pod.metadata.namespace.as_deref().unwrap_or("default");
    let links = input.pod.spec.as_ref().and_then(|s| s.enable_service_links).unwrap_or(true);
    let services = service_env(namespace, links, input.services);

    let mut own = Variables::default();
    own.env_from(input, namespace)?;
    for var in input.container.env.iter().flatten() {
        let value = match (var.value.as_deref().unwrap_or_default(), &var.value_from) {
            ("", Some(source)) => match resolve(input, namespace, &var.name, source)? {
                Some(value) => value,
                None => continue,
            },
            (text, _) => expand(text, |name| own.get(name).or_else(|| services.get(name).cloned())),
        };
        own.set(&var.name, value);
    }
    if let Some((name, _)) = own.list.iter().find(|(_, value)| value.contains('\0')) {
        return Err(ConfigError::Nul { name: name.clone() });
    }
    let mut all: Vec<_> = services.into_iter().filter(|(name, _)| !own.index.contains_key(name)).collect();
    all.append(&mut own.list);
    Ok(all)
}

/// Variables in the order they were first set.
#[derive(Default)]
struct Variables {
    list: Vec<(String, String)>,
    index: BTreeMap<String, usize>,
}

impl Variables {
    fn get(&self, name: &str) -> Option<String> {
        self.index.get(name).map(|at| self.list[*at].1.clone())
    }

    fn set(&mut self, name: &str, value: String) {
        match self.index.get(name) {
            Some(at) => self.list[*at].1 = value,
            None => {
                self.index.insert(name.to_owned(), self.list.len());
                self.list.push((name.to_owned(), value));
            }
        }
    }

    fn env_from(&mut self, input: &EnvInput<'_>, namespace: &str) -> Result<(), ConfigError> {
        for source in input.container.env_from.iter().flatten() {
            let prefix = source.prefix.as_deref().unwrap_or_default();
            if let Some(wanted) = &source.config_map_ref {
                match input.config_maps.get(&wanted.name) {
                    Some(found) => {
                        for (key, value) in found.data.iter().flatten() {
                            self.set(&format!("{prefix}{key}"), value.clone());
                        }
                    }
                    None if wanted.optional == Some(true) => {}
                    None => return Err(ConfigError::ConfigMapMissing { name: wanted.name.clone() }),
                }
            } else if let Some(wanted) = &source.secret_ref {
                match input.secrets.get(&wanted.name) {
                    Some(found) => {
                        for (key, value) in found.data.iter().flatten() {
                            let value = text(&value.0, namespace, &wanted.name, key)?;
                            self.set(&format!("{prefix}{key}"), value);
                        }
                    }
                    None if wanted.optional == Some(true) => {}
                    None => return Err(ConfigError::SecretMissing { name: wanted.name.clone() }),
                }
            }
        }
        Ok(())
    }
}

/// None when the source is optional and absent: then the variable is not set at all.
fn resolve(
    input: &EnvInput<'_>,
    namespace: &str,
    variable: &str,
    source: &EnvVarSource,
) -> Result<Option<String>, ConfigError> {
    let downward = |source| ConfigError::Downward { name: variable.to_owned(), source };
    if let Some(field) = &source.field_ref {
        let addresses = Addresses { pod_ips: input.pod_ips, host_ips: input.host_ips };
        return env_field(field, input.pod, addresses).map(Some).map_err(downward);
    }
    if let Some(field) = &source.resource_field_ref {
        return resource_field(field, input.pod, Some(input.container), input.node_allocatable)
            .map(Some)
            .map_err(downward);
    }
    if let Some(wanted) = &source.config_map_key_ref {
        let optional = wanted.optional == Some(true);
        let (name, key) = (wanted.name.clone(), wanted.key.clone());
        let Some(found) = input.config_maps.get(&name) else {
            return if optional { Ok(None) } else { Err(ConfigError::ConfigMapMissing { name }) };
        };
        return match found.data.as_ref().and_then(|d| d.get(&key)) {
            Some(value) => Ok(Some(value.clone())),
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
            Some(value) => text(&value.0, namespace, &name, &key).map(Some),
            None if optional => Ok(None),
            None => Err(ConfigError::SecretKey { namespace: namespace.to_owned(), name, key }),
        };
    }
    if source.file_key_ref.is_some() {
        return Err(ConfigError::FileKeyRef { name: variable.to_owned() });
    }
    Ok(Some(String::new()))
}

fn text(bytes: &[u8], namespace: &str, name: &str, key: &str) -> Result<String, ConfigError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| ConfigError::NotText {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        key: key.to_owned(),
    })
}
