//! The HTTP side: requests in, answers and watch streams out.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::route::{Route, parameter};
use super::store::{self, Change};
use super::{Fault, Seen, State, merge};

type Body = BoxBody<Bytes, std::io::Error>;

/// Serves until aborted; the connections end with it.
pub(crate) async fn accept(listener: TcpListener, state: Arc<State>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        let state = state.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| handle(state.clone(), request));
            // A client that goes away in the middle is nothing special.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn handle(state: Arc<State>, request: Request<Incoming>) -> Result<Response<Body>, std::io::Error> {
    let query = request.uri().query().unwrap_or_default().to_owned();
    if let Some(resources) = discovery(&state, request.uri().path()) {
        return Ok(resources);
    }
    let Some(route) = Route::of(request.method(), request.uri().path(), &query) else {
        return Ok(failure(404, "NotFound", "no such path"));
    };
    let strategic =
        request.headers().get(CONTENT_TYPE).is_some_and(|t| t == "application/strategic-merge-patch+json");
    let bytes = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    let resource = route.full_resource();
    let fault = state.due(route.verb, &resource);
    state.control.lock().unwrap().seen.push(Seen {
        verb: route.verb.to_owned(),
        resource: resource.clone(),
        namespace: route.namespace.clone(),
        name: route.name.clone(),
        query: query.clone(),
        body: body.clone(),
    });
    let answer = match fault {
        Some(Fault::Status(code)) => Ok(failure(code, reason(code), "as asked")),
        Some(Fault::Busy(seconds)) => {
            let mut answer = failure(429, "TooManyRequests", "come back later");
            answer.headers_mut().insert(RETRY_AFTER, seconds.into());
            Ok(answer)
        }
        Some(Fault::LostAnswer) => {
            act(&state, &route, body, &query, strategic);
            Err(std::io::Error::other("as asked"))
        }
        Some(Fault::NoAnswer) => {
            state.tick();
            std::future::pending().await
        }
        fault if route.verb == "watch" => Ok(watch(state.clone(), route, query, fault)),
        _ => Ok(act(&state, &route, body, &query, strategic)),
    };
    state.tick();
    answer
}

/// What a version of a group has, if anything.
fn discovery(state: &State, path: &str) -> Option<Response<Body>> {
    let control = state.control.lock().unwrap();
    let names = control.served.iter().filter(|(at, _)| at == path).map(|(_, resource)| resource);
    let resources: Vec<Value> = names
        .map(|name| json!({"name": name, "singularName": "", "namespaced": false, "kind": "K", "verbs": []}))
        .collect();
    let list =
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "g/v", "resources": resources});
    (!resources.is_empty()).then(|| answer(200, list))
}

fn act(state: &State, route: &Route, body: Value, query: &str, strategic: bool) -> Response<Body> {
    let Route { resource, namespace, name, .. } = route;
    let mut store = state.store.lock().unwrap();
    let existing = store.get(resource, namespace, name).cloned();
    let not_found = || failure(404, "NotFound", &format!("{resource} \"{name}\" not found"));
    match (route.verb, route.subresource.as_str()) {
        ("create", "token") => answer(201, token(body, state.control.lock().unwrap().old_tokens)),
        ("get", _) => existing.map_or_else(not_found, |object| answer(200, object)),
        ("list", _) => {
            let selector = parameter(query, "fieldSelector").unwrap_or_default();
            let found = store.list(resource, namespace).into_iter();
            let items: Vec<_> = found.filter(|object| store::selected(object, &selector)).cloned().collect();
            let version = store.version().to_string();
            answer(
                200,
                json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items}),
            )
        }
        ("create", _) => {
            let mut object = body;
            if !namespace.is_empty() {
                store::metadata(&mut object).insert("namespace".into(), json!(namespace));
            }
            let (namespace, name) = store::names(&object);
            if store.get(resource, &namespace, &name).is_some() {
                return failure(409, "AlreadyExists", &format!("{resource} \"{name}\" already exists"));
            }
            answer(201, store.put(resource, object))
        }
        ("update", _) => match existing {
            None => not_found(),
            Some(existing) => {
                let version = &body["metadata"]["resourceVersion"];
                if !version.is_null() && *version != existing["metadata"]["resourceVersion"] {
                    return failure(409, "Conflict", "the object has been modified");
                }
                answer(200, store.put(resource, body))
            }
        },
        ("patch", subresource) => match existing {
            None => not_found(),
            Some(mut object) => {
                let uid = &body["metadata"]["uid"];
                if !uid.is_null() && *uid != object["metadata"]["uid"] {
                    // So says the real one, not 409.
                    let message = format!("metadata.uid: Invalid value: {uid}: field is immutable");
                    return failure(422, "Invalid", &message);
                }
                if subresource.is_empty() {
                    merge::apply(&mut object, &body, strategic);
                } else {
                    merge::apply(&mut object, &json!({subresource: body[subresource]}), strategic);
                }
                answer(200, store.put(resource, object))
            }
        },
        ("delete", _) => match existing {
            None => not_found(),
            Some(object) => {
                let uid = &body["preconditions"]["uid"];
                if !uid.is_null() && *uid != object["metadata"]["uid"] {
                    return failure(409, "Conflict", "Precondition failed: UID in precondition");
                }
                let grace = body["gracePeriodSeconds"].as_i64();
                let bound = !object["spec"]["nodeName"].as_str().unwrap_or_default().is_empty();
                let gone = match grace {
                    None if resource == "pods" && bound => store.mark_deleted(resource, namespace, name, 30),
                    Some(grace) if grace > 0 && bound => store.mark_deleted(resource, namespace, name, grace),
                    _ => store.remove(resource, namespace, name),
                };
                gone.map_or_else(not_found, |object| answer(200, object))
            }
        },
        _ => failure(405, "MethodNotAllowed", "not supported here"),
    }
}

