//! /portForward: connections into a pod's network.

use http::{Response, StatusCode};
use keelson_agent::NodeHandle;
use keelson_core::node_api::OfPod;
use keelson_core::node_api::streams::ports;

use super::lookup::{Refused, pod, runtime_failed};
use crate::node_api::answer::Call;
use crate::node_api::streaming::{Streaming, Wanted};
use crate::reply::{Reply, text};

pub(super) async fn answer(
    node: &NodeHandle,
    streaming: &Streaming,
    of: &OfPod,
    call: Call,
) -> Result<Response<Reply>, Refused> {
    let refuse = |why: &str| Box::new(text(StatusCode::BAD_REQUEST, format!("{why}\n")));
    let wanted = Wanted::of(&call.request).map_err(refuse)?;
    let ports = ports(&call.query, wanted == Wanted::WebSocket).map_err(|why| refuse(&why))?;
    let room = streaming.room()?;
    let (uid, _) = pod(node, of)?;
    let sandbox = node.runtime().ready_sandbox(&uid).await.map_err(|e| Box::new(runtime_failed(&e)))?;
    let Some(sandbox) = sandbox else {
        let why = format!("pod {:?} has no network now: its sandbox does not run\n", of.name);
        return Err(Box::new(text(StatusCode::NOT_FOUND, why)));
    };
    let url = node.runtime().port_forward(&sandbox, ports).await.map_err(|e| Box::new(runtime_failed(&e)))?;
    tracing::info!(user = call.user.name, pod = of.name, namespace = of.namespace, "port-forward");
    Ok(room.join(call.request, &url, call.shutdown).await)
}
