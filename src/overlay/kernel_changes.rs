//! Waits for kernel notifications that need a reconcile.

use keelson_netkit::monitor::Change;
use keelson_netkit::{Error, Monitor};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The rtnetlink and nf_tables notification sockets.
pub struct KernelChanges {
    links: AsyncFd<Monitor>,
    rules: Option<AsyncFd<Monitor>>,
}

#[derive(Debug, thiserror::Error)]
pub enum KernelChangesError {
    #[error("{0}")]
    Kernel(#[from] Error),
    #[error("cannot wait for changes: {0}")]
    Wait(#[from] std::io::Error),
}

impl KernelChanges {
    pub fn listen() -> Result<Self, KernelChangesError> {
        let links = registered(Monitor::route()?)?;
        // A kernel without nf_tables sends no such notifications; the regular check covers the rest.
        let rules = Monitor::nftables().ok().and_then(|monitor| registered(monitor).ok());
        Ok(KernelChanges { links, rules })
    }

    /// Waits for a change that `needs_reconcile`.
    pub async fn next(
        &mut self,
        needs_reconcile: impl Fn(&Change) -> bool,
    ) -> Result<(), KernelChangesError> {
        loop {
            let rules = async {
                match &mut self.rules {
                    Some(rules) => rules.readable_mut().await.map(Some),
                    None => std::future::pending().await,
                }
            };
            let mut found = false;
            // After the first match, the rest is only drained.
            let mut each = |change: Change| {
                if !found && needs_reconcile(&change) {
                    tracing::debug!(?change, "a change in the kernel needs a reconcile");
                    found = true;
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
            if found {
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
