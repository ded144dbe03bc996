//! The local socket: HTTP/1 for root on this machine, which works without an apiserver too.
//!
//! GET /pods answers with the rows of `keelson pods` as a JSON array; with ?watch=true with such an array in a line
//! whenever a row changed, the first one at once. GET /why?pod=POD answers with what `keelson why` shows; POD is a name,
//! NAMESPACE/NAME or a uid, and &namespace= may go with it. GET /healthz answers ok.

use std::path::Path;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use keelson_agent::registry::Registry;
use keelson_core::node_api::Query;
use keelson_core::timeline;
use keelson_core::view::PodRow;
use keelson_kit::http_listener::{self, Room};
use keelson_kit::unix_socket::{OwnSocket, SocketError};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::reply::{Reply, json, reply, text};

/// Only root connects here, and watches last.
const ROOM: Room = Room::Waiting(32);

/// The socket, ready to be served.
pub async fn listen(path: &Path) -> Result<OwnSocket, SocketError> {
    OwnSocket::listen(path, "keelson").await
}

/// Serves until `shutdown`; then the socket's file is gone.
pub async fn serve(socket: OwnSocket, registry: Registry, shutdown: CancellationToken) {
    let ending = shutdown.clone();
    http_listener::serve(socket, ROOM, shutdown, move |request| answer(&request, &registry, &ending)).await;
}

fn answer(request: &Request<Incoming>, registry: &Registry, shutdown: &CancellationToken) -> Response<Reply> {
    let path = request.uri().path();
    if !matches!(path, "/pods" | "/healthz" | "/why") {
        return text(StatusCode::NOT_FOUND, "known here: /pods, /pods?watch=true, /why?pod=POD, /healthz\n");
    }
    if request.method() != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "use GET\n");
    }
    if path == "/healthz" {
        return text(StatusCode::OK, "ok");
    }
    if path == "/why" {
        return why(request.uri().query(), registry);
    }
    match request.uri().query() {
        None | Some("" | "watch=false" | "watch=0") => {
            reply(StatusCode::OK, "application/json", Reply::Whole(Some(rows(registry))))
        }
        Some("watch=true" | "watch=1" | "watch") => {
            let (sender, lines) = mpsc::channel(1);
            tokio::spawn(watch(registry.clone(), sender, shutdown.clone()));
            reply(StatusCode::OK, "application/x-ndjson", lines.into())
        }
        Some(_) => text(StatusCode::BAD_REQUEST, "the only parameter of /pods is watch=true\n"),
    }
}

fn why(query: Option<&str>, registry: &Registry) -> Response<Reply> {
    let parameters = Query::parse(query).unwrap_or_default();
    let Some(pod) = parameters.get("pod").filter(|pod| !pod.is_empty()) else {
        return text(
            StatusCode::BAD_REQUEST,
            "which pod? /why?pod=NAME, NAMESPACE/NAME or a uid would be right\n",
        );
    };
    match registry.why(&timeline::Query { pod, namespace: parameters.get("namespace") }) {
        Ok(report) => json(StatusCode::OK, &report),
        Err(unknown) => text(StatusCode::NOT_FOUND, format!("{unknown}\n")),
    }
}

/// A slow reader skips snapshots, it never makes them pile up.
async fn watch(registry: Registry, sender: mpsc::Sender<Bytes>, shutdown: CancellationToken) {
    let mut changes = registry.row_changes();
    loop {
        changes.mark_unchanged();
        let sent = tokio::select! {
            sent = sender.send(rows(&registry)) => sent,
            () = shutdown.cancelled() => return,
        };
        if sent.is_err() {
            return;
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = sender.closed() => return,
            () = shutdown.cancelled() => return,
        }
    }
}

fn rows(registry: &Registry) -> Bytes {
    let rows = registry.rows();
    let rows: Vec<&PodRow> = rows.iter().map(|row| &**row).collect();
    let mut json = serde_json::to_vec(&rows).unwrap_or_else(|_| b"[]".to_vec());
    json.push(b'\n');
    json.into()
}
