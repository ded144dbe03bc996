//! /healthz: the checks of a kubelet, by their names.

use http::{Response, StatusCode};
use keelson_agent::NodeHandle;
use keelson_core::node_api::Query;

use crate::reply::{Reply, text};

const CHECKS: [&str; 3] = ["ping", "log", "syncloop"];

pub(super) fn answer(node: &NodeHandle, check: Option<&str>, query: &Query) -> Response<Reply> {
    if check.is_some_and(|check| !CHECKS.contains(&check)) {
        return text(StatusCode::NOT_FOUND, "404 page not found\n");
    }
    let health = match check {
        Some("ping" | "log") => Ok(()),
        _ => node.health(),
    };
    match health {
        Ok(()) if query.get("verbose").is_some() => {
            let lines: String = CHECKS.iter().map(|check| format!("[+]{check} ok\n")).collect();
            text(StatusCode::OK, format!("{lines}healthz check passed\n"))
        }
        Ok(()) => text(StatusCode::OK, "ok"),
        Err(why) => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("[-]syncloop failed: {why}\nhealthz check failed\n"),
        ),
    }
}
