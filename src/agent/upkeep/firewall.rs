//! Keeps the chains that others rely on (`core::firewall`), and makes them again after somebody flushed the tables.

use std::sync::Arc;
use std::time::Duration;

use keelson_core::firewall::{Family, canary, utility_chains};
use keelson_host::iptables::{self, IptablesError};

use crate::node::Node;

/// How often it is checked whether they are still there; nobody reports a flush of iptables. As often as a kubelet does.
const EVERY: Duration = Duration::from_secs(60);

pub async fn run(node: Arc<Node>) {
    if node.settings.kubelet.make_iptables_util_chains {
        tokio::join!(keep(Family::Ipv4), keep(Family::Ipv6));
    } else {
        std::future::pending::<()>().await;
    }
}

async fn keep(family: Family) {
    let mut warned = false;
    loop {
        match make(family).await {
            Ok(()) => warned = false,
            Err(error @ IptablesError::Unusable { .. }) => {
                tracing::info!(?family, %error, "without iptables there are no chains for others");
                return std::future::pending().await;
            }
            Err(error) if !warned => {
                warned = true;
                tracing::warn!(?family, %error, "chains that others rely on cannot be made; it is tried again");
            }
            Err(_) => {}
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn make(family: Family) -> Result<(), IptablesError> {
    if iptables::is_there(family, &canary()).await? {
        return Ok(());
    }
    for wanted in utility_chains(family) {
        iptables::ensure(family, &wanted).await?;
    }
    Ok(())
}
