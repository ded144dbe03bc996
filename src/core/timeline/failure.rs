//! The last failures of a pod, with their causes in words. So many are kept and no more, and each is cut to a length.

use std::collections::VecDeque;

use super::Moment;
use super::step::{Place, Step};
use crate::image::{is_failed_pull, is_image_reason};
use crate::pod::{ActionOutcome, SandboxFailure, SandboxFailureCause, StartFailure, Step as Action, Stopped};

/// How many are kept of a pod that is here, and of one that is gone.
pub(super) const KEPT: usize = 8;
pub(super) const KEPT_OF_GONE: usize = 4;
/// The longest cause in bytes.
pub(super) const LONGEST: usize = 400;
/// A run of so many hexadecimal digits is an id: it differs from try to try and says nothing.
const ID: usize = 12;

#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub step: Step,
    pub place: Place,
    /// An index into the names of containers.
    pub container: Option<u16>,
    pub first: Moment,
    pub last: Moment,
    pub count: u32,
    pub cause: Box<str>,
    /// The cause was longer.
    pub cut: bool,
}

/// Oldest first, by their last time.
#[derive(Debug, Clone, Default)]
pub(super) struct Failures(VecDeque<Failure>);

impl Failures {
    /// The same once more is counted, and costs no memory.
    pub fn add(&mut self, step: Step, place: Place, container: Option<u16>, cause: &str, now: Moment) {
        let kept = beginning(cause.trim());
        let same = |f: &Failure| {
            (f.step, f.place, f.container) == (step, place, container) && same_but_ids(&f.cause, kept)
        };
        if let Some(index) = self.0.iter().position(same)
            && let Some(mut known) = self.0.remove(index)
        {
            known.count = known.count.saturating_add(1);
            known.last = now;
            if *known.cause != *kept {
                known.cause = kept.into();
            }
            self.0.push_back(known);
            return;
        }
        self.keep(KEPT - 1);
        let cut = kept.len() < cause.trim().len();
        let (first, last) = (now, now);
        self.0.push_back(Failure { step, place, container, first, last, count: 1, cause: kept.into(), cut });
    }

    /// The latest `most`, and no more room than they take.
    pub fn keep(&mut self, most: usize) {
        let old = self.0.len().saturating_sub(most);
        self.0.drain(..old);
    }

    pub fn shrink(&mut self) {
        self.keep(KEPT_OF_GONE);
        self.0.shrink_to_fit();
    }

    /// Latest first.
    pub fn latest(&self) -> impl Iterator<Item = &Failure> {
        self.0.iter().rev()
    }
}

/// One failure that an outcome tells of.
pub(super) struct Told<'a> {
    pub step: Step,
    pub place: Place,
    pub container: Option<&'a str>,
    pub cause: &'a str,
}

/// What failed, of an action's outcome. What hooks have said is left out: it may hold secrets.
pub(super) fn told(done: &ActionOutcome) -> Vec<Told<'_>> {
    let pod = |step, place, cause| Told { step, place, container: None, cause };
    match done {
        ActionOutcome::Step(step, Err(cause)) => {
            let (step, place) = of_action(*step, cause);
            vec![pod(step, place, cause)]
        }
        ActionOutcome::VolumesMounted(outcomes) => {
            outcomes.iter().filter_map(|o| Some(pod(Step::Volumes, Place::Volume, o.failure()?))).collect()
        }
        ActionOutcome::SandboxCreated(Err(failure)) => {
            vec![pod(Step::Sandbox, of_sandbox(failure), &failure.message)]
        }
        ActionOutcome::ContainerStarted { name, result: Err(failure) } => {
            let (step, place) = of_start(failure);
            vec![Told { step, place, container: Some(name), cause: &failure.message }]
        }
        ActionOutcome::PostStartEnded { name, result: Some(Err(_)), .. } => {
            let cause = "its postStart hook failed, so the container is ended";
            vec![Told { step: Step::PostStart, place: Place::Hook, container: Some(name), cause }]
        }
        ActionOutcome::ContainersStopped(all) => all.iter().flat_map(of_stop).collect(),
        _ => vec![],
    }
}

fn of_stop(stopped: &Stopped) -> impl Iterator<Item = Told<'_>> {
    let container = Some(stopped.name.as_str());
    let hook = stopped.pre_stop.is_err().then_some(Told {
        step: Step::PreStop,
        place: Place::Hook,
        container,
        cause: "its preStop hook failed",
    });
    let stop = stopped.stop.as_ref().err();
    let stop = stop.map(|cause| Told { step: Step::Stopped, place: Place::Runtime, container, cause });
    hook.into_iter().chain(stop)
}

fn of_action(action: Action, cause: &str) -> (Step, Place) {
    match action {
        Action::EnsureCgroup => (Step::Cgroup, Place::Node),
        Action::StopSandbox => (Step::SandboxStopped, network_or_runtime(cause)),
        Action::RemoveSandbox => (Step::Removed, network_or_runtime(cause)),
        Action::RemoveContainer => (Step::Removed, Place::Runtime),
        Action::UnmountVolumes => (Step::VolumesUnmounted, Place::Volume),
        Action::RemoveCgroup => (Step::CgroupRemoved, Place::Node),
        Action::Finish => (Step::ObjectRemoved, Place::Apiserver),
        Action::RemoveDirectories => (Step::Removed, Place::Node),
    }
}

fn of_sandbox(failure: &SandboxFailure) -> Place {
    match failure.cause {
        SandboxFailureCause::NetworkNotReady => Place::NetworkPlugin,
        SandboxFailureCause::NameReserved => Place::Runtime,
        SandboxFailureCause::Other => network_or_runtime(&failure.message),
    }
}

/// The words that containerd and CRI-O have for what their network plugins answer. Where they say nothing of the network it
/// was the runtime itself, or cannot be told from it.
fn network_or_runtime(message: &str) -> Place {
    const NETWORK: [&str; 5] = [
        "failed to setup network for sandbox",
        "failed to destroy network for sandbox",
        "failed to create pod network sandbox",
        "failed to destroy network",
        "plugin type=",
    ];
    match NETWORK.iter().any(|words| message.contains(words)) {
        true => Place::NetworkPlugin,
        false => Place::Runtime,
    }
}

fn of_start(failure: &StartFailure) -> (Step, Place) {
    /// What a pull says that has brought the image and could not store it.
    const STORING: [&str; 3] = ["no space left on device", "failed to extract layer", "failed to unpack"];
    match failure.reason {
        reason if is_failed_pull(reason) => {
            let storing = STORING.iter().any(|words| failure.message.contains(words));
            (Step::Pull, if storing { Place::Runtime } else { Place::Registry })
        }
        "ImageInspectError" => (Step::Pull, Place::Runtime),
        reason if is_image_reason(reason) => (Step::Pull, Place::Spec),
        "CreateContainerConfigError" => (Step::Config, Place::Spec),
        "RunContainerError" => (Step::Started, Place::Runtime),
        _ => (Step::Created, Place::Runtime),
    }
}

/// As much as is kept, in whole characters.
fn beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST)]
}

fn same_but_ids(a: &str, b: &str) -> bool {
    let (mut a, mut b) = (a, b);
    loop {
        let (x, y) = (id_length(a), id_length(b));
        if x >= ID && y >= ID {
            (a, b) = (&a[x..], &b[y..]);
            continue;
        }
        match (a.chars().next(), b.chars().next()) {
            (None, None) => return true,
            (Some(x), Some(y)) if x == y => (a, b) = (&a[x.len_utf8()..], &b[y.len_utf8()..]),
            _ => return false,
        }
    }
}

fn id_length(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_hexdigit).count()
}
