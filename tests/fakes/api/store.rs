//! Objects with versions, and the history that watches are served from.

use std::collections::BTreeMap;

use serde_json::{Value, json};

type Key = (String, String, String);

pub(crate) struct Store {
    version: u64,
    objects: BTreeMap<Key, Value>,
    history: Vec<Change>,
    /// A watch from before this version is answered that it is gone.
    oldest: u64,
    serial: u64,
}

#[derive(Clone)]
pub(crate) struct Change {
    pub(crate) version: u64,
    /// ADDED, MODIFIED or DELETED.
    pub(crate) type_: &'static str,
    pub(crate) resource: String,
    pub(crate) object: Value,
}

impl Default for Store {
    /// Version 0 means "any" to a watch, so history begins with 1.
    fn default() -> Self {
        Self { version: 1, objects: BTreeMap::new(), history: Vec::new(), oldest: 0, serial: 0 }
    }
}

impl Store {
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<&Value> {
        self.objects.get(&key(resource, namespace, name))
    }

    /// An empty namespace means all of them.
    pub(crate) fn list(&self, resource: &str, namespace: &str) -> Vec<&Value> {
        let within = |key: &Key| key.0 == resource && (namespace.is_empty() || key.1 == namespace);
        self.objects.iter().filter(|(key, _)| within(key)).map(|(_, object)| object).collect()
    }

    pub(crate) fn put(&mut self, resource: &str, mut object: Value) -> Value {
        let (namespace, name) = names(&object);
        let before = self.objects.get(&key(resource, &namespace, &name)).cloned();
        self.version += 1;
        self.serial += 1;
        let serial = self.serial;
        let metadata = metadata(&mut object);
        let old = |field: &str| before.as_ref().map(|before| before["metadata"][field].clone());
        if metadata.get("uid").is_none_or(|uid| uid.is_null()) {
            let fresh = json!(format!("00000000-0000-0000-0000-{serial:012}"));
            metadata.insert("uid".into(), old("uid").unwrap_or(fresh));
        }
        if metadata.get("creationTimestamp").is_none_or(|time| time.is_null()) {
            metadata.insert("creationTimestamp".into(), old("creationTimestamp").unwrap_or(json!(now(0))));
        }
        metadata.insert("resourceVersion".into(), json!(self.version.to_string()));
        let type_ = if before.is_some() { "MODIFIED" } else { "ADDED" };
        self.objects.insert(key(resource, &namespace, &name), object.clone());
        self.record(type_, resource, object.clone());
        object
    }

    pub(crate) fn remove(&mut self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        let mut object = self.objects.remove(&key(resource, namespace, name))?;
        self.version += 1;
        metadata(&mut object).insert("resourceVersion".into(), json!(self.version.to_string()));
        self.record("DELETED", resource, object.clone());
        Some(object)
    }

    pub(crate) fn mark_deleted(
        &mut self,
        resource: &str,
        namespace: &str,
        name: &str,
        grace: i64,
    ) -> Option<Value> {
        let mut object = self.get(resource, namespace, name)?.clone();
        let metadata = metadata(&mut object);
        metadata.insert("deletionTimestamp".into(), json!(now(grace)));
        metadata.insert("deletionGracePeriodSeconds".into(), json!(grace));
        Some(self.put(resource, object))
    }

    pub(crate) fn compact(&mut self) {
        self.oldest = self.version;
        self.history.clear();
    }

    /// What happened to a resource after `version`, or None when that is no longer known.
    pub(crate) fn since(&self, resource: &str, version: u64) -> Option<Vec<Change>> {
        if version < self.oldest {
            return None;
        }
        let later =
            self.history.iter().filter(|change| change.version > version && change.resource == resource);
        Some(later.cloned().collect())
    }

    fn record(&mut self, type_: &'static str, resource: &str, object: Value) {
        self.history.push(Change { version: self.version, type_, resource: resource.to_owned(), object });
    }
}

fn key(resource: &str, namespace: &str, name: &str) -> Key {
    (resource.to_owned(), namespace.to_owned(), name.to_owned())
}

pub(crate) fn names(object: &Value) -> (String, String) {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

pub(crate) fn metadata(object: &mut Value) -> &mut serde_json::Map<String, Value> {
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    object["metadata"].as_object_mut().expect("just made")
}

/// RFC 3339, this many seconds from now.
pub(crate) fn now(ahead: i64) -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let seconds = since.as_secs() as i64 + ahead;
    let time = k8s_openapi::jiff::Timestamp::from_second(seconds).expect("in range");
    time.to_string()
}

/// True when an object has what a field selector asks for.
pub(crate) fn selected(object: &Value, selector: &str) -> bool {
    selector.split(',').filter(|term| !term.is_empty()).all(|term| {
        let Some((path, wanted)) = term.split_once('=') else { return false };
        let found = path.split('.').fold(object, |value, field| &value[field]);
        found.as_str().unwrap_or_default() == wanted.trim_start_matches('=')
    })
}
