//! Events: what happened to a pod or to the node, told to whoever asks the API. Best effort, and never in the way.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, Node, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::core::Request;
use kube::core::params::{Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::client::{Api, Pace};
use crate::correlate::{Correlator, Verdict};
use crate::error::{ApiError, ErrorKind};
use crate::pace::BackOff;

/// Occurrences that may wait while the server is away; beyond that new ones are dropped.
const QUEUE: usize = 1000;
/// An event that could not be sent for this long is history.
const STALE: Duration = Duration::from_secs(120);
/// What the API refuses to store is cut.
const LONGEST_MESSAGE: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    Normal,
    Warning,
}

impl EventType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// What an event is about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ObjectRef {
    pub api_version: String,
    pub kind: String,
    /// Empty for a Node.
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    /// The part of the object: `spec.containers{web}`.
    pub field_path: String,
}

impl ObjectRef {
    pub fn pod(pod: &Pod) -> Self {
        let metadata = &pod.metadata;
        Self {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            field_path: String::new(),
        }
    }

    /// One container of a pod, wherever in the spec it stands.
    pub fn container(pod: &Pod, container: &str) -> Self {
        let spec = pod.spec.as_ref();
        let is_init = spec
            .and_then(|spec| spec.init_containers.as_ref())
            .is_some_and(|list| list.iter().any(|c| c.name == container));
        let is_ephemeral = spec
            .and_then(|spec| spec.ephemeral_containers.as_ref())
            .is_some_and(|list| list.iter().any(|c| c.name == container));
        let list = match (is_init, is_ephemeral) {
            (true, _) => "initContainers",
            (_, true) => "ephemeralContainers",
            _ => "containers",
        };
        Self { field_path: format!("spec.{list}{{{container}}}"), ..Self::pod(pod) }
    }

    /// The kubelet puts the node's name where its uid belongs, and `kubectl describe node` looks for it there.
    pub fn node(name: &str) -> Self {
        Self { kind: "Node".to_owned(), name: name.to_owned(), uid: name.to_owned(), ..Self::default() }
    }

    /// The registered Node, by its real uid.
    pub fn registered_node(node: &Node) -> Self {
        let uid = node.metadata.uid.clone().unwrap_or_default();
        Self { uid, ..Self::node(node.metadata.name.as_deref().unwrap_or_default()) }
    }

    /// The object as a whole; its version does not make it another object either.
    pub(crate) fn without_field(&self) -> Self {
        Self { field_path: String::new(), resource_version: String::new(), ..self.clone() }
    }

    /// Events about things without a namespace live in the default one.
    fn event_namespace(&self) -> &str {
        if self.namespace.is_empty() { "default" } else { &self.namespace }
    }
}

#[derive(Debug)]
struct Occurrence {
    object: ObjectRef,
    type_: EventType,
    reason: String,
    message: String,
    at: Timestamp,
    queued_at: Instant,
}

/// Cheap to clone; every clone feeds the same queue.
#[derive(Clone)]
pub struct EventRecorder {
    queue: Option<mpsc::Sender<Occurrence>>,
    dropped: Arc<std::sync::atomic::AtomicU64>,
}

impl EventRecorder {
    /// Sends events until the last clone is dropped. Must be called inside a runtime.
    pub fn start(api: Api) -> Self {
        let (queue, occurrences) = mpsc::channel(QUEUE);
        tokio::spawn(Sender::new(api).run(occurrences));
        Self { queue: Some(queue), dropped: Arc::default() }
    }

    /// Without an apiserver: events are logged and that is all.
    pub fn standalone() -> Self {
        Self { queue: None, dropped: Arc::default() }
    }

    /// Records and returns at once, whatever the state of the server.
    pub fn event(&self, object: &ObjectRef, type_: EventType, reason: &str, message: &str) {
        let (namespace, name) = (&object.namespace, &object.name);
        match type_ {
            EventType::Normal => tracing::info!(
                kind = object.kind,
                namespace,
                name,
                field = object.field_path,
                reason,
                "{message}"
            ),
            EventType::Warning => tracing::warn!(
                kind = object.kind,
                namespace,
                name,
                field = object.field_path,
                reason,
                "{message}"
            ),
        }
        let Some(queue) = &self.queue else { return };
        let occurrence = Occurrence {
            object: object.clone(),
            type_,
            reason: reason.to_owned(),
            message: cut(message),
            at: Timestamp::now(),
            queued_at: Instant::now(),
        };
        if queue.try_send(occurrence).is_err() {
            let dropped = self.dropped.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
            if dropped.is_power_of_two() {
                tracing::warn!(dropped, "the queue of events is full; events are dropped");
            }
        }
    }
}

struct Sender {
    api: Api,
    correlator: Correlator,
    back_off: BackOff,
    serial: u64,
}

impl Sender {
    fn new(api: Api) -> Self {
        let timings = api.timings();
        let back_off = BackOff::new(timings.retry_first, timings.retry_cap);
        Self { api, correlator: Correlator::default(), back_off, serial: 0 }
    }

    async fn run(mut self, mut occurrences: mpsc::Receiver<Occurrence>) {
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
                    self.back_off.reset();
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
                    let pause = match error.kind {
                        ErrorKind::TooManyRequests { retry_after } => retry_after.max(self.back_off.next()),
                        _ => self.back_off.next(),
                    };
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
        let body = serde_json::to_vec(&event)
            .map_err(|error| ApiError::new(ErrorKind::Invalid, &operation, error.to_string()))?;
        let request = collection(object).create(&PostParams::default(), body);
        match self.api.call::<Event>(&operation, Pace::Events, request).await {
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
        self.api.call::<Event>(&operation, Pace::Events, request).await.map(|_| (name.to_owned(), count))
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

fn cut(message: &str) -> String {
    if message.len() <= LONGEST_MESSAGE {
        return message.to_owned();
    }
    let mut end = LONGEST_MESSAGE - 3;
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}...", &message[..end])
}
