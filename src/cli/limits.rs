//! The agent's own standing on the machine: the last to be killed when memory runs out, and room for its files.

use keelson_core::config::KubeletConfiguration;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Best effort, as the kubelet has it: a machine that withholds the right (a container, often) still gets its agent.
pub(crate) fn set(config: &KubeletConfiguration) {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", config.oom_score_adj.to_string()) {
        tracing::info!(%error, wanted = config.oom_score_adj, "oomScoreAdj could not be set");
    }
    let Ok(wanted) = u64::try_from(config.max_open_files) else { return };
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|current| current >= wanted) {
        return;
    }
    let maximum = now.maximum.map(|maximum| maximum.max(wanted));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).or_else(|_| {
        // Without the right to raise the hard limit, as far as that allows.
        setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum })
    });
    if let Err(error) = raised {
        tracing::info!(%error, wanted, "maxOpenFiles could not be set");
    }
}
