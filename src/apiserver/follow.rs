//! A list that stays true: list once, watch from there, and list again only when the server has forgotten where we were.

use std::time::Duration;

use futures::Stream;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use kube::core::params::{ListParams, WatchParams};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout};

use crate::client::{Api, Pace};
use crate::connection::WatchPlace;
use crate::error::{ApiError, ErrorKind};
use crate::lines::Lines;
use crate::pace::BackOff;
use crate::watch_line::{self, Event};

#[derive(Debug)]
pub(crate) enum Update<K> {
    /// Everything there is: whatever was known before and is not in here is gone.
    Synced {
        items: Vec<K>,
        version: String,
    },
    Applied(K),
    Deleted(K),
    /// The connection is in trouble; what was told last may be out of date. More follows when it is back.
    Disconnected(ApiError),
}

/// Which objects to follow.
#[derive(Debug, Clone)]
pub(crate) struct Scope {
    /// For messages: "pods of node n1".
    pub(crate) what: String,
    /// The collection's path, such as /api/v1/pods.
    pub(crate) path: String,
    pub(crate) field_selector: Option<String>,
    /// Take the first list from the server's cache, which answers at once but may be a moment behind. The watch that
    /// follows catches up.
    pub(crate) from_cache: bool,
    /// List again after the server was away, instead of watching on: it may have come back with an older state, and
    /// would then have nothing to tell to someone who is ahead of it.
    pub(crate) relist_after_outage: bool,
}

/// Objects that can be followed: anything with metadata.
pub(crate) trait Followed: DeserializeOwned + Send + 'static {
    fn meta(&mut self) -> &mut ObjectMeta;
}

impl<K> Followed for K
where
    K: k8s_openapi::Metadata<Ty = ObjectMeta> + DeserializeOwned + Send + 'static,
{
    fn meta(&mut self) -> &mut ObjectMeta {
        self.metadata_mut()
    }
}

/// Follows until dropped. Every event is handed on the moment its line is complete.
pub(crate) fn follow<K: Followed>(api: Api, scope: Scope) -> impl Stream<Item = Update<K>> + Send {
    let timings = api.timings();
    let back_off = BackOff::new(timings.retry_first, timings.retry_cap);
    let state = Following { api, scope, phase: Phase::List, back_off, pause: None, proven: true };
    futures::stream::unfold(state, |mut state| async move {
        let update = state.next().await;
        Some((update, state))
    })
}

struct Following {
    api: Api,
    scope: Scope,
    phase: Phase,
    back_off: BackOff,
    /// Wait this long before the next request.
    pause: Option<Duration>,
    /// Something came through since the last failure, so that a new failure is the first of its row.
    proven: bool,
}

enum Phase {
    List,
    Open { version: String },
    Reading { version: String, watch: Watch },
}

struct Watch {
    lines: Lines<kube::client::Body>,
    opened_at: Instant,
    _place: WatchPlace,
}

impl Following {
    async fn next<K: Followed>(&mut self) -> Update<K> {
        loop {
            if let Some(pause) = self.pause.take() {
                tokio::time::sleep(pause).await;
            }
            match std::mem::replace(&mut self.phase, Phase::List) {
                Phase::List => match self.list().await {
                    Ok((items, version)) => {
                        self.scope.from_cache = false;
                        self.phase = Phase::Open { version: version.clone() };
                        return Update::Synced { items, version };
                    }
                    Err(error) => return self.failed(error),
                },
                Phase::Open { version } => match self.open(&version).await {
                    Ok(watch) => self.phase = Phase::Reading { version, watch },
                    Err(error) => {
                        if let Some(update) = self.lost(error, version) {
                            return update;
                        }
                    }
                },
                Phase::Reading { version, watch } => {
                    if let Some(update) = self.read(version, watch).await {
                        return update;
                    }
                }
            }
        }
    }

    /// A failure at `version`: 410 means that only a new list helps, anything else is tried again from there.
    fn lost<K>(&mut self, error: ApiError, version: String) -> Option<Update<K>> {
        if error.kind == ErrorKind::Gone {
            tracing::debug!(what = self.scope.what, %error, "listing again");
            // The first time at once; a server that says so over and over is given time.
            if !std::mem::take(&mut self.proven) {
                self.pause = Some(self.back_off.next());
            }
            return None;
        }
        if !(self.scope.relist_after_outage && error.kind == ErrorKind::Unreachable) {
            self.phase = Phase::Open { version };
        }
        Some(self.failed(error))
    }

