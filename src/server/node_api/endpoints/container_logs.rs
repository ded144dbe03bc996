//! /containerLogs: what a container has written, from its log file.

use std::sync::Arc;

use http::{Response, StatusCode};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use keelson_agent::NodeHandle;
use keelson_core::logs::{Filter, LogRequest, Refusal, choose};
use keelson_core::node_api::OfContainer;
use keelson_host::logs::{Follow, LogReader, reading, stream};
use tokio::sync::mpsc;

use super::super::answer::Call;
use crate::reply::{Reply, reply, text};

pub(super) async fn answer(node: &NodeHandle, call: &Call, of: &OfContainer) -> Response<Reply> {
    match open(node, call, of).await {
        Ok(body) => reply(StatusCode::OK, "text/plain", body),
        Err((status, message)) => text(status, message),
    }
}

type Problem = (StatusCode, String);

async fn open(node: &NodeHandle, call: &Call, of: &OfContainer) -> Result<Reply, Problem> {
    let wanted = LogRequest::parse(|name| call.query.get(name), Timestamp::now()).map_err(|refusal| {
        let status = match refusal {
            Refusal::Unreadable => StatusCode::BAD_REQUEST,
            Refusal::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
        };
        (status, refusal.to_string())
    })?;
    let name = &of.pod.name;
    let (uid, pod) = node
        .pod(&of.pod.namespace, name)
        .ok_or_else(|| (StatusCode::NOT_FOUND, format!("pod {name:?} does not exist")))?;
    if !has_container(&pod, &of.container) {
        let message = format!("container {:?} not found in pod {name:?}", of.container);
        return Err((StatusCode::NOT_FOUND, message));
    }
    let bad = |message: String| (StatusCode::BAD_REQUEST, message);
    let status = node.status(&uid).or_else(|| pod.status.clone().map(Arc::new)).unwrap_or_default();
    let id = choose(name, &status, &of.container, wanted.previous).map_err(bad)?;
    let path = node.log_of(&uid, &id).await.map_err(bad)?;

    let root = node.settings().paths.pod_logs_dir.clone();
    let tail = wanted.tail;
    let followers = wanted.follow.then(|| node.log_watch().followers().clone());
    let opened = reading(move || {
        let mut reader = match followers {
            Some(followers) => LogReader::follow(&root, &path, &followers)?,
            None => LogReader::open(&root, &path)?,
        };
        if let Some(lines) = tail {
            reader.seek_tail(lines)?;
        }
        Ok::<_, std::io::Error>(reader)
    });
    let failed = |why: String| bad(format!("failed to open the log of container {:?}: {why}", of.container));
    let reader = opened.await.map_err(|e| failed(e.to_string()))?.map_err(|e| failed(e.to_string()))?;

    let mut filter = Filter::new(wanted.since, wanted.timestamps, wanted.stream, wanted.limit);
    if let (Some(lines), false) = (wanted.tail, wanted.follow) {
        filter = filter.at_most(lines);
    }
    let follow = if wanted.follow {
        Follow::Until(node.log_watch().clone(), node.until_ended(uid, id.clone()))
    } else {
        Follow::No
    };
    // A single block waits for its reader; the next one is only read from the file when that one is taken.
    let (sink, blocks) = mpsc::channel(1);
    let (shutdown, counted) = (call.shutdown.clone(), node.log_stream());
    tokio::spawn(async move {
        let _counted = counted;
        let streamed = shutdown.run_until_cancelled(stream(reader, filter, follow, sink)).await;
        if let Some(Err(error)) = streamed {
            tracing::warn!(container = %id, %error, "a log could not be read to its end");
        }
    });
    Ok(blocks.into())
}

fn has_container(pod: &Pod, name: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| c.name.as_str());
    let others = spec.containers.iter().chain(spec.init_containers.iter().flatten()).map(|c| c.name.as_str());
    others.chain(ephemeral).any(|n| n == name)
}
