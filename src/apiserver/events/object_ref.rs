//! Which object an event is about.

use k8s_openapi::api::core::v1::Pod;

/// A reference to an object or to a part of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ObjectRef {
    pub api_version: String,
    pub kind: String,
    /// Empty for a Node.
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    /// The part of the object: `spec.containers{web}`.
    pub field_path: String,
}

impl ObjectRef {
    pub fn pod(pod: &Pod) -> Self {
        let metadata = &pod.metadata;
        Self {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            field_path: String::new(),
        }
    }

    /// One container of a pod, wherever in the spec it stands.
    pub fn container(pod: &Pod, container: &str) -> Self {
        let spec = pod.spec.as_ref();
        let is_init = spec
            .and_then(|spec| spec.init_containers.as_ref())
            .is_some_and(|list| list.iter().any(|c| c.name == container));
        let is_ephemeral = spec
            .and_then(|spec| spec.ephemeral_containers.as_ref())
            .is_some_and(|list| list.iter().any(|c| c.name == container));
        let list = match (is_init, is_ephemeral) {
            (true, _) => "initContainers",
            (_, true) => "ephemeralContainers",
            _ => "containers",
        };
        Self { field_path: format!("spec.{list}{{{container}}}"), ..Self::pod(pod) }
    }

    /// The kubelet puts the node's name where its uid belongs, and `kubectl describe node` looks for it there.
    pub fn node(name: &str) -> Self {
        Self { kind: "Node".to_owned(), name: name.to_owned(), uid: name.to_owned(), ..Self::default() }
    }

    /// The object as a whole; its version does not make it another object either.
    pub(super) fn without_field(&self) -> Self {
        Self { field_path: String::new(), resource_version: String::new(), ..self.clone() }
    }

    /// Events about things without a namespace live in the default one.
    pub(super) fn event_namespace(&self) -> &str {
        if self.namespace.is_empty() { "default" } else { &self.namespace }
    }
}
