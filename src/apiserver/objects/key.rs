//! Which object a pod refers to.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectKind {
    ConfigMap,
    Secret,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    pub kind: ObjectKind,
    pub namespace: String,
    pub name: String,
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            ObjectKind::ConfigMap => "configmap",
            ObjectKind::Secret => "secret",
        };
        write!(f, "{kind} {}/{}", self.namespace, self.name)
    }
}

impl ObjectKey {
    /// The path of the collection that the object is in.
    pub(super) fn collection(&self) -> String {
        let resource = match self.kind {
            ObjectKind::ConfigMap => "configmaps",
            ObjectKind::Secret => "secrets",
        };
        format!("/api/v1/namespaces/{}/{resource}", self.namespace)
    }
}