    fn failed<K>(&mut self, error: ApiError) -> Update<K> {
        if std::mem::take(&mut self.proven) {
            self.back_off.reset();
        }
        let mut pause = self.back_off.next();
        if let ErrorKind::TooManyRequests { retry_after } = error.kind {
            pause = pause.max(retry_after);
        }
        self.pause = Some(pause);
        Update::Disconnected(error)
    }

    async fn list<K: Followed>(&mut self) -> Result<(Vec<K>, String), ApiError> {
        let operation = format!("list {}", self.scope.what);
        let mut params =
            ListParams { field_selector: self.scope.field_selector.clone(), ..ListParams::default() };
        if self.scope.from_cache {
            params.resource_version = Some("0".to_owned());
        } else {
            params.limit = Some(500);
        }
        let mut items = Vec::new();
        loop {
            let request = kube::core::Request::new(self.scope.path.as_str()).list(&params);
            let page: Page<K> = self.api.call(&operation, Pace::Limited, request).await?;
            items.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => {
                    for item in &mut items {
                        forget_bulk(item.meta());
                    }
                    items.shrink_to_fit();
                    return Ok((items, page.metadata.resource_version.unwrap_or_default()));
                }
            }
        }
    }

    async fn open(&mut self, version: &str) -> Result<Watch, ApiError> {
        let operation = format!("watch {}", self.scope.what);
        let seconds = u32::try_from(self.api.timings().watch.as_secs()).unwrap_or(290).max(1);
        let params = WatchParams {
            field_selector: self.scope.field_selector.clone(),
            timeout: Some(seconds.min(294)),
            bookmarks: true,
            ..WatchParams::default()
        };
        let request = kube::core::Request::new(self.scope.path.as_str()).watch(&params, version);
        let (body, place) = self.api.open_stream(&operation, request).await?;
        Ok(Watch { lines: Lines::new(body), opened_at: Instant::now(), _place: place })
    }

    /// Reads on until there is something to tell, or the phase has changed.
    async fn read<K: Followed>(&mut self, mut version: String, mut watch: Watch) -> Option<Update<K>> {
        let operation = format!("watch {}", self.scope.what);
        let line = match timeout(self.api.timings().watch_idle, watch.lines.next()).await {
            Ok(Ok(Some(line))) => line,
            Ok(Ok(None)) => {
                // The server ends a watch when its time is up. One that ends at once is a failure in disguise.
                if watch.opened_at.elapsed() < Duration::from_secs(1) && !self.proven {
                    self.pause = Some(self.back_off.next());
                }
                self.proven = false;
                self.phase = Phase::Open { version };
                return None;
            }
            Ok(Err(error)) => {
                let error = self.api.broken_stream(&operation, &error);
                return self.lost(error, version);
            }
            Err(_) => {
                tracing::debug!(what = self.scope.what, "the watch fell silent; opening it again");
                self.phase = Phase::Open { version };
                return None;
            }
        };
        let event = match watch_line::read::<K>(&line) {
            Ok(Event::Error(status)) => {
                return self.lost(ApiError::from_status(&operation, &status), version);
            }
            Ok(event) => event,
            Err(error) => {
                // What it was about is unknown, so only a list can make this whole again.
                let message = format!("a line is not understood: {error}");
                return Some(self.failed(ApiError::new(ErrorKind::Other, &operation, message)));
            }
        };
        self.proven = true;
        self.back_off.reset();
        let update = match event {
            Event::Applied(mut object) => {
                advance(&mut version, &mut object);
                Some(Update::Applied(object))
            }
            Event::Deleted(mut object) => {
                advance(&mut version, &mut object);
                Some(Update::Deleted(object))
            }
            Event::Bookmark { version: newer } => {
                version = newer;
                None
            }
            Event::Error(_) => None,
        };
        self.phase = Phase::Reading { version, watch };
        update
    }
}

#[derive(Deserialize)]
struct Page<K> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default = "Vec::new")]
    items: Vec<K>,
}

fn advance<K: Followed>(version: &mut String, object: &mut K) {
    let meta = object.meta();
    forget_bulk(meta);
    if let Some(newer) = &meta.resource_version {
        version.clone_from(newer);
    }
}

/// Field ownership is often larger than the object itself, and of no use here.
pub(crate) fn forget_bulk(meta: &mut ObjectMeta) {
    meta.managed_fields = None;
}
