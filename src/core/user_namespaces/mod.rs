//! Which of the host's ids stand for a pod's own, for pods that have a user namespace (hostUsers: false).
//!
//! The node has one range of ids for all its pods. It is cut into slots of equal length, and a pod has one of them for as long
//! as anything of it is here.

mod allocator;
mod range;
mod record;
#[cfg(test)]
mod tests;

pub use allocator::{Allocator, NoFreeIds};
pub use range::{BadRange, IdRange, read_subids};
pub use record::{BadRecord, read_record, write_record};

use k8s_openapi::api::core::v1::Pod;

/// The host's ids that ids from 0 on mean inside a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserNamespace {
    pub first_host_id: u32,
    pub length: u32,
}

impl UserNamespace {
    /// One past the last id, which may be one more than an id can be.
    fn end(self) -> u64 {
        u64::from(self.first_host_id) + u64::from(self.length)
    }

    pub fn overlaps(self, other: Self) -> bool {
        u64::from(self.first_host_id) < other.end() && u64::from(other.first_host_id) < self.end()
    }
}

impl std::fmt::Display for UserNamespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.first_host_id, self.end().saturating_sub(1))
    }
}

/// Whether the pod asks for a user namespace of its own.
pub fn wants_own_users(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|s| s.host_users) == Some(false)
}

/// Whether a handler of the runtime can give a pod its own users, else why not, in the kubelet's words. `handlers` has those that
/// the runtime has reported; one that reports none is too old for it.
pub fn check_handler<'a>(
    handler: &str,
    handlers: impl IntoIterator<Item = (&'a str, bool)>,
) -> Result<(), String> {
    let mut handlers = handlers.into_iter().peekable();
    let knows_none = handlers.peek().is_none();
    let able = handlers.find(|(name, _)| *name == handler).map(|(_, able)| able);
    let problem = if handler.is_empty() {
        "can't set `spec.hostUsers: false`, runtime does not support user namespaces".to_owned()
    } else {
        format!(
            "can't set `spec.hostUsers: false`, RuntimeClass handler {handler:?} does not support user namespaces"
        )
    };
    match able {
        Some(true) => Ok(()),
        None if !knows_none => Err(format!("{problem}: the handler {handler:?} is not known")),
        Some(false) | None => Err(problem),
    }
}
