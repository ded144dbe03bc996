//! An apiserver in this process: a few kinds of objects in memory behind plain HTTP, and faults when asked.
//!
//! It keeps what an agent relies on: versions, watches that continue from one, uid preconditions, graceful deletion
//! of pods, merging of conditions. It authorises everybody and validates nothing.

mod merge;
mod route;
mod serve;
mod store;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use store::Store;

/// What goes wrong with a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// Answered with this status and no effect.
    Status(u16),
    /// 429 with Retry-After in seconds.
    Busy(u64),
    /// A watch whose only line is the ERROR of a version that is too old.
    Gone,
    /// A watch that sends half of its next line and closes the connection.
    HalfLine,
    /// A watch that is accepted and never brings anything.
    Silent,
    /// The request has no effect, and is never answered.
    NoAnswer,
    /// The request takes effect, but the connection is closed instead of an answer.
    LostAnswer,
}

/// A request as it was seen.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// get, list, watch, create, update, patch or delete.
    pub verb: String,
    /// With the subresource: "pods/status".
    pub resource: String,
    pub namespace: String,
    pub name: String,
    pub query: String,
    pub body: Value,
}

pub struct FakeApi {
    pub url: String,
    address: SocketAddr,
    state: Arc<State>,
    server: Option<JoinHandle<()>>,
}

pub(crate) struct State {
    pub(crate) store: Mutex<Store>,
    /// Moves on with every change of the store, every request and every watch opened or closed.
    pub(crate) ticks: watch::Sender<u64>,
    pub(crate) control: Mutex<Control>,
}

#[derive(Default)]
pub(crate) struct Control {
    faults: Vec<(String, String, usize, Fault)>,
    pub(crate) seen: Vec<Seen>,
    /// Open watches by resource.
    pub(crate) watching: Vec<String>,
    /// Watches opened before this was raised are to close.
    pub(crate) generation: u64,
    pub(crate) bookmarks: u64,
    pub(crate) bookmarks_sent: usize,
    pub(crate) old_tokens: bool,
    /// What is said to be served, by the path of a group's version.
    pub(crate) served: Vec<(String, String)>,
}

impl State {
    pub(crate) fn tick(&self) {
        self.ticks.send_modify(|ticks| *ticks += 1);
    }

    /// Takes a fault that was asked for, if one is due for this request.
    pub(crate) fn due(&self, verb: &str, resource: &str) -> Option<Fault> {
        let mut control = self.control.lock().unwrap();
        let hit = control.faults.iter().position(|(v, r, times, _)| {
            *times > 0 && (v == "*" || v == verb) && (r == "*" || r == resource)
        })?;
        control.faults[hit].2 -= 1;
        Some(control.faults[hit].3.clone())
    }
}

