//! /checkpoint: a container's state in an archive, where the runtime can.

use std::os::unix::fs::DirBuilderExt;
use std::time::Duration;

use http::{Response, StatusCode};
use keelson_agent::NodeHandle;
use keelson_core::node_api::OfContainer;
use serde_json::json;

use super::lookup::{Refused, running, runtime_failed};
use crate::node_api::answer::Call;
use crate::reply::{Reply, json, text};

/// The folder's name under the root directory, where the kubelet leaves them too.
const FOLDER: &str = "checkpoints";
const LONGEST: u64 = 3600;

pub(super) async fn answer(
    node: &NodeHandle,
    of: &OfContainer,
    call: Call,
) -> Result<Response<Reply>, Refused> {
    let timeout = match call.query.all("timeout").last().map(str::parse::<u64>) {
        None => Duration::ZERO,
        Some(Ok(seconds)) if seconds <= LONGEST => Duration::from_secs(seconds),
        Some(_) => {
            let why = format!("timeout must be a number of seconds up to {LONGEST}\n");
            return Err(Box::new(text(StatusCode::BAD_REQUEST, why)));
        }
    };
    let (id, _) = running(node, of).await?;
    let folder = node.settings().paths.root_dir.join(FOLDER);
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.map_err(|e| {
        let why = format!("cannot make {}: {e}\n", folder.display());
        Box::new(text(StatusCode::INTERNAL_SERVER_ERROR, why))
    })?;
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.9fZ");
    let file = format!("checkpoint-{}_{}-{}-{now}.tar", of.pod.name, of.pod.namespace, of.container);
    let location = folder.join(file).display().to_string();
    node.runtime().checkpoint(&id, &location, timeout).await.map_err(|e| Box::new(runtime_failed(&e)))?;
    tracing::info!(user = call.user.name, location, "checkpoint written");
    Ok(json(StatusCode::OK, &json!({ "items": [location] })))
}
