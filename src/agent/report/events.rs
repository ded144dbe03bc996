//! Events about pods and about this node, as `kubectl describe` shows them.

use k8s_openapi::api::core::v1::Pod;
use keelson_apiserver::{EventType, ObjectRef};

use crate::node::Node;

impl Node {
    pub fn pod_event(&self, pod: &Pod, warning: bool, reason: &str, message: &str, container: Option<&str>) {
        let object = match container {
            Some(name) => ObjectRef::container(pod, name),
            None => ObjectRef::pod(pod),
        };
        self.reports.events.event(&object, event_type(warning), reason, message);
    }

    pub fn node_event(&self, warning: bool, reason: &str, message: &str) {
        let object = ObjectRef::node(&self.settings.node_name);
        self.reports.events.event(&object, event_type(warning), reason, message);
    }
}

fn event_type(warning: bool) -> EventType {
    if warning { EventType::Warning } else { EventType::Normal }
}
