//! fsGroup: whose group what lies in a volume is given, and what may be done with it then.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use crate::plan::PlannedEvent;

/// A pod's fsGroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsGroup {
    pub id: u32,
    pub policy: ChangePolicy,
}

/// When all that lies in a volume is gone through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChangePolicy {
    #[default]
    Always,
    /// Only when the top of the volume is not as it would be afterwards. It is changed last, so a walk that was broken off is
    /// begun anew.
    OnRootMismatch,
}

/// A file, a directory or a link, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owned {
    pub group: u32,
    /// The twelve bits that chmod sets.
    pub mode: u32,
    pub kind: OwnedKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnedKind {
    Directory,
    /// It is the link's own group that is set, never that of what it leads to; a link has no mode.
    Link,
    Other,
}

/// What is to be done with one of them. `None`: it is as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnershipChange {
    pub group: Option<u32>,
    pub mode: Option<u32>,
}

const SETGID: u32 = 0o2000;

impl FsGroup {
    pub fn of(pod: &Pod) -> Option<Self> {
        let context = pod.spec.as_ref()?.security_context.as_ref()?;
        let id = u32::try_from(context.fs_group?).ok()?;
        let policy = match context.fs_group_change_policy.as_deref() {
            Some("OnRootMismatch") => ChangePolicy::OnRootMismatch,
            _ => ChangePolicy::Always,
        };
        Some(Self { id, policy })
    }

    /// Whether the volume has to be gone through, by what its top is.
    pub fn needs_walk(self, top: Owned, read_only: bool) -> bool {
        match self.policy {
            ChangePolicy::Always => true,
            ChangePolicy::OnRootMismatch => {
                top.kind != OwnedKind::Directory || self.change(top, read_only) != OwnershipChange::default()
            }
        }
    }

    /// The group may do what the owner of a volume may: bits are added, and none is taken away.
    pub fn change(self, found: Owned, read_only: bool) -> OwnershipChange {
        let for_all = if read_only { 0o440 } else { 0o660 };
        let wanted = match found.kind {
            OwnedKind::Directory => found.mode | for_all | 0o110 | SETGID,
            OwnedKind::Other => found.mode | for_all,
            OwnedKind::Link => found.mode,
        };
        let group = (found.group != self.id).then_some(self.id);
        // A new group takes the bits away by which a program has the rights of its owner or its group.
        let lost = group.is_some() && found.kind == OwnedKind::Other && found.mode & 0o6000 != 0;
        OwnershipChange { group, mode: (wanted != found.mode || lost).then_some(wanted) }
    }
}

/// A walk that takes long is told of after a while, and then again and again.
#[derive(Debug, Default)]
pub struct WalkReports {
    told: u32,
}

const FIRST_AFTER: Duration = Duration::from_secs(30);
const THEN_EVERY: Duration = Duration::from_secs(60);

impl WalkReports {
    /// `path` is that of the volume below the pods' directory, as a kubelet shows it.
    pub fn due(&mut self, took: Duration, path: &str, entries: u64) -> Option<PlannedEvent> {
        if took < FIRST_AFTER + THEN_EVERY * self.told {
            return None;
        }
        let first = self.told == 0;
        self.told += 1;
        let message = match first {
            true => format!(
                "Setting volume ownership for {path} is taking longer than expected, consider using OnRootMismatch - https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods"
            ),
            false => format!("Setting volume ownership for {path}, processed {entries} files."),
        };
        Some(PlannedEvent::warning("VolumePermissionChangeInProgress", message))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const DIR: OwnedKind = OwnedKind::Directory;
    const FILE: OwnedKind = OwnedKind::Other;

    fn of(context: Value) -> Option<FsGroup> {
        let pod = json!({"spec": {"containers": [], "securityContext": context}});
        FsGroup::of(&serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn a_group_may_do_what_the_owner_may_and_loses_nothing() {
        let group = of(json!({"fsGroup": 2000})).unwrap();
        let cases = [
            ("a file", (0, 0o600, FILE), false, Some(2000), Some(0o660)),
            ("a file of the group", (2000, 0o660, FILE), false, None, None),
            ("a file that more may read", (2000, 0o664, FILE), false, None, None),
            ("a program", (0, 0o755, FILE), false, Some(2000), Some(0o775)),
            ("a program with its owner's rights", (0, 0o4775, FILE), false, Some(2000), Some(0o4775)),
            ("a directory", (0, 0o755, DIR), false, Some(2000), Some(0o2775)),
            ("a directory of the group", (2000, 0o2770, DIR), false, None, None),
            ("a directory without its bit", (2000, 0o770, DIR), false, None, Some(0o2770)),
            ("a link", (0, 0o777, OwnedKind::Link), false, Some(2000), None),
            ("a file that is only read", (0, 0o600, FILE), true, Some(2000), Some(0o640)),
            ("a directory that is only read", (2000, 0o700, DIR), true, None, Some(0o2750)),
        ];
        for (name, (owner, mode, kind), read_only, to, bits) in cases {
            let change = group.change(Owned { group: owner, mode, kind }, read_only);
            assert_eq!(change, OwnershipChange { group: to, mode: bits }, "{name}");
            let after = Owned { group: to.unwrap_or(owner), mode: bits.unwrap_or(mode), kind };
            assert_eq!(group.change(after, read_only), OwnershipChange::default(), "{name}, once more");
        }
    }

    #[test]
    fn a_volume_is_gone_through_always_or_when_its_top_says_so() {
        let always = of(json!({"fsGroup": 5})).unwrap();
        let mismatch = of(json!({"fsGroup": 5, "fsGroupChangePolicy": "OnRootMismatch"})).unwrap();
        assert_eq!(of(json!({"fsGroup": 5, "fsGroupChangePolicy": "Always"})), Some(always));
        assert_eq!(of(json!({})), None);
        let cases = [
            ("as it should be", (5, 0o2775, DIR), false),
            ("of another group", (6, 0o2775, DIR), true),
            ("without the group's right to write", (5, 0o2755, DIR), true),
            ("without its bit", (5, 0o775, DIR), true),
            ("no directory", (5, 0o660, FILE), true),
        ];
        for (name, (group, mode, kind), walks) in cases {
            let top = Owned { group, mode, kind };
            assert_eq!(mismatch.needs_walk(top, false), walks, "{name}");
            assert!(always.needs_walk(top, false), "{name}");
        }
    }

    #[test]
    fn a_long_walk_is_told_of_after_half_a_minute_and_then_every_minute() {
        let mut reports = WalkReports::default();
        let mut said = vec![];
        for second in 0..200 {
            let event = reports.due(Duration::from_secs(second), "u-1/volumes/k/v", second * 10);
            said.extend(event.map(|e| (second, e.message)));
        }
        let at: Vec<u64> = said.iter().map(|(second, _)| *second).collect();
        assert_eq!(at, [30, 90, 150]);
        assert!(said[0].1.contains("consider using OnRootMismatch"), "{}", said[0].1);
        assert_eq!(said[1].1, "Setting volume ownership for u-1/volumes/k/v, processed 900 files.");
    }
}
