//! /configz: the effective configuration.

use http::{Response, StatusCode};
use keelson_agent::NodeHandle;
use serde_json::json;

use crate::reply::{Reply, json};

pub(super) fn answer(node: &NodeHandle) -> Response<Reply> {
    let mut config = node.settings().kubelet.clone();
    // Headers for a manifest server carry its password.
    for values in config.static_pod_url_header.values_mut() {
        *values = vec!["<masked>".into()];
    }
    json(StatusCode::OK, &json!({ "kubeletconfig": config }))
}