/// `old`: it was issued long ago, and lasts as long from now on all the same.
fn token(mut request: Value, old: bool) -> Value {
    let seconds = request["spec"]["expirationSeconds"].as_i64().unwrap_or(3600);
    if old {
        request["spec"]["expirationSeconds"] = json!(seconds * 10);
    }
    let pod = request["spec"]["boundObjectRef"]["name"].as_str().unwrap_or_default().to_owned();
    request["status"] =
        json!({"token": format!("token-of-{pod}"), "expirationTimestamp": store::now(seconds)});
    request
}

fn watch(state: Arc<State>, route: Route, query: String, fault: Option<Fault>) -> Response<Body> {
    let (lines, receiver) = mpsc::channel::<Result<Bytes, std::io::Error>>(16);
    state.control.lock().unwrap().watching.push(route.resource.clone());
    tokio::spawn(async move {
        feed(&state, &route, &query, fault, &lines).await;
        let mut control = state.control.lock().unwrap();
        if let Some(place) = control.watching.iter().position(|open| *open == route.resource) {
            control.watching.remove(place);
        }
        drop(control);
        state.tick();
    });
    let frames = futures::stream::unfold(receiver, |mut receiver| async move {
        let piece = receiver.recv().await?;
        Some((piece.map(Frame::data), receiver))
    });
    let body = BodyExt::boxed(StreamBody::new(frames));
    Response::builder().header(CONTENT_TYPE, "application/json").body(body).expect("a plain response")
}

/// Writes a watch's lines until it ends or the client has gone.
async fn feed(
    state: &State,
    route: &Route,
    query: &str,
    fault: Option<Fault>,
    lines: &mpsc::Sender<Result<Bytes, std::io::Error>>,
) {
    let number = |name: &str| parameter(query, name).and_then(|text| text.parse::<u64>().ok());
    let ends = tokio::time::Instant::now() + Duration::from_secs(number("timeoutSeconds").unwrap_or(3600));
    let selector = parameter(query, "fieldSelector").unwrap_or_default();
    let gone = json!({"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": 410, "reason": "Expired", "message": "too old resource version"}});
    let mut half = fault == Some(Fault::HalfLine);
    let mut ticks = state.ticks.subscribe();
    let (generation, mut bookmarks) = {
        let control = state.control.lock().unwrap();
        (control.generation, control.bookmarks)
    };
    if fault == Some(Fault::Gone) {
        let _ = lines.send(Ok(line(&gone))).await;
        return;
    }
    let mut version = number("resourceVersion").unwrap_or(0);
    if version == 0 {
        let (now, items) = {
            let store = state.store.lock().unwrap();
            let found = store.list(&route.resource, &route.namespace);
            let items = found.into_iter().map(|object| Change {
                version: 0,
                type_: "ADDED",
                resource: route.resource.clone(),
                object: object.clone(),
            });
            (store.version(), items.collect::<Vec<_>>())
        };
        for change in items.into_iter().filter(|change| store::selected(&change.object, &selector)) {
            let _ = lines.send(Ok(event(&change))).await;
        }
        version = now;
    }
    loop {
        ticks.mark_unchanged();
        if fault != Some(Fault::Silent) {
            let Some(changes) = state.store.lock().unwrap().since(&route.resource, version) else {
                let _ = lines.send(Ok(line(&gone))).await;
                return;
            };
            for change in changes {
                version = change.version;
                let (namespace, _) = store::names(&change.object);
                let meant = route.namespace.is_empty() || namespace == route.namespace;
                if !meant || !store::selected(&change.object, &selector) {
                    continue;
                }
                let mut text = event(&change);
                if std::mem::take(&mut half) {
                    text.truncate(text.len() / 2);
                    let _ = lines.send(Ok(text)).await;
                    let _ = lines.send(Err(std::io::Error::other("as asked"))).await;
                    return;
                }
                if lines.send(Ok(text)).await.is_err() {
                    return;
                }
            }
            let (closed, due) = {
                let control = state.control.lock().unwrap();
                (control.generation != generation, control.bookmarks != bookmarks)
            };
            if due {
                bookmarks = state.control.lock().unwrap().bookmarks;
                version = version.max(state.store.lock().unwrap().version());
                let mark = json!({"type": "BOOKMARK", "object": {"kind": "Bookmark", "apiVersion": "v1",
                    "metadata": {"resourceVersion": version.to_string()}}});
                let _ = lines.send(Ok(line(&mark))).await;
                state.control.lock().unwrap().bookmarks_sent += 1;
                state.tick();
            }
            if closed {
                return;
            }
        }
        tokio::select! {
            _ = ticks.changed() => {}
            _ = lines.closed() => return,
            _ = tokio::time::sleep_until(ends) => return,
        }
    }
}

fn event(change: &Change) -> Bytes {
    line(&json!({"type": change.type_, "object": change.object}))
}

fn line(value: &Value) -> Bytes {
    Bytes::from(format!("{value}\n"))
}

fn answer(code: u16, object: Value) -> Response<Body> {
    let body = Full::new(Bytes::from(object.to_string())).map_err(|never: Infallible| match never {}).boxed();
    let code = StatusCode::from_u16(code).expect("a status code");
    Response::builder()
        .status(code)
        .header(CONTENT_TYPE, "application/json")
        .body(body)
        .expect("a plain response")
}

fn failure(code: u16, reason: &str, message: &str) -> Response<Body> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message});
    answer(code, status)
}

fn reason(code: u16) -> &'static str {
    match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        _ => "",
    }
}
