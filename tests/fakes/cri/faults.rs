//! Which calls go wrong, and how.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;
use tonic::{Code, Status};

/// Every call of both services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rpc {
    Version,
    Status,
    RuntimeConfig,
    UpdateRuntimeConfig,
    RunPodSandbox,
    StopPodSandbox,
    RemovePodSandbox,
    PodSandboxStatus,
    ListPodSandbox,
    StreamPodSandboxes,
    UpdatePodSandboxResources,
    CreateContainer,
    StartContainer,
    StopContainer,
    RemoveContainer,
    ContainerStatus,
    ListContainers,
    StreamContainers,
    UpdateContainerResources,
    ReopenContainerLog,
    CheckpointContainer,
    ExecSync,
    Exec,
    Attach,
    PortForward,
    GetContainerEvents,
    ContainerStats,
    ListContainerStats,
    StreamContainerStats,
    PodSandboxStats,
    ListPodSandboxStats,
    StreamPodSandboxStats,
    ListMetricDescriptors,
    ListPodSandboxMetrics,
    StreamPodSandboxMetrics,
    ListImages,
    StreamImages,
    ImageStatus,
    PullImage,
    RemoveImage,
    ImageFsInfo,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// No answer, and nothing is done, until the faults are cleared.
    Hang,
    /// The work is done, the answer does not come: what a create that timed out leaves behind.
    HangAfter,
    /// Refused, and nothing is done.
    Error(Code, String),
    /// The work is done, the answer says it failed.
    ErrorAfter(Code, String),
    /// The answer comes and is not true.
    Lie(Lie),
}

/// What is wrong with the answer, in every entry that it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// Logs are said to be in a file that is none of the pod's.
    LogPath,
    EmptyId,
    /// A state with a number that does not exist.
    UnknownState,
    /// Entries are said to belong to a pod whose uid would leave its directory.
    HostileUid,
}

#[derive(Default)]
pub(super) struct Faults {
    set: Mutex<HashMap<Rpc, Fault>>,
    calls: Mutex<HashMap<Rpc, usize>>,
    /// Counts the clearings, for those that hang.
    cleared: watch::Sender<u64>,
}

/// What is left to go wrong once a call got through.
#[derive(Default)]
pub(super) struct Passed {
    pub lie: Option<Lie>,
    after: Option<Fault>,
}

impl Faults {
    pub fn set(&self, rpc: Rpc, fault: Fault) {
        self.set.lock().unwrap_or_else(PoisonError::into_inner).insert(rpc, fault);
    }

    pub fn clear(&self) {
        self.set.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.cleared.send_modify(|count| *count += 1);
    }

    pub fn calls(&self, rpc: Rpc) -> usize {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).get(&rpc).copied().unwrap_or_default()
    }

    pub fn all_calls(&self) -> usize {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
    }

    /// Counts the call and does to it what was asked for before its work.
    pub async fn enter(&self, rpc: Rpc) -> Result<Passed, Status> {
        *self.calls.lock().unwrap_or_else(PoisonError::into_inner).entry(rpc).or_default() += 1;
        let fault = self.set.lock().unwrap_or_else(PoisonError::into_inner).get(&rpc).cloned();
        match fault {
            None => Ok(Passed::default()),
            Some(Fault::Lie(lie)) => Ok(Passed { lie: Some(lie), after: None }),
            Some(Fault::Error(code, message)) => Err(Status::new(code, message)),
            Some(Fault::Hang) => {
                self.until_cleared().await;
                Ok(Passed::default())
            }
            Some(later) => Ok(Passed { lie: None, after: Some(later) }),
        }
    }

    /// What was asked for after the work.
    pub async fn leave<T>(&self, passed: Passed, answer: T) -> Result<T, Status> {
        match passed.after {
            Some(Fault::ErrorAfter(code, message)) => Err(Status::new(code, message)),
            Some(Fault::HangAfter) => {
                self.until_cleared().await;
                Ok(answer)
            }
            _ => Ok(answer),
        }
    }

    async fn until_cleared(&self) {
        // The sender lives as long as this does, so the wait cannot fail.
        let _ = self.cleared.subscribe().changed().await;
    }
}
