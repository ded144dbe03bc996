//! /stats/summary: what the node, its pods and its containers use.

use http::{Response, StatusCode};
use keelson_agent::NodeHandle;

use super::super::answer::Call;
use crate::reply::{Reply, reply, text};

pub(super) async fn answer(node: &NodeHandle, call: &Call) -> Response<Reply> {
    let brief = call.query.flag("only_cpu_and_memory");
    let Some(summary) = node.summary(brief).await else {
        return text(StatusCode::INTERNAL_SERVER_ERROR, "the node could not be measured\n");
    };
    match serde_json::to_vec(&summary) {
        Ok(json) => reply(StatusCode::OK, "application/json", Reply::Whole(Some(json.into()))),
        Err(e) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("the summary cannot be written: {e}\n")),
    }
}
