//! From what the cgroups have to what was granted: which steps, and in which order.
//!
//! Memory comes before CPU. The pod's own cgroup grows before its containers do and shrinks after them, and of the containers those
//! that shrink come first: at no moment do the containers together have more than their pod. Of the pod's CPU, the limit grows
//! before the request and shrinks after it.

use k8s_openapi::api::core::v1::{Container, Pod};

use super::{Allocation, Size, containers};
use crate::ids::ContainerId;
use crate::observed::{ContainerState, ObservedPod};
use crate::resources::pod_cgroup;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resize {
    /// Limits of memory that become less. None is set where more than that is in use.
    pub shrinks: Vec<Shrink>,
    pub steps: Vec<ResizeStep>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shrink {
    /// `None`: the pod as a whole.
    pub container: Option<(String, ContainerId)>,
    pub limit: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResizeStep {
    Pod(PodPart),
    Container {
        name: String,
        id: ContainerId,
        part: Part,
    },
    /// The pod's cgroup has all of this part.
    PodDone(Part),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Memory,
    Cpu,
}

/// What of the pod's own cgroup is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodPart {
    MemoryLimit,
    CpuLimit,
    CpuRequest,
}

/// What a resize means for a container that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    AsGranted,
    Update,
    Restart,
}

/// Without a record nothing is known to be otherwise.
pub fn verdict(pod: &Pod, container: &Container, actuated: Option<&Allocation>) -> Verdict {
    let Some((have, want)) = sizes(pod, container, actuated) else { return Verdict::AsGranted };
    if have == want {
        return Verdict::AsGranted;
    }
    let memory = (have.memory_request, have.memory_limit) != (want.memory_request, want.memory_limit);
    let cpu = (have.cpu_request, have.cpu_limit) != (want.cpu_request, want.cpu_limit);
    let restarts = |name: &str| {
        let policy = container.resize_policy.iter().flatten().find(|p| p.resource_name == name);
        policy.is_some_and(|p| p.restart_policy == "RestartContainer")
    };
    let restart = (memory && restarts("memory")) || (cpu && restarts("cpu"));
    if restart { Verdict::Restart } else { Verdict::Update }
}

/// What the cgroups have of it, and what was granted.
fn sizes(pod: &Pod, container: &Container, actuated: Option<&Allocation>) -> Option<(Size, Size)> {
    let actuated = actuated?;
    let have = actuated.container_resources.get(&container.name)?;
    let none = Default::default();
    let pod_level = pod.spec.as_ref().and_then(|s| s.resources.as_ref());
    let want = Size::of(pod_level, container.resources.as_ref().unwrap_or(&none));
    Some((Size::of(actuated.pod_level_resources.as_ref(), have), want))
}

fn pod_level_differs(pod: &Pod, actuated: Option<&Allocation>) -> bool {
    let want = Size::of_pod(pod.spec.as_ref().and_then(|s| s.resources.as_ref()));
    actuated.is_some_and(|a| Size::of_pod(a.pod_level_resources.as_ref()) != want)
}

/// Whether anything that runs does not have what was granted yet.
pub fn in_progress(pod: &Pod, actuated: Option<&Allocation>, observed: &ObservedPod) -> bool {
    let runs = |c: &&Container| observed.latest(&c.name).is_some_and(|o| o.state == ContainerState::Running);
    let mut running = pod.spec.iter().flat_map(containers).filter(runs);
    running.any(|c| verdict(pod, c, actuated) != Verdict::AsGranted) || pod_level_differs(pod, actuated)
}

