//! What the runtime says is there. Everything that the agent needs to pick a pod up again after it was killed is in
//! these values, because it was written into the runtime as labels and annotations.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;

use crate::ids::{ContainerId, PodUid, SandboxId};
use crate::user_namespaces::UserNamespace;

/// Everything in the runtime that carries one pod's uid. Newest first, both lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedPod {
    pub uid: PodUid,
    pub namespace: String,
    pub name: String,
    pub sandboxes: Vec<ObservedSandbox>,
    pub containers: Vec<ObservedContainer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxState {
    Ready,
    NotReady,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedSandbox {
    pub id: SandboxId,
    pub attempt: u32,
    pub state: SandboxState,
    pub created_at: Timestamp,
    /// In the runtime's order. Empty for a host-network pod and for a sandbox that is no longer ready.
    pub ips: Vec<IpAddr>,
    pub host_network: bool,
    pub runtime_handler: String,
    /// The host's ids that stand for its own, where it has users of its own and the runtime reports it.
    pub user_namespace: Option<UserNamespace>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerState {
    Created,
    Running,
    Exited,
    /// A state this agent does not know. Treated as neither running nor finished: it is killed before anything replaces it.
    Unknown,
}

/// One instance of a container. As wide as CRI's own status with the annotations that were written: what an agent needs to take
/// it over is all here, and nothing reads a part of it as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedContainer {
    pub id: ContainerId,
    pub sandbox_id: SandboxId,
    pub name: String,
    /// Equal to the restart count it was created with.
    pub attempt: u32,
    pub state: ContainerState,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub exit_code: i32,
    /// The runtime's reason and message for an exit, such as OOMKilled.
    pub reason: String,
    pub message: String,
    /// The image as the pod asked for it, and the id that it resolved to.
    pub image: String,
    pub image_id: String,
    /// The annotation io.kubernetes.container.hash, as written.
    pub hash: Option<String>,
    pub termination_message_path: Option<String>,
    pub termination_message_policy: Option<String>,
    /// Host path that is mounted at the termination message path.
    pub termination_message_host_path: Option<String>,
    pub log_path: String,
    /// The annotations io.kubernetes.pod.{termination,deletion}GracePeriod, for a pod whose object is gone.
    pub termination_grace_seconds: Option<i64>,
    pub deletion_grace_seconds: Option<i64>,
    /// The annotation io.kubernetes.container.preStopHandler (JSON of a LifecycleHandler), likewise.
    pub pre_stop: Option<String>,
    /// Effective resources as the runtime reports them, where it does.
    pub resources: Option<ObservedResources>,
    /// The user the process was started with, where the runtime reports it.
    pub user: Option<ObservedUser>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObservedResources {
    pub cpu_shares: i64,
    pub cpu_quota: i64,
    pub cpu_period: i64,
    pub memory_limit_bytes: i64,
    /// As the runtime writes it; empty: all.
    pub cpuset_cpus: String,
    /// The same of NUMA nodes.
    pub cpuset_mems: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObservedUser {
    pub uid: i64,
    pub gid: i64,
    pub supplemental_groups: Vec<i64>,
}

impl ObservedPod {
    pub fn empty(uid: PodUid, namespace: &str, name: &str) -> Self {
        Self { uid, namespace: namespace.into(), name: name.into(), sandboxes: vec![], containers: vec![] }
    }

    /// The newest sandbox, ready or not.
    pub fn latest_sandbox(&self) -> Option<&ObservedSandbox> {
        self.sandboxes.iter().max_by_key(|s| (s.attempt, s.created_at))
    }

    /// The newest instance of a container.
    pub fn latest(&self, container: &str) -> Option<&ObservedContainer> {
        self.containers.iter().filter(|c| c.name == container).max_by_key(|c| (c.attempt, c.created_at))
    }

    pub fn running(&self) -> impl Iterator<Item = &ObservedContainer> {
        self.containers.iter().filter(|c| c.state == ContainerState::Running)
    }
}

impl ObservedSandbox {
    /// What the pod is reached at: one address of each family, the first of the runtime's, and the node's own family first. A
    /// node that does not know its addresses counts as one with IPv4.
    pub fn addresses(&self, host_ips: &[IpAddr]) -> Vec<IpAddr> {
        let six_first = host_ips.first().is_some_and(IpAddr::is_ipv6);
        let of = |six: bool| self.ips.iter().find(|ip| ip.is_ipv6() == six).copied();
        [of(six_first), of(!six_first)].into_iter().flatten().collect()
    }
}

impl ObservedContainer {
    /// Whether an instance that ended did not do what it was to do. One that ran out of memory has not, whatever its first
    /// process made of it.
    pub fn has_failed(&self) -> bool {
        self.exit_code != 0 || self.reason == "OOMKilled"
    }

    /// How long a finished instance was up.
    pub fn up_time(&self) -> Duration {
        match (self.started_at, self.finished_at) {
            (Some(s), Some(f)) => Duration::try_from(f.duration_since(s)).unwrap_or_default(),
            _ => Duration::ZERO,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// One that was created, and nothing more.
    pub(crate) fn container(name: &str) -> ObservedContainer {
        ObservedContainer {
            id: ContainerId::try_from(name).unwrap(),
            sandbox_id: SandboxId::try_from("s").unwrap(),
            name: name.to_owned(),
            attempt: 0,
            state: ContainerState::Created,
            created_at: Timestamp::UNIX_EPOCH,
            started_at: None,
            finished_at: None,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image: String::new(),
            image_id: String::new(),
            hash: None,
            termination_message_path: None,
            termination_message_policy: None,
            termination_message_host_path: None,
            log_path: String::new(),
            termination_grace_seconds: None,
            deletion_grace_seconds: None,
            pre_stop: None,
            resources: None,
            user: None,
        }
    }

    #[test]
    fn a_pod_is_reached_at_one_address_of_each_family_the_nodes_own_first() {
        let ips =
            |text: &str| -> Vec<IpAddr> { text.split_whitespace().map(|ip| ip.parse().unwrap()).collect() };
        for (name, of_pod, of_node, expected) in [
            ("the runtime has the other family first", "fd00::4 10.1.0.4", "192.0.2.1", "10.1.0.4 fd00::4"),
            ("the node has IPv6 first", "10.1.0.4 fd00::4", "2001:db8::1 192.0.2.1", "fd00::4 10.1.0.4"),
            ("they agree", "10.1.0.4 fd00::4", "192.0.2.1 2001:db8::1", "10.1.0.4 fd00::4"),
            ("the node's addresses are not known", "fd00::4 10.1.0.4", "", "10.1.0.4 fd00::4"),
            ("only the other family", "fd00::4", "192.0.2.1", "fd00::4"),
            ("several of one family", "10.1.0.4 10.1.0.5 fd00::4 fd00::5", "192.0.2.1", "10.1.0.4 fd00::4"),
            ("none", "", "192.0.2.1", ""),
        ] {
            let sandbox = ObservedSandbox {
                id: SandboxId::try_from("s").unwrap(),
                attempt: 0,
                state: SandboxState::Ready,
                created_at: Timestamp::UNIX_EPOCH,
                ips: ips(of_pod),
                host_network: false,
                runtime_handler: String::new(),
                user_namespace: None,
            };
            assert_eq!(sandbox.addresses(&ips(of_node)), ips(expected), "{name}");
        }
    }
}
