//! When to observe a pod again: reported by the runtime's event stream where there is one, else found out by comparing lists.

use std::time::Duration;

use keelson_core::ids::PodUid;
use keelson_kit::backoff::{Backoff, Policy};
use keelson_proto::runtime::v1::{ContainerEventResponse, GetEventsRequest};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::{Code, Request, Status, Streaming};
use tracing::{debug, info, warn};

use crate::Runtime;
use crate::error::{CriError, ErrorKind};
use crate::relist::Relist;
use crate::validate::{self, Owner};

/// How often lists are compared beside an event stream, in case an event got lost; also how long a runtime that refused
/// the stream is left alone with it.
const SAFETY_PERIOD: Duration = Duration::from_secs(300);

/// A connection that held for longer than the longest pause starts over with short ones.
const RECONNECT: Policy = Policy {
    first: Duration::from_millis(100),
    most: Duration::from_secs(5),
    forgive_after: Duration::from_secs(5),
};

/// Changes that may wait to be taken; beyond that the runtime's stream is held back.
const BACKLOG: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuntimeChange {
    /// Something of this pod changed.
    Pod(PodUid),
    /// The runtime was reached, for the first time or again: everything may have changed.
    Resync,
}

/// Starts to watch, and does so until the receiver is dropped, across restarts of the runtime.
pub fn watch(runtime: Runtime, relist_period: Duration) -> mpsc::Receiver<RuntimeChange> {
    let (changes, receiver) = mpsc::channel(BACKLOG);
    let watcher = Watcher { runtime, relist_period, changes, lists: Relist::default() };
    tokio::spawn(watcher.run());
    receiver
}

struct Watcher {
    runtime: Runtime,
    relist_period: Duration,
    changes: mpsc::Sender<RuntimeChange>,
    lists: Relist,
}

/// Why one way of watching ended.
enum Ended {
    /// Nobody wants to know any more.
    Unwatched,
    /// The runtime has no event stream.
    NoStream(CriError),
    /// The runtime went away, or the stream did.
    Lost(CriError),
    /// Time to try the event stream again.
    RetryStream,
}

impl Watcher {
    async fn run(mut self) {
        let mut backoff = Backoff::default();
        loop {
            let began = Instant::now();
            let mut ended = self.by_stream().await;
            if let Ended::NoStream(error) = ended {
                info!(%error, period = ?self.relist_period, "no event stream from the runtime, comparing lists instead");
                ended = self.by_lists().await;
            }
            match ended {
                Ended::Unwatched => return,
                Ended::RetryStream | Ended::NoStream(_) => {}
                Ended::Lost(error) => {
                    backoff = backoff.next(RECONNECT, began.elapsed());
                    let retry = backoff.delay();
                    warn!(%error, ?retry, "lost sight of the runtime");
                    tokio::select! {
                        () = tokio::time::sleep(retry) => {}
                        () = self.changes.closed() => return,
                    }
                    self.lists.forget();
                }
            }
        }
    }

    /// Reads events, and compares the lists now, once more when the stream is surely open, and then every few minutes.
    async fn by_stream(&mut self) -> Ended {
        let mut client = self.runtime.client();
        // A runtime that has nothing to report does not even answer the call, so waiting for the answer is part of
        // waiting for the first event, and only a refusal comes at once.
        let opening = async move { client.get_container_events(Request::new(GetEventsRequest {})).await };
        tokio::pin!(opening);
        let mut stream: Option<Streaming<ContainerEventResponse>> = None;
        let mut told_anything = false;
        let mut next_relist = Instant::now();
        let mut after_that = self.relist_period;
        loop {
            tokio::select! {
                biased;
                () = self.changes.closed() => return Ended::Unwatched,
                opened = &mut opening, if stream.is_none() => match opened {
                    Ok(response) => stream = Some(response.into_inner()),
                    Err(status) => return self.refused(&status),
                },
                event = next(&mut stream) => match event {
                    Ok(Some(event)) => {
                        told_anything = true;
                        if self.report(event).await.is_err() {
                            return Ended::Unwatched;
                        }
                    }
                    Ok(None) => return self.lost(&Status::unavailable("the runtime closed the event stream")),
                    // Some runtimes accept the call and only then say that they do not have it.
                    Err(status) if !told_anything => return self.refused(&status),
                    Err(status) => return self.lost(&status),
                },
                () = tokio::time::sleep_until(next_relist) => {
                    match self.compare().await {
                        Ok(true) => {}
                        Ok(false) => return Ended::Unwatched,
                        Err(error) => return Ended::Lost(error),
                    }
                    next_relist = Instant::now() + after_that;
                    after_that = SAFETY_PERIOD;
                }
            }
        }
    }

    async fn by_lists(&mut self) -> Ended {
        let retry_stream = Instant::now() + SAFETY_PERIOD;
        let connection = self.runtime.connections();
        loop {
            match self.compare().await {
                Ok(true) => {}
                Ok(false) => return Ended::Unwatched,
                Err(error) => return Ended::Lost(error),
            }
            // Another runtime may have started at once where the last one ended, and have a stream.
            if Instant::now() >= retry_stream || self.runtime.connections() != connection {
                return Ended::RetryStream;
            }
            tokio::select! {
                () = tokio::time::sleep(self.relist_period) => {}
                () = self.changes.closed() => return Ended::Unwatched,
            }
        }
    }

    /// False when nobody wants to know any more.
    async fn compare(&mut self) -> Result<bool, CriError> {
        for change in self.lists.compare(&self.runtime).await? {
            if self.changes.send(change).await.is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn report(
        &mut self,
        event: ContainerEventResponse,
    ) -> Result<(), mpsc::error::SendError<RuntimeChange>> {
        let Some(status) = &event.pod_sandbox_status else {
            // The sandbox is gone already. Which pod it was is only known if a list or an event named it before.
            return match self.lists.owner_of(&event.container_id) {
                Some(uid) => self.changes.send(RuntimeChange::Pod(uid)).await,
                None => {
                    debug!(
                        id = event.container_id,
                        "event about something unknown, everything is to be observed"
                    );
                    self.changes.send(RuntimeChange::Resync).await
                }
            };
        };
        let Some(owner) = Owner::read(&status.labels, &status.id) else { return Ok(()) };
        // Saves the next observer from asking for what was just reported.
        if let Some(seen) = validate::sandbox(status, &owner) {
            self.runtime.cache().learn_sandbox(&owner.uid, &seen);
        }
        for reported in &event.containers_statuses {
            if let Some(seen) = validate::container(reported, &status.id, &owner, self.runtime.pod_logs()) {
                self.runtime.cache().learn_container(&owner.uid, &seen);
            }
        }
        self.lists.remember(&event.container_id, &owner.uid);
        self.changes.send(RuntimeChange::Pod(owner.uid)).await
    }

    fn refused(&self, status: &Status) -> Ended {
        let error = CriError::from_status("watch events of", self.runtime.endpoint(), status);
        match (error.kind, error.code) {
            // Nobody there, or it went away with the stream.
            (ErrorKind::Unavailable | ErrorKind::Timeout, _) | (_, Code::Cancelled) => Ended::Lost(error),
            _ => Ended::NoStream(error),
        }
    }

    fn lost(&self, status: &Status) -> Ended {
        Ended::Lost(CriError::from_status("watch events of", self.runtime.endpoint(), status))
    }
}

/// Never, before there is a stream.
async fn next(
    stream: &mut Option<Streaming<ContainerEventResponse>>,
) -> Result<Option<ContainerEventResponse>, Status> {
    match stream {
        Some(stream) => stream.message().await,
        None => std::future::pending().await,
    }
}
