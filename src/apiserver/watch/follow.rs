//! The states between list and watch: what is asked next, and from which version on.

use std::time::Duration;

use futures::Stream;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use keelson_kit::backoff::Backoff;
use kube::core::params::{ListParams, WatchParams};
use serde::Deserialize;
use tokio::time::{Instant, timeout};

use super::event::{self, WatchEvent};
use super::lines::Lines;
use super::{Followed, Scope, Update};
use crate::client::Api;
use crate::connection::WatchPlace;
use crate::error::{ApiError, ErrorKind};
use crate::jitter::random_fraction;
use crate::rate_limit::Priority;

pub(super) fn follow<K: Followed>(api: Api, scope: Scope) -> impl Stream<Item = Update<K>> + Send {
    let state =
        Following { api, scope, phase: Phase::List, backoff: Backoff::default(), pause: None, proven: true };
    futures::stream::unfold(state, |mut state| async move {
        let update = state.next().await;
        Some((update, state))
    })
}

struct Following {
    api: Api,
    scope: Scope,
    phase: Phase,
    backoff: Backoff,
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
            // The first time at once; a server that answers so over and over is given time.
            if !std::mem::take(&mut self.proven) {
                self.pause = Some(self.next_pause());
            }
            return None;
        }
        if !(self.scope.relist_after_outage && error.kind == ErrorKind::Unreachable) {
            self.phase = Phase::Open { version };
        }
        Some(self.failed(error))
    }

    fn next_pause(&mut self) -> Duration {
        self.backoff.fail(self.api.timings().retry);
        self.backoff.jittered(random_fraction())
    }

    fn failed<K>(&mut self, error: ApiError) -> Update<K> {
        if std::mem::take(&mut self.proven) {
            self.backoff.reset();
        }
        self.pause = Some(self.next_pause().max(error.retry_after()));
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
            let page: Page<K> = self.api.call(&operation, Priority::Normal, request).await?;
            items.extend(page.items.into_iter().map(slimmed));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => {
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

    /// Reads on until there is something to report, or the phase has changed.
    async fn read<K: Followed>(&mut self, mut version: String, mut watch: Watch) -> Option<Update<K>> {
        let operation = format!("watch {}", self.scope.what);
        let line = match timeout(self.api.timings().watch_idle, watch.lines.next()).await {
            Ok(Ok(Some(line))) => line,
            Ok(Ok(None)) => {
                // The server ends a watch when its time is up. One that ends at once is a failure in disguise.
                if watch.opened_at.elapsed() < Duration::from_secs(1) && !self.proven {
                    self.pause = Some(self.next_pause());
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
        let event = match event::read::<K>(&line) {
            Ok(WatchEvent::Error(status)) => {
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
        self.backoff.reset();
        let update = match event {
            WatchEvent::Applied(object) => {
                advance(&mut version, &object);
                Some(Update::Applied(slimmed(object)))
            }
            WatchEvent::Deleted(object) => {
                advance(&mut version, &object);
                Some(Update::Deleted(slimmed(object)))
            }
            WatchEvent::Bookmark { version: newer } => {
                version = newer;
                None
            }
            WatchEvent::Error(_) => None,
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

fn slimmed<K: Followed>(mut object: K) -> K {
    object.drop_bulk();
    object
}

fn advance<K: Followed>(version: &mut String, object: &K) {
    if let Some(newer) = object.resource_version() {
        newer.clone_into(version);
    }
}
