//! When pods became Ready and when they were gone, as a watch on the real apiserver reports it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures::StreamExt;
use keelson_tests::cluster::Cluster;
use keelson_tests::pods::is_ready;
use kube::api::{WatchEvent, WatchParams};
use tokio::sync::Notify;

#[derive(Default)]
struct Seen {
    ready: HashMap<String, Instant>,
    gone: HashMap<String, Instant>,
}

#[derive(Clone)]
pub struct Watch {
    seen: Arc<Mutex<Seen>>,
    news: Arc<Notify>,
}

#[derive(Debug, Clone, Copy)]
pub enum Moment {
    Ready,
    Gone,
}

impl Watch {
    pub async fn start(cluster: &Cluster) -> Result<Self> {
        let this = Self { seen: Arc::default(), news: Arc::default() };
        let (api, record) = (cluster.pods().api, this.clone());
        tokio::spawn(async move {
            loop {
                // A watch ends after some minutes; what it reported before is remembered, so starting at any version will do.
                let Ok(stream) = api.watch(&WatchParams::default().timeout(290), "0").await else { continue };
                let mut stream = std::pin::pin!(stream);
                while let Some(Ok(event)) = stream.next().await {
                    record.take(event);
                }
            }
        });
        Ok(this)
    }

    fn take(&self, event: WatchEvent<k8s_openapi::api::core::v1::Pod>) {
        let now = Instant::now();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod) if is_ready(&pod) => {
                seen.ready.entry(pod.metadata.name.unwrap_or_default()).or_insert(now);
            }
            WatchEvent::Deleted(pod) => {
                seen.gone.insert(pod.metadata.name.unwrap_or_default(), now);
            }
            _ => return,
        }
        drop(seen);
        self.news.notify_waiters();
    }

    /// When each of the pods reached the moment, once all have.
    pub async fn all(&self, names: &[String], moment: Moment, limit: Duration) -> Result<Vec<Instant>> {
        let end = Instant::now() + limit;
        loop {
            let news = self.news.notified();
            let found: Vec<Instant> = {
                let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                let map = match moment {
                    Moment::Ready => &seen.ready,
                    Moment::Gone => &seen.gone,
                };
                names.iter().filter_map(|n| map.get(n).copied()).collect()
            };
            if found.len() == names.len() {
                return Ok(found);
            }
            if tokio::time::timeout_at(end.into(), news).await.is_err() {
                bail!(
                    "{} of {} pods are not {moment:?} after {} s",
                    names.len() - found.len(),
                    names.len(),
                    limit.as_secs()
                );
            }
        }
    }
}
