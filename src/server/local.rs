//! The local socket: HTTP/1 for root on this machine, which works without an apiserver too.
//!
//! GET /pods answers with the rows of `keelson pods` as a JSON array; with ?watch=true with such an array in a line
//! whenever a row changed, the first one at once. GET /healthz answers ok.

use std::path::Path;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use keelson_agent::view::View;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::connections::{self, Limit};
use crate::reply::{Reply, reply, text};
use crate::socket::{self, OwnSocket, SocketError};

const CONNECTIONS: usize = 32;

/// The bound socket, ready to be served.
pub struct Local(OwnSocket);

pub fn listen(path: &Path) -> Result<Local, SocketError> {
    socket::listen(path).map(Local)
}

/// Serves until `shutdown`; then the socket's file is gone.
pub async fn serve(local: Local, view: View, shutdown: CancellationToken) {
    let own_uid = rustix::process::geteuid().as_raw();
    let limit = Limit::new(CONNECTIONS);
    loop {
        let Some(room) = limit.room().await else { return };
        let accepted = tokio::select! {
            accepted = local.0.listener.accept() => accepted,
            () = shutdown.cancelled() => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept on the local socket");
                // Out of descriptors: room comes back as connections end, not by asking again at once.
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        // The file's mode keeps others out already; this holds should someone widen it.
        match stream.peer_cred() {
            Ok(peer) if peer.uid() == 0 || peer.uid() == own_uid => {}
            Ok(peer) => {
                tracing::warn!(
                    uid = peer.uid(),
                    "refused a peer on the local socket: it is neither root nor the owner"
                );
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "refused a peer on the local socket: the kernel does not say who it is");
                continue;
            }
        }
        let (view, ending) = (view.clone(), shutdown.clone());
        connections::serve(stream, room, shutdown.clone(), move |request| answer(&request, &view, &ending));
    }
}

fn answer(request: &Request<Incoming>, view: &View, shutdown: &CancellationToken) -> Response<Reply> {
    let path = request.uri().path();
    if !matches!(path, "/pods" | "/healthz") {
        return text(StatusCode::NOT_FOUND, "known here: /pods, /pods?watch=true, /healthz\n");
    }
    if request.method() != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "use GET\n");
    }
    if path == "/healthz" {
        return text(StatusCode::OK, "ok");
    }
    match request.uri().query() {
        None | Some("" | "watch=false" | "watch=0") => {
            reply(StatusCode::OK, "application/json", Reply::Whole(Some(rows(view))))
        }
        Some("watch=true" | "watch=1" | "watch") => {
            let (sender, lines) = mpsc::channel(1);
            tokio::spawn(watch(view.clone(), sender, shutdown.clone()));
            reply(StatusCode::OK, "application/x-ndjson", lines.into())
        }
        Some(_) => text(StatusCode::BAD_REQUEST, "the only parameter of /pods is watch=true\n"),
    }
}

/// A slow reader skips snapshots, it never makes them pile up.
async fn watch(view: View, sender: mpsc::Sender<Bytes>, shutdown: CancellationToken) {
    let mut changes = view.subscribe();
    loop {
        changes.mark_unchanged();
        let sent = tokio::select! {
            sent = sender.send(rows(&view)) => sent,
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

fn rows(view: &View) -> Bytes {
    let mut json = serde_json::to_vec(&view.snapshot()).unwrap_or_else(|_| b"[]".to_vec());
    json.push(b'\n');
    json.into()
}
