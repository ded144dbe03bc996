//! What comes to a pod from outside: that it is there, admitted, observed, asked to end.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;

use super::row::{Ending, Note, Row};
use super::step::{Place, Stage, Step};
use super::{Moment, PodTimeline};
use crate::desired::{DesiredPod, PodSource, TerminationReason};
use crate::ids::PodUid;
use crate::observed::{ContainerState, ObservedContainer, ObservedPod};

const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// What is known of a pod when its record begins.
pub struct Beginning<'a> {
    pub uid: &'a PodUid,
    pub namespace: &'a str,
    pub name: &'a str,
    pub source: Option<PodSource>,
    pub bound: Option<Timestamp>,
    pub created: Option<Timestamp>,
    /// Nobody has begun to run it.
    pub fresh: bool,
    pub agent_began: Timestamp,
}

impl<'a> Beginning<'a> {
    /// A pod that a source asks for. `found`: the runtime holds something of it already.
    pub fn desired(desired: &'a DesiredPod, found: bool, agent_began: Timestamp) -> Self {
        let begun = desired.pod.status.as_ref().is_some_and(|s| s.start_time.is_some());
        Self {
            uid: &desired.uid,
            namespace: desired.namespace(),
            name: desired.name(),
            source: Some(desired.source),
            bound: bound_at(desired),
            created: created_at(desired),
            fresh: !found && !begun,
            agent_began,
        }
    }

    /// A pod that only the runtime knows.
    pub fn left(uid: &'a PodUid, namespace: &'a str, name: &'a str, agent_began: Timestamp) -> Self {
        let (source, bound, created, fresh) = (None, None, None, false);
        Self { uid, namespace, name, source, bound, created, fresh, agent_began }
    }
}

/// When the pod was bound to this node: when it was scheduled, or when it was created for one that names its node.
pub fn bound_at(desired: &DesiredPod) -> Option<Timestamp> {
    let conditions = desired.pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    let scheduled = conditions.iter().find(|c| c.type_ == "PodScheduled" && c.status == "True");
    let scheduled = scheduled.and_then(|c| c.last_transition_time.as_ref()).map(|t| t.0);
    // What a kubelet or an agent has written is when it saw the pod, not when that was bound.
    let begun = desired.pod.status.as_ref().is_some_and(|s| s.start_time.is_some());
    scheduled.filter(|_| !begun).or_else(|| created_at(desired))
}

/// Only an apiserver says when a pod was made.
fn created_at(desired: &DesiredPod) -> Option<Timestamp> {
    let created = desired.pod.metadata.creation_timestamp.as_ref().map(|t| t.0);
    created.filter(|_| desired.source == PodSource::Api)
}

/// When somebody asked for the pod's deletion: the API keeps when its grace period will be over.
pub fn asked_at(pod: &Pod) -> Option<Timestamp> {
    let over = pod.metadata.deletion_timestamp.as_ref()?.0;
    let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(0));
    over.checked_sub(grace).ok()
}

impl PodTimeline {
    pub(super) fn first_seen(&mut self, beginning: &Beginning<'_>, now: Moment) {
        if !self.fresh {
            return;
        }
        match beginning.bound {
            Some(bound) => self.bound_and_seen(bound, beginning.agent_began, now),
            None => self.untimed(Step::Seen, None, now),
        }
        self.push(Row::new(Stage::Start, Step::Admitted, None, Place::Agent, now));
    }

    fn bound_and_seen(&mut self, bound: Timestamp, agent_began: Timestamp, now: Moment) {
        // Bound up to a second later than the API says.
        let before = bound.saturating_add(SECOND).is_ok_and(|at| at <= agent_began);
        let place = if before { Place::Agent } else { Place::Apiserver };
        let began = now.place(bound).min(now);
        let mut row = Row::new(Stage::Start, Step::Seen, None, place, began);
        row.note = if before { Note::BeforeAgent } else { Note::AtMost };
        row.end(Ending::Done, now);
        self.push(row);
    }

