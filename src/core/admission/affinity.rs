//! nodeSelector and required node affinity.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec};

use super::NodeView;

/// Every label of nodeSelector, and any one of the affinity's terms.
pub(super) fn matches(spec: &PodSpec, node: &NodeView) -> bool {
    let selected =
        spec.node_selector.iter().flatten().all(|(key, value)| node.labels.get(key) == Some(value));
    let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    selected && required.is_none_or(|r| selector_matches(r, &node.name, &node.labels))
}

/// Any one of the terms.
pub(crate) fn selector_matches(
    selector: &NodeSelector,
    node: &str,
    labels: &BTreeMap<String, String>,
) -> bool {
    selector.node_selector_terms.iter().any(|term| term_matches(term, node, labels))
}

/// All requirements of a term. A term without any matches nothing.
fn term_matches(term: &NodeSelectorTerm, node: &str, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let field = |key: &str| (key == "metadata.name").then_some(node);
    expressions.iter().all(|r| requirement_matches(r, labels.get(&r.key).map(String::as_str)))
        && fields.iter().all(|r| requirement_matches(r, field(&r.key)))
}

fn requirement_matches(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = value.is_some_and(|v| values.iter().any(|wanted| wanted == v));
    let bound = || match values {
        [only] => Some((value?.parse::<i64>().ok()?, only.parse::<i64>().ok()?)),
        _ => None,
    };
    match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => bound().is_some_and(|(value, bound)| value > bound),
        "Lt" => bound().is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}
