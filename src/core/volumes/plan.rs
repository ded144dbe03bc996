//! Which of a pod's volumes are to be prepared, refreshed or released now, and when to ask again.
//!
//! Each volume has a state and a back-off of its own: one that fails is tried again alone, and the others are left as
//! they are. Whoever carries a plan out reports each outcome to [`PodVolumes::apply`].

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Volume;

use super::needs::{Change, Needs};
use super::place::VolumePlace;
use crate::backoff::{Backoff, VOLUMES};

/// What is remembered of a pod's volumes between two rounds. All of it is lost with the agent, and rebuilt by preparing
/// every volume once more.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodVolumes {
    /// All volumes together, as the pod's plan and its status see them since the last [`PodVolumes::review`].
    pub state: VolumesState,
    /// When the next review will find more to do.
    next_review: Option<Timestamp>,
    /// The pod's own directories, in which the volumes lie.
    directories: VolumeState,
    volumes: BTreeMap<String, VolumeState>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum VolumesState {
    #[default]
    Pending,
    Ready,
    /// The message of the first volume that failed; it names the volume.
    Failed(String),
}

/// One volume. A volume that nothing is known of is due.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumeState {
    /// `None` until it was prepared for the first time.
    place: Option<VolumePlace>,
    /// Why the last attempt failed. The message names the volume.
    failure: Option<String>,
    due: Due,
    backoff: Backoff,
}

/// When a volume needs attention next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Due {
    #[default]
    Now,
    At(Timestamp),
    /// Only when something that it shows changes.
    OnChange,
}

/// What is to be done in this round. Volumes are in the order of the pod's spec.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumePlan {
    /// The pod's directories are to be made before anything else.
    pub directories: bool,
    /// Never prepared so far: the pod waits for these.
    pub prepare: Vec<String>,
    /// Prepared before, and due to be brought up to date.
    pub refresh: Vec<String>,
    /// No longer in the pod's spec.
    pub release: Vec<String>,
}

/// How one step of a plan ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeOutcome {
    /// The pod's directories are there.
    Directories {
        path: String,
    },
    /// They are not, and no volume was tried.
    NoDirectories {
        message: String,
    },
    Prepared {
        volume: String,
        place: VolumePlace,
        refresh_at: Option<Timestamp>,
    },
    /// Also for a release that failed.
    Failed {
        volume: String,
        message: String,
    },
    Released {
        volume: String,
    },
}

impl VolumePlan {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What is to be prepared, whether for the first time or again.
    pub fn prepares(&self, volume: &str) -> bool {
        self.prepare.iter().chain(&self.refresh).any(|name| name == volume)
    }
}

impl VolumeOutcome {
    /// The message of a failure.
    pub fn failure(&self) -> Option<&str> {
        match self {
            Self::NoDirectories { message } | Self::Failed { message, .. } => Some(message),
            Self::Directories { .. } | Self::Prepared { .. } | Self::Released { .. } => None,
        }
    }
}

impl PodVolumes {
    pub fn plan(&self, spec: &[Volume], now: Timestamp) -> VolumePlan {
        let mut plan = VolumePlan::default();
        if self.directories.place.is_none() && !self.directories.is_due(now) {
            return plan;
        }
        plan.directories = self.directories.is_due(now);
        for volume in spec {
            match self.volumes.get(&volume.name) {
                None => plan.prepare.push(volume.name.clone()),
                Some(state) if !state.is_due(now) => {}
                Some(state) if state.place.is_none() => plan.prepare.push(volume.name.clone()),
                Some(_) => plan.refresh.push(volume.name.clone()),
            }
        }
        let held_back = |state: &VolumeState| state.failure.is_some() && !state.is_due(now);
        let dropped = self.volumes.iter().filter(|(name, _)| !spec.iter().any(|v| v.name == **name));
        plan.release = dropped.filter(|(_, s)| !held_back(s)).map(|(name, _)| name.clone()).collect();
        plan
    }

    /// When to review again although nothing has happened. It may be past by now, but was not at the last review: what
    /// fell due since then is not missed.
    pub fn next_review(&self) -> Option<Timestamp> {
        self.next_review
    }

