//! Events: what happened to a pod or to the node, for whoever asks the API. Best effort, and never in the way.

mod correlate;
mod object_ref;
mod sender;

use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::client::Api;
pub use object_ref::ObjectRef;
use sender::EventSender;

/// Occurrences that may wait while the server is away; beyond that new ones are dropped.
const QUEUE: usize = 1000;
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
        tokio::spawn(EventSender::new(api).run(occurrences));
        Self { queue: Some(queue), dropped: Arc::default() }
    }

    /// Without an apiserver: events are logged and that is all.
    pub fn standalone() -> Self {
        Self { queue: None, dropped: Arc::default() }
    }

    /// Records and returns at once, whatever the state of the server.
    pub fn event(&self, object: &ObjectRef, type_: EventType, reason: &str, message: &str) {
        let (namespace, name) = (&object.namespace, &object.name);
        let message = cut(message);
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
            message,
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
