//! Sends what was recorded, one after another, for as long as it is news.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use keelson_kit::backoff::Backoff;
use kube::core::Request;
use kube::core::params::{Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::mpsc;

use super::correlate::{Correlator, Verdict};
use super::{ObjectRef, Occurrence};
use crate::call::body;
use crate::client::Api;
use crate::error::ApiError;
use crate::jitter::random_fraction;
use crate::rate_limit::Priority;

/// An event that could not be sent for this long is history.
const STALE: Duration = Duration::from_secs(120);

pub(super) struct EventSender {
    api: Api,
    correlator: Correlator,
    backoff: Backoff,
    serial: u64,
}

impl EventSender {
    pub(super) fn new(api: Api) -> Self {
        Self { api, correlator: Correlator::default(), backoff: Backoff::default(), serial: 0 }
    }

    pub(super) async fn run(mut self, mut occurrences: mpsc::Receiver<Occurrence>) {
        while let Some(occurrence) = occurrences.recv().await {
            let verdict = self.correlator.judge(
                &occurrence.object,
                occurrence.type_,
                &occurrence.reason,
                &occurrence.message,
                occurrence.at,
            );
            self.deliver(&occurrence, verdict).await;
        }
    }

    /// Tries until it is sent, refused for good, or no longer news.
    async fn deliver(&mut self, occurrence: &Occurrence, verdict: Verdict) {
        let mut verdict = verdict;
        loop {
            let result = match &verdict {
                Verdict::Drop => return,
                Verdict::Create { message, .. } => self.create(occurrence, message).await,
                Verdict::Count { name, count, message, .. } => {
                    self.count(occurrence, name, *count, message).await
                }
            };
            let (object, reason) = (&occurrence.object.name, &occurrence.reason);
            match (result, verdict) {
                (Ok((name, count)), Verdict::Create { key, .. } | Verdict::Count { key, .. }) => {
                    self.backoff.reset();
                    self.correlator.sent(key, name, count);
                    return;
                }
                // Expired at the server; begin anew.
                (Err(error), Verdict::Count { key, message, .. }) if error.is_not_found() => {
                    self.correlator.forget(&key);
                    verdict = Verdict::Create { key, message };
                }
                (Err(error), again) if error.is_transient() && occurrence.queued_at.elapsed() < STALE => {
                    tracing::debug!(%error, "trying again");
                    self.backoff.fail(self.api.timings().retry);
                    let pause = self.backoff.jittered(random_fraction()).max(error.retry_after());
                    tokio::time::sleep(pause).await;
                    verdict = again;
                }
                (Err(error), _) => {
                    tracing::warn!(%error, object, reason, "an event was not recorded");
                    return;
                }
                (Ok(_), Verdict::Drop) => return,
            }
        }
    }

    async fn create(&mut self, occurrence: &Occurrence, message: &str) -> Result<(String, i32), ApiError> {
        let object = &occurrence.object;
        let name = self.name(occurrence);
        let operation = format!("create event {} of {} {}", occurrence.reason, object.kind, object.name);
        let event = event(occurrence, self.api.node_name(), &name, message);
        let body = body(&operation, &event)?;
        let request = collection(object).create(&PostParams::default(), body);
        match self.api.call::<Event>(&operation, Priority::Events, request).await {
            Ok(_) => Ok((name, 1)),
            // The answer to an earlier try got lost.
            Err(error) if error.is_already_exists() => Ok((name, 1)),
            Err(error) => Err(error),
        }
    }

    async fn count(
        &self,
        occurrence: &Occurrence,
        name: &str,
        count: i32,
        message: &str,
    ) -> Result<(String, i32), ApiError> {
        let object = &occurrence.object;
        let operation = format!("count event {} of {} {}", occurrence.reason, object.kind, object.name);
        let patch = json!({"count": count, "lastTimestamp": Time(occurrence.at), "message": message});
        let request = collection(object).patch(name, &PatchParams::default(), &Patch::Strategic(patch));
        self.api.call::<Event>(&operation, Priority::Events, request).await.map(|_| (name.to_owned(), count))
    }

    /// Unique: the object's name and the time, and a number for what happens within one tick.
    fn name(&mut self, occurrence: &Occurrence) -> String {
        self.serial += 1;
        let nanos = occurrence.at.as_nanosecond() as u64;
        // An event's name is a DNS subdomain of at most 253 bytes, and the suffix takes up to 17.
        let object: String = occurrence.object.name.chars().take(236).collect();
        format!("{}.{:x}", object.trim_end_matches(['.', '-']), nanos.wrapping_add(self.serial))
    }
}

fn collection(object: &ObjectRef) -> Request {
    Request::new(format!("/api/v1/namespaces/{}/events", object.event_namespace()))
}

fn event(occurrence: &Occurrence, node: &str, name: &str, message: &str) -> Event {
    let object = &occurrence.object;
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Event {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(object.event_namespace().to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: some(&object.api_version),
            kind: some(&object.kind),
            namespace: some(&object.namespace),
            name: some(&object.name),
            uid: some(&object.uid),
            resource_version: some(&object.resource_version),
            field_path: some(&object.field_path),
        },
        reason: Some(occurrence.reason.clone()),
        message: Some(message.to_owned()),
        type_: Some(occurrence.type_.as_str().to_owned()),
        // Tools filter events by these names, so they are the kubelet's.
        source: Some(EventSource { component: Some("kubelet".to_owned()), host: Some(node.to_owned()) }),
        reporting_component: Some("kubelet".to_owned()),
        reporting_instance: Some(node.to_owned()),
        first_timestamp: Some(Time(occurrence.at)),
        last_timestamp: Some(Time(occurrence.at)),
        count: Some(1),
        ..Event::default()
    }
}