impl FakeApi {
    /// Listens on a free port of the loopback.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind to loopback");
        let address = listener.local_addr().expect("local address");
        let state = Arc::new(State {
            store: Mutex::new(Store::default()),
            ticks: watch::channel(0).0,
            control: Mutex::new(Control::default()),
        });
        let server = Some(tokio::spawn(serve::accept(listener, state.clone())));
        Self { url: format!("http://{address}"), address, state, server }
    }

    /// Closes the port and every connection, as a crash would. What is stored stays.
    pub async fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
            let _ = server.await;
        }
    }

    /// Has the discovery of a path such as /apis/apps/v1 name a resource. Without that there is nothing at such a path.
    pub fn serve(&self, path: &str, resource: &str) {
        self.state.control.lock().unwrap().served.push((path.to_owned(), resource.to_owned()));
    }

    /// Listens again, on the same port.
    pub async fn start_again(&mut self) {
        self.stop().await;
        let listener = TcpListener::bind(self.address).await.expect("bind to the same port again");
        self.server = Some(tokio::spawn(serve::accept(listener, self.state.clone())));
    }

    /// Writes a kubeconfig for this server into `directory`.
    pub fn kubeconfig(&self, directory: &Path) -> PathBuf {
        let path = directory.join("kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "fake", "user": {"token": "fake"}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        });
        std::fs::write(&path, config.to_string()).expect("write kubeconfig");
        path
    }

    /// The next `times` requests of this verb and resource ("*" for any) go wrong. Faults asked for earlier come first.
    pub fn fault(&self, verb: &str, resource: &str, times: usize, fault: Fault) {
        self.state.control.lock().unwrap().faults.push((verb.to_owned(), resource.to_owned(), times, fault));
    }

    /// Takes back all faults that are still due.
    pub fn clear_faults(&self) {
        self.state.control.lock().unwrap().faults.clear();
    }

    /// Creates or replaces an object, from a resource's point of view ("pods", "configmaps", "leases" ...). Returns it as
    /// stored, with uid and version.
    pub fn put(&self, resource: &str, object: &impl k8s_openapi::serde::Serialize) -> Value {
        let object = serde_json::to_value(object).expect("an object that serializes");
        let stored = self.state.store.lock().unwrap().put(resource, object);
        self.state.tick();
        stored
    }

    /// Removes an object at once.
    pub fn remove(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        let removed = self.state.store.lock().unwrap().remove(resource, namespace, name);
        self.state.tick();
        removed
    }

    /// Marks a pod for deletion, as `kubectl delete` does.
    pub fn delete_gracefully(&self, namespace: &str, name: &str, grace_seconds: i64) {
        self.state.store.lock().unwrap().mark_deleted("pods", namespace, name, grace_seconds);
        self.state.tick();
    }

    pub fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        self.state.store.lock().unwrap().get(resource, namespace, name).cloned()
    }

    pub fn all(&self, resource: &str) -> Vec<Value> {
        self.state.store.lock().unwrap().list(resource, "").into_iter().cloned().collect()
    }

    /// From now on tokens are handed out with most of their life behind them, as a node sees it whose clock is ahead.
    pub fn tokens_of_an_earlier_hour(&self) {
        self.state.control.lock().unwrap().old_tokens = true;
    }

    /// Forgets history: a watch from any earlier version is answered 410 Gone.
    pub fn compact(&self) {
        self.state.store.lock().unwrap().compact();
    }

    /// Sends a bookmark on every open watch, and returns when they are sent.
    pub async fn bookmark(&self) {
        let expected = {
            let mut control = self.state.control.lock().unwrap();
            control.bookmarks += 1;
            control.bookmarks_sent + control.watching.len()
        };
        self.state.tick();
        self.until(|fake| fake.state.control.lock().unwrap().bookmarks_sent >= expected).await;
    }

    /// Ends every open watch in good order, as a server does when their time is up.
    pub fn close_watches(&self) {
        self.state.control.lock().unwrap().generation += 1;
        self.state.tick();
    }

    /// How often a verb was used on a resource ("pods/status" for a subresource).
    pub fn requests(&self, verb: &str, resource: &str) -> usize {
        self.seen(verb, resource).len()
    }

    pub fn seen(&self, verb: &str, resource: &str) -> Vec<Seen> {
        let control = self.state.control.lock().unwrap();
        control.seen.iter().filter(|seen| seen.verb == verb && seen.resource == resource).cloned().collect()
    }

    pub fn all_requests(&self) -> usize {
        self.state.control.lock().unwrap().seen.len()
    }

    /// How many watches on a resource are open now.
    pub fn open_watches(&self, resource: &str) -> usize {
        self.state.control.lock().unwrap().watching.iter().filter(|open| *open == resource).count()
    }

    /// Returns when the condition holds; checked again whenever something happened here. A test that waits in vain is
    /// ended by its own time limit.
    pub async fn until(&self, condition: impl Fn(&Self) -> bool) {
        let mut ticks = self.state.ticks.subscribe();
        while !condition(self) {
            ticks.changed().await.expect("the state outlives this");
        }
    }
}

impl Drop for FakeApi {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
        }
    }
}
