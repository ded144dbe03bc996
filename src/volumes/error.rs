//! Why a volume is not there, or not gone.

use keelson_core::ids::PodUid;
use keelson_host::PathError;

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("volume {volume:?} is of kind {kind}, which this agent does not support")]
    Unsupported { volume: String, kind: String },
    #[error(
        "volume {volume:?} is of kind gitRepo, which is refused because it runs commands on the host; clone in an init container into an emptyDir instead"
    )]
    GitRepo { volume: String },
    #[error("volume {volume:?} names no source")]
    NoSource { volume: String },
    #[error("volume {volume:?}: {problem}")]
    Invalid { volume: String, problem: String },
    #[error("hostPath volume {volume:?}: {problem}")]
    HostPath { volume: String, problem: String },
    #[error(transparent)]
    Content(#[from] keelson_core::volumes::VolumeError),
    /// What the volume needs could not be had. The message names the volume.
    #[error("{0}")]
    Gather(String),
    #[error("volume {volume:?}: {source}")]
    Path { volume: String, source: PathError },
    #[error("volume {volume:?}: the work on it was broken off: {problem}")]
    Aborted { volume: String, problem: String },
}

/// Everything that a teardown could not take away.
#[derive(Debug, thiserror::Error)]
#[error("pod {uid}: {}", list(failures))]
pub struct TeardownError {
    pub uid: PodUid,
    pub failures: Vec<String>,
}

fn list(failures: &[String]) -> String {
    failures.join("; ")
}