/// What is to be done for those that run and for the pod's own cgroup, if anything is. `starting` are about to be started with what
/// was granted: the pod has to have room for them. `unfinished`: steps were taken before, and nobody knows whether the pod's own
/// cgroup has followed.
pub fn resize(
    pod: &Pod,
    actuated: Option<&Allocation>,
    running: &[(&str, &ContainerId)],
    starting: &[&str],
    unfinished: bool,
) -> Option<Resize> {
    let actuated = actuated?;
    let mut changes: Vec<(&Container, &ContainerId, Size, Size)> = vec![];
    let mut room = unfinished || pod_level_differs(pod, Some(actuated));
    for c in pod.spec.iter().flat_map(containers) {
        let Some((have, want)) = sizes(pod, c, Some(actuated)).filter(|(have, want)| have != want) else {
            continue;
        };
        match running.iter().find(|(name, _)| *name == c.name) {
            Some((_, id)) => changes.push((c, id, have, want)),
            None => room |= starting.contains(&c.name.as_str()),
        }
    }
    if changes.is_empty() && !room {
        return None;
    }
    // Only which way it goes is asked here, so any period will do.
    let bounds = |pod: &Pod| pod_cgroup(pod, true, 100_000);
    let (now, then) = (bounds(&actuated.over(pod)), bounds(pod));
    let mut resize = Resize::default();

    let change = |now, then| Change::of(now, then, unfinished);
    let limit = change(now.memory_limit, then.memory_limit);
    if limit == Change::Less
        && let Some(limit) = then.memory_limit
    {
        resize.shrinks.push(Shrink { container: None, limit });
    }
    let less = |have: i64, want: i64| want != 0 && (have == 0 || want < have);
    for (c, id, have, want) in &changes {
        if less(have.memory_limit, want.memory_limit) {
            let container = Some((c.name.clone(), (*id).clone()));
            resize.shrinks.push(Shrink { container, limit: want.memory_limit });
        }
    }
    let memory = |s: &Size| (or_all(s.memory_limit), s.memory_request);
    resize.part(Part::Memory, &changes, memory, &[(PodPart::MemoryLimit, limit)]);

    let cpu = |s: &Size| (or_all(s.cpu_limit), s.cpu_request);
    let limit = (PodPart::CpuLimit, change(now.cpu_quota, then.cpu_quota));
    let request = (PodPart::CpuRequest, change(now.cpu_shares, then.cpu_shares));
    resize.part(Part::Cpu, &changes, cpu, &[limit, request]);
    Some(resize)
}

/// No limit is more than any.
fn or_all(limit: i64) -> i64 {
    if limit == 0 { i64::MAX } else { limit }
}

impl Resize {
    /// One part of it. `of_pod`: in the order in which they grow.
    fn part(
        &mut self,
        part: Part,
        changes: &[(&Container, &ContainerId, Size, Size)],
        figures: impl Fn(&Size) -> (i64, i64),
        of_pod: &[(PodPart, Change)],
    ) {
        let grows = of_pod.iter().filter(|(_, change)| *change == Change::More);
        self.steps.extend(grows.map(|(what, _)| ResizeStep::Pod(*what)));
        let mut own: Vec<_> =
            changes.iter().filter(|(_, _, have, want)| figures(have) != figures(want)).collect();
        own.sort_by_key(|(_, _, have, want)| figures(want) > figures(have));
        let update = |(c, id, _, _): &(&Container, &ContainerId, Size, Size)| ResizeStep::Container {
            name: c.name.clone(),
            id: (*id).clone(),
            part,
        };
        self.steps.extend(own.into_iter().map(update));
        let shrinks = of_pod.iter().rev().filter(|(_, change)| *change == Change::Less);
        self.steps.extend(shrinks.map(|(what, _)| ResizeStep::Pod(*what)));
        self.steps.push(ResizeStep::PodDone(part));
    }
}

/// Which way a value of the pod's cgroup goes. One that has a bound keeps one: a limit is not taken away from a pod that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    More,
    Less,
}

impl Change {
    /// What may not have been set is set as what becomes less: when the containers have what they are to have.
    fn of(now: Option<i64>, then: Option<i64>, unfinished: bool) -> Self {
        match (now, then) {
            (_, None) => Self::None,
            (None, Some(_)) => Self::Less,
            (Some(now), Some(then)) if then > now => Self::More,
            (Some(now), Some(then)) if then < now => Self::Less,
            (Some(_), Some(_)) if unfinished => Self::Less,
            (Some(_), Some(_)) => Self::None,
        }
    }
}