    /// This node has decided. `Err`: it does not take the pod, and why.
    pub fn admitted(&mut self, result: Result<(), &str>, now: Moment) {
        let how = if result.is_ok() { Ending::Done } else { Ending::Failed };
        self.end(Step::Admitted, None, how, now);
        if let Err(cause) = result {
            self.failed(Step::Admitted, Place::Node, None, cause, now);
        }
    }

    /// What an agent before this one has done, as far as the runtime and the status remember it.
    pub fn found(&mut self, observed: &ObservedPod, now: Moment) {
        if self.fresh {
            return;
        }
        if let Some(sandbox) = observed.sandboxes.iter().min_by_key(|s| s.created_at) {
            self.untimed(Step::Sandbox, None, now.place(sandbox.created_at));
        }
        for c in observed.containers.iter().rev() {
            self.untimed(Step::Created, Some(&c.name), now.place(c.created_at));
            if let Some(at) = c.started_at {
                self.untimed(Step::Started, Some(&c.name), now.place(at));
            }
        }
    }

    /// Ends what went on in containers that have ended: the run of an init container, and the wait for one to be ready.
    pub fn observed(&mut self, observed: &ObservedPod, now: Moment) {
        for index in 0..self.rows.len() {
            let row = &self.rows[index];
            if !row.is_open() || !matches!(row.step, Step::Run | Step::Ready) {
                continue;
            }
            let name = row.container.and_then(|c| self.containers.get(usize::from(c)));
            let newest = name.and_then(|name| observed.latest(name));
            let Some(ended) = newest.filter(|c| c.state == ContainerState::Exited) else { continue };
            let done = row.step == Step::Run && !ended.has_failed();
            let failed = if row.step == Step::Run { Ending::Failed } else { Ending::GivenUp };
            let at = ended.finished_at.map_or(now, |at| now.place(at).min(now));
            let row = &mut self.rows[index];
            // The runtime's clock may be coarser than ours, so that an end seems to be before its beginning.
            row.end(if done { Ending::Done } else { failed }, at.max(row.tried));
        }
    }

    /// The pod is to end. A pod that had ended by itself may be deleted later: then its end begins anew. That the object of a
    /// deleted one is gone is no news.
    pub fn ends(&mut self, reason: &TerminationReason, asked: Option<Timestamp>, now: Moment) {
        let words = words(reason);
        if self.leaves || self.end.as_deref() == Some(&*words) {
            return;
        }
        self.leaves = matches!(reason, TerminationReason::Deleted | TerminationReason::Orphaned);
        let began = asked.map_or(now, |at| now.place(at).min(now));
        for row in self.rows.iter_mut().filter(|row| row.is_open()) {
            row.end(Ending::GivenUp, now);
        }
        self.rows.retain(|row| row.stage != Stage::Stop);
        self.end = Some(words);
        let place = if asked.is_some() { Place::Apiserver } else { Place::Agent };
        let mut row = Row::new(Stage::Stop, Step::Asked, None, place, began);
        row.note = if asked.is_some() { Note::AtMost } else { Note::None };
        row.end(Ending::Done, now);
        self.push(row);
    }
}

/// How a container ended, in words.
pub fn exit_cause(ended: &ObservedContainer, message: &str) -> String {
    let reason = if ended.reason.is_empty() { String::new() } else { format!(" ({})", ended.reason) };
    let (code, up) = (ended.exit_code, super::view::span(ended.up_time()));
    let head = format!("it ended with exit code {code}{reason} after {up}");
    match message.trim() {
        "" => head,
        message => format!("{head}: {message}"),
    }
}

fn words(reason: &TerminationReason) -> Box<str> {
    let said = |what: &str, reason: &str, message: &str| {
        let message = &message[..message.floor_char_boundary(super::failure::LONGEST)];
        format!("{what} ({reason}): {message}").into()
    };
    match reason {
        TerminationReason::Deleted => "it was deleted".into(),
        TerminationReason::Orphaned => "its source does not have it any more".into(),
        TerminationReason::Completed => "its containers have ended and are not started again".into(),
        TerminationReason::Refused { reason, message } => said("this node refused it", reason, message),
        TerminationReason::Evicted { reason, message } => said("this node ended it", reason, message),
    }
}
