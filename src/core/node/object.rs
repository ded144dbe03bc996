//! This node's object as the apiserver has it. It is heard of in two ways, by the watch and in the answers to what the agent
//! writes, and either may be the newer one.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Taint};

#[derive(Debug, Clone, Default)]
pub struct NodeObject {
    known: Known,
    /// The watch was interrupted, so that the next list counts whatever its version: the server may have been restored
    /// from an older state.
    interrupted: bool,
}

#[derive(Debug, Clone, Default)]
enum Known {
    #[default]
    Nothing,
    /// There is none.
    Absent,
    Present(Arc<Node>),
}

impl NodeObject {
    /// `None`: there is none, or nothing was heard of it yet.
    pub fn get(&self) -> Option<&Arc<Node>> {
        match &self.known {
            Known::Present(node) => Some(node),
            Known::Nothing | Known::Absent => None,
        }
    }

    /// Whether the apiserver has said anything about it.
    pub fn is_known(&self) -> bool {
        !matches!(self.known, Known::Nothing)
    }

    pub fn uid(&self) -> Option<&str> {
        self.get()?.metadata.uid.as_deref()
    }

    pub fn labels(&self) -> Option<&BTreeMap<String, String>> {
        self.get()?.metadata.labels.as_ref()
    }

    pub fn taints(&self) -> &[Taint] {
        let spec = self.get().and_then(|node| node.spec.as_ref());
        spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
    }

    /// The ranges that pods' addresses are from, primary first; empty until somebody assigned them.
    pub fn pod_ranges(&self) -> &[String] {
        let spec = self.get().and_then(|node| node.spec.as_ref());
        spec.and_then(|spec| spec.pod_cidrs.as_deref()).unwrap_or_default()
    }

    /// A state of the object, from the watch or from an answer. Returns whether it is news.
    pub fn seen(&mut self, node: Node) -> bool {
        let newer = |known: &Arc<Node>| !matches!((version(&node), version(known)), (Some(new), Some(old)) if new <= old);
        if !self.get().is_none_or(newer) {
            return false;
        }
        self.known = Known::Present(Arc::new(node));
        true
    }

    /// Everything there is of it, as of a version.
    pub fn listed(&mut self, node: Option<Node>, version_of_list: &str) -> bool {
        let interrupted = std::mem::take(&mut self.interrupted);
        let version_of_list = number(Some(version_of_list));
        let older = self.get().is_some_and(
            |known| matches!((version_of_list, version(known)), (Some(list), Some(known)) if list < known),
        );
        if older && !interrupted {
            return false;
        }
        let same = match (&self.known, &node) {
            (Known::Absent, None) => true,
            (Known::Present(known), Some(node)) => **known == *node,
            _ => false,
        };
        self.known = node.map_or(Known::Absent, |node| Known::Present(Arc::new(node)));
        !same
    }

    /// It was deleted. One that was made anew meanwhile is another.
    pub fn deleted(&mut self, node: &Node) -> bool {
        let current = self.get().is_none_or(|known| known.metadata.uid == node.metadata.uid);
        let news = current && !matches!(self.known, Known::Absent);
        if news {
            self.known = Known::Absent;
        }
        news
    }

    /// An answer says that there is none.
    pub fn missing(&mut self) -> bool {
        !matches!(std::mem::replace(&mut self.known, Known::Absent), Known::Absent)
    }

    pub fn interrupted(&mut self) {
        self.interrupted = true;
    }
}

fn version(node: &Node) -> Option<u64> {
    number(node.metadata.resource_version.as_deref())
}

/// Versions of one kind of object can be compared as numbers, also those of two objects that had the same name.
fn number(version: Option<&str>) -> Option<u64> {
    version?.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(uid: &str, version: &str) -> Node {
        serde_json::from_value(json!({"metadata": {"uid": uid, "resourceVersion": version}})).unwrap()
    }

    fn shown(object: &NodeObject) -> String {
        match object.get() {
            Some(node) => {
                format!("{} at {}", object.uid().unwrap(), node.metadata.resource_version.clone().unwrap())
            }
            None if object.is_known() => "absent".into(),
            None => "unknown".into(),
        }
    }

    #[test]
    fn the_newest_word_counts_whichever_way_it_came() {
        type Step = fn(&mut NodeObject) -> bool;
        let cases: [(&str, &[Step], &str); 10] = [
            ("nothing was heard", &[], "unknown"),
            ("there is none", &[|o| o.listed(None, "5")], "absent"),
            (
                "an answer overtakes the watch",
                &[|o| o.seen(node("a", "7")), |o| !o.seen(node("a", "6"))],
                "a at 7",
            ),
            (
                "the echo of an answer is no news",
                &[|o| o.seen(node("a", "7")), |o| !o.seen(node("a", "7"))],
                "a at 7",
            ),
            (
                "a list from before the node was made",
                &[|o| o.seen(node("a", "7")), |o| !o.listed(None, "6")],
                "a at 7",
            ),
            (
                "a server that was restored from an older state",
                &[
                    |o| o.seen(node("a", "7")),
                    |o| {
                        o.interrupted();
                        o.listed(Some(node("a", "3")), "4")
                    },
                ],
                "a at 3",
            ),
            ("deleted", &[|o| o.seen(node("a", "7")), |o| o.deleted(&node("a", "8"))], "absent"),
            (
                "the end of the one before",
                &[|o| o.seen(node("b", "9")), |o| !o.deleted(&node("a", "8"))],
                "b at 9",
            ),
            (
                "made anew while nobody was heard",
                &[|o| o.seen(node("a", "7")), |o| o.seen(node("b", "9"))],
                "b at 9",
            ),
            (
                "a late word of the one before",
                &[|o| o.seen(node("b", "9")), |o| !o.seen(node("a", "7"))],
                "b at 9",
            ),
        ];
        for (case, steps, expected) in cases {
            let mut object = NodeObject::default();
            for (number, step) in steps.iter().enumerate() {
                assert!(step(&mut object), "{case}: step {number}");
            }
            assert_eq!(shown(&object), expected, "{case}");
        }
    }
}
