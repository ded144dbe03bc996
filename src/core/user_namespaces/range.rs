//! The ids that the node may give to its pods.

use super::UserNamespace;

/// The first id above all, and the unit in which ids are given out.
const UNIT: u32 = 65_536;

/// Cut into slots of one length. The slots are numbered from 0 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    first: u32,
    slots: u32,
    per_pod: u32,
}

/// Why a range cannot be given to pods.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadRange {
    #[error("userNamespaces.idsPerPod {0} is not a multiple of {UNIT} from {UNIT} to {max}", max = u32::MAX)]
    PerPod(i64),
    #[error(
        "the ids of user kubelet begin at {first}: they must begin at a multiple of {per_pod} ids for each pod, and not at 0"
    )]
    First { first: u32, per_pod: u32 },
    #[error("there are {length} ids for pods, which is not a multiple of {per_pod} ids for each pod")]
    Length { length: u32, per_pod: u32 },
    #[error(
        "there are ids for {slots} pods with user namespaces of their own, and maxPods is {max_pods}: give user kubelet more in /etc/subuid and /etc/subgid, or lower userNamespaces.idsPerPod"
    )]
    TooFew { slots: u32, max_pods: u32 },
    #[error("getsubids answered {0:?}, where one line such as \"0: kubelet 65536 2147483648\" is expected")]
    Unreadable(String),
}

impl IdRange {
    /// `given`: first id and number of ids that the machine reserves for pods. Without it all but the lowest ids are theirs.
    pub fn new(per_pod: i64, given: Option<(u32, u32)>, max_pods: u32) -> Result<Self, BadRange> {
        let in_units = |n: &u32| *n >= UNIT && n.is_multiple_of(UNIT);
        let per_pod = u32::try_from(per_pod).ok().filter(in_units).ok_or(BadRange::PerPod(per_pod))?;
        let (first, length) = given.unwrap_or((per_pod, 0u32.wrapping_sub(per_pod)));
        if !first.is_multiple_of(per_pod) || first < per_pod {
            return Err(BadRange::First { first, per_pod });
        }
        if !length.is_multiple_of(per_pod) || u64::from(first) + u64::from(length) > 1 << 32 {
            return Err(BadRange::Length { length, per_pod });
        }
        let slots = length / per_pod;
        if slots < max_pods {
            return Err(BadRange::TooFew { slots, max_pods });
        }
        Ok(Self { first, slots, per_pod })
    }

    pub(super) fn slots(self) -> u32 {
        self.slots
    }

    pub(super) fn slot(self, number: u32) -> UserNamespace {
        UserNamespace { first_host_id: self.first + number * self.per_pod, length: self.per_pod }
    }

    /// Whether it is a whole slot of this range.
    pub fn has(self, ids: UserNamespace) -> bool {
        let offset = ids.first_host_id.checked_sub(self.first);
        ids.length == self.per_pod
            && offset.is_some_and(|n| n.is_multiple_of(self.per_pod) && n / self.per_pod < self.slots)
    }

    /// The slots that some ids touch.
    pub(super) fn touched(self, ids: UserNamespace) -> std::ops::Range<u32> {
        let number = |id: u64| id.saturating_sub(self.first.into()) / u64::from(self.per_pod);
        let end = number(ids.end() + u64::from(self.per_pod) - 1).min(self.slots.into());
        let first = number(ids.first_host_id.into()).min(end);
        u32::try_from(first).unwrap_or(u32::MAX)..u32::try_from(end).unwrap_or(u32::MAX)
    }
}

/// Reads what `getsubids kubelet` printed: the first id, and how many.
pub fn read_subids(text: &str) -> Result<(u32, u32), BadRange> {
    let unreadable = || BadRange::Unreadable(text.chars().take(200).collect());
    let mut lines = text.trim_matches('\n').lines();
    let (Some(line), None) = (lines.next(), lines.next()) else { return Err(unreadable()) };
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, _, first, length] = words[..] else { return Err(unreadable()) };
    match (first.parse(), length.parse()) {
        (Ok(first), Ok(length)) => Ok((first, length)),
        _ => Err(unreadable()),
    }
}
