//! /exec, /attach and /run: something done in a container that runs.

use std::time::Duration;

use http::{Response, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use keelson_agent::NodeHandle;
use keelson_core::node_api::OfContainer;
use keelson_core::node_api::streams::streams;
use keelson_cri::proto::{AttachRequest, ExecRequest};

use super::lookup::{Refused, running, runtime_failed};
use crate::node_api::answer::Call;
use crate::node_api::streaming::{Room, Streaming, Wanted};
use crate::reply::{Reply, reply, text};

pub(super) async fn exec(
    node: &NodeHandle,
    streaming: &Streaming,
    of: &OfContainer,
    call: Call,
) -> Result<Response<Reply>, Refused> {
    let wanted = streams(&call.query).map_err(bad_request)?;
    let command: Vec<String> = call.query.all("command").map(Into::into).collect();
    if command.is_empty() {
        return Err(bad_request("you must specify a command"));
    }
    let room = admit(streaming, &call)?;
    let (id, _) = running(node, of).await?;
    let opening = node.runtime().exec(ExecRequest {
        container_id: id.as_str().into(),
        cmd: command,
        tty: wanted.tty,
        stdin: wanted.stdin,
        stdout: wanted.stdout,
        stderr: wanted.stderr,
    });
    let url = opening.await.map_err(|e| Box::new(runtime_failed(&e)))?;
    log("exec", of, &call);
    Ok(room.join(call.request, &url, call.shutdown).await)
}

pub(super) async fn attach(
    node: &NodeHandle,
    streaming: &Streaming,
    of: &OfContainer,
    call: Call,
) -> Result<Response<Reply>, Refused> {
    let wanted = streams(&call.query).map_err(bad_request)?;
    let room = admit(streaming, &call)?;
    let (id, pod) = running(node, of).await?;
    // Whether there is a terminal was decided when the container was made.
    let tty = has_tty(&pod, &of.container);
    let opening = node.runtime().attach(AttachRequest {
        container_id: id.as_str().into(),
        stdin: wanted.stdin,
        tty,
        stdout: wanted.stdout,
        stderr: wanted.stderr && !tty,
    });
    let url = opening.await.map_err(|e| Box::new(runtime_failed(&e)))?;
    log("attach", of, &call);
    Ok(room.join(call.request, &url, call.shutdown).await)
}

/// One command to its end, with what it wrote as the answer.
pub(super) async fn run(node: &NodeHandle, of: &OfContainer, call: Call) -> Result<Response<Reply>, Refused> {
    let command: Vec<String> = call
        .query
        .get("cmd")
        .unwrap_or_default()
        .split(' ')
        .filter(|w| !w.is_empty())
        .map(Into::into)
        .collect();
    if command.is_empty() {
        return Err(bad_request("you must specify a command as cmd"));
    }
    let (id, _) = running(node, of).await?;
    log("run", of, &call);
    let output = node.runtime().exec_sync(&id, &command, Duration::ZERO).await;
    let output = output.map_err(|e| Box::new(runtime_failed(&e)))?;
    let said = [output.stdout, output.stderr].concat();
    if output.exit_code != 0 {
        let said = String::from_utf8_lossy(&said);
        let failure = format!("command {command:?} exited with {}: {said}", output.exit_code);
        return Err(Box::new(text(StatusCode::INTERNAL_SERVER_ERROR, failure)));
    }
    Ok(reply(StatusCode::OK, "text/plain; charset=utf-8", Reply::Whole(Some(said.into()))))
}

/// Room for a stream, for a request that can become one.
fn admit(streaming: &Streaming, call: &Call) -> Result<Room, Refused> {
    Wanted::of(&call.request).map_err(bad_request)?;
    streaming.room()
}

fn log(what: &str, of: &OfContainer, call: &Call) {
    let (pod, namespace) = (&of.pod.name, &of.pod.namespace);
    tracing::info!(user = call.user.name, pod, namespace, container = of.container, "{what}");
}

fn bad_request(why: &str) -> Refused {
    Box::new(text(StatusCode::BAD_REQUEST, format!("{why}\n")))
}

fn has_tty(pod: &Pod, container: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut tty = all.filter(|c| c.name == container).map(|c| c.tty);
    let ephemeral =
        || spec.ephemeral_containers.iter().flatten().find(|c| c.name == container).map(|c| c.tty);
    tty.next().or_else(ephemeral).flatten() == Some(true)
}
