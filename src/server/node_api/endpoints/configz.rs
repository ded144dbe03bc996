//! /configz: the effective configuration.

use http::{Response, StatusCode};
use keelson_agent::NodeHandle;
use serde_json::json;

use crate::reply::{Reply, json};

pub(super) fn answer(node: &NodeHandle) -> Response<Reply> {
    json(StatusCode::OK, &json!({ "kubeletconfig": node.settings().kubelet.masked() }))
}