    /// The next instant after `now` at which a plan says more than it does now.
    fn next_at(&self, now: Timestamp) -> Option<Timestamp> {
        let all = self.volumes.values().chain([&self.directories]);
        all.filter_map(|state| state.due_at()).filter(|at| *at > now).min()
    }

    /// Brings up to date what plans and waits go by.
    pub fn review(&mut self, spec: &[Volume], now: Timestamp) {
        self.next_review = self.next_at(now);
        let state = self.overall(spec, now);
        if state != self.state {
            self.state = state;
        }
    }

    /// A failure stays until the volume is prepared, also while it is being tried again.
    fn overall(&self, spec: &[Volume], now: Timestamp) -> VolumesState {
        let in_order = spec.iter().filter_map(|v| self.volumes.get(&v.name));
        let mut missing = [&self.directories].into_iter().chain(in_order).filter(|s| s.place.is_none());
        match missing.find_map(|s| s.failure.clone()) {
            Some(message) => VolumesState::Failed(message),
            None if !self.plan(spec, now).is_empty() => VolumesState::Pending,
            None => VolumesState::Ready,
        }
    }

    /// Where each prepared volume is found, by name.
    pub fn places(&self) -> BTreeMap<String, VolumePlace> {
        self.volumes.iter().filter_map(|(name, s)| Some((name.clone(), s.place.clone()?))).collect()
    }

    /// Of those that lie on this machine: where.
    pub fn paths(&self) -> BTreeMap<String, String> {
        let on_host = |s: &VolumeState| s.place.as_ref()?.on_host().map(str::to_owned);
        self.volumes.iter().filter_map(|(name, s)| Some((name.clone(), on_host(s)?))).collect()
    }

    /// Makes every volume due again that shows what changed, whatever it is waiting for.
    pub fn invalidate(&mut self, spec: &[Volume], change: Change<'_>) {
        for volume in spec.iter().filter(|v| Needs::of(v).include(change)) {
            if let Some(state) = self.volumes.get_mut(&volume.name) {
                state.due = Due::Now;
            }
        }
    }

    /// Makes everything due again that is good: somebody else may have taken it away.
    pub fn recheck(&mut self) {
        for state in self.volumes.values_mut().chain([&mut self.directories]) {
            if state.failure.is_none() {
                state.due = Due::Now;
            }
        }
    }

    pub fn apply(&mut self, outcome: VolumeOutcome, now: Timestamp) {
        match outcome {
            VolumeOutcome::Directories { path } => {
                self.directories.prepared(VolumePlace::Host(path), None, now);
            }
            VolumeOutcome::NoDirectories { message } => self.directories.failed(message, now),
            VolumeOutcome::Prepared { volume, place, refresh_at } => {
                self.volumes.entry(volume).or_default().prepared(place, refresh_at, now);
            }
            VolumeOutcome::Failed { volume, message } => {
                self.volumes.entry(volume).or_default().failed(message, now);
            }
            VolumeOutcome::Released { volume } => {
                self.volumes.remove(&volume);
            }
        }
    }
}

impl VolumeState {
    fn is_due(&self, now: Timestamp) -> bool {
        match self.due {
            Due::Now => true,
            Due::At(at) => at <= now,
            Due::OnChange => false,
        }
    }

    fn due_at(&self) -> Option<Timestamp> {
        match self.due {
            Due::At(at) => Some(at),
            Due::Now | Due::OnChange => None,
        }
    }

    fn prepared(&mut self, place: VolumePlace, refresh_at: Option<Timestamp>, now: Timestamp) {
        self.place = Some(place);
        self.failure = None;
        self.due = match refresh_at {
            None => Due::OnChange,
            Some(at) if at > now => Due::At(at),
            // What it holds is overdue already, such as a token that could not be renewed. That is no failure, but
            // asking again at once would not end.
            Some(_) => {
                self.wait(now);
                return;
            }
        };
        self.backoff.reset();
    }

    fn failed(&mut self, message: String, now: Timestamp) {
        self.failure = Some(message);
        self.wait(now);
    }

    fn wait(&mut self, now: Timestamp) {
        self.backoff.fail(VOLUMES);
        self.due = Due::At(self.backoff.retry_at(now, now));
    }
}

#[cfg(test)]
mod tests;
