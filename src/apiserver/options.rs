//! Who this node is to the apiserver, how much it may ask, and how long it waits for what.

use std::path::PathBuf;
use std::time::Duration;

use keelson_kit::backoff::Policy;

#[derive(Debug, Clone)]
pub struct ClientOptions {
    pub kubeconfig: PathBuf,
    pub node_name: String,
    pub qps: u32,
    pub burst: u32,
    /// Events have an allowance of their own: a crowd of them must not hold up statuses.
    pub event_qps: u32,
    pub event_burst: u32,
    pub timings: Timings,
}

impl ClientOptions {
    pub fn new(kubeconfig: impl Into<PathBuf>, node_name: impl Into<String>) -> Self {
        let (kubeconfig, node_name) = (kubeconfig.into(), node_name.into());
        Self {
            kubeconfig,
            node_name,
            qps: 50,
            burst: 100,
            event_qps: 50,
            event_burst: 100,
            timings: Timings::default(),
        }
    }
}

/// How long to wait for what. The defaults are for production; tests shorten them.
#[derive(Debug, Clone)]
pub struct Timings {
    /// For the whole answer to a request, and for the first byte of a watch.
    pub request: Duration,
    /// After this the server is asked to end a watch, so that no connection lives for ever.
    pub watch: Duration,
    /// A watch that brought nothing for this long, not even the bookmark that is due every minute, is reopened.
    pub watch_idle: Duration,
    /// After failures.
    pub retry: Policy,
    /// How often at most the identity's files are checked for a rotation.
    pub identity_check: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            request: Duration::from_secs(30),
            watch: Duration::from_secs(290),
            watch_idle: Duration::from_secs(150),
            retry: Policy::new(Duration::from_millis(800), Duration::from_secs(30)),
            identity_check: Duration::from_secs(10),
        }
    }
}
