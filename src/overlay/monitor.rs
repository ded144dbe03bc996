//! Hears of changes in the kernel and says when it is time to look again.

use keelson_netkit::monitor::Change;
use keelson_netkit::{Error, Monitor};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Both sockets that changes are told on.
pub struct Changes {
    links: AsyncFd<Monitor>,
    rules: Option<AsyncFd<Monitor>>,
}

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("{0}")]
    Kernel(#[from] Error),
    #[error("cannot wait for changes: {0}")]
    Wait(#[from] std::io::Error),
}

impl Changes {
    pub fn listen() -> Result<Self, ListenError> {
        let links = registered(Monitor::route()?)?;
        // A kernel without nf_tables has nothing to tell there; the regular check finds out about the rest.
        let rules = Monitor::nftables().ok().and_then(|monitor| registered(monitor).ok());
        Ok(Changes { links, rules })
    }

    /// Returns when something changed that concerns the overlay.
    pub async fn next(&mut self, is_concern: impl Fn(&Change) -> bool) -> Result<(), ListenError> {
        loop {
            let rules = async {
                match &mut self.rules {
                    Some(rules) => rules.readable_mut().await.map(Some),
                    None => std::future::pending().await,
                }
            };
            let mut concerns = false;
            // Once there is reason to look at everything, the rest is only taken away.
            let mut each = |change: Change| {
                if !concerns && is_concern(&change) {
                    tracing::debug!(?change, "somebody changed something of ours");
                    concerns = true;
                }
            };
            tokio::select! {
                ready = self.links.readable_mut() => {
                    let mut ready = ready?;
                    ready.get_inner_mut().drain(&mut each)?;
                    ready.clear_ready();
                }
                ready = rules => if let Some(mut ready) = ready? {
                    ready.get_inner_mut().drain(&mut each)?;
                    ready.clear_ready();
                }
            }
            if concerns {
                return Ok(());
            }
        }
    }
}

#[expect(
    deprecated,
    reason = "its successor is unsafe for descriptors that may change; a monitor's never does"
)]
fn registered(monitor: Monitor) -> std::io::Result<AsyncFd<Monitor>> {
    AsyncFd::with_interest(monitor, Interest::READABLE)
}
