//! Waiting for something to become true, with a limit and an error that names what did not.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

/// How often a condition that nothing announces is checked.
const INTERVAL: Duration = Duration::from_millis(50);

/// An error after which waiting on makes no sense: what was waited for has ended.
#[derive(Debug)]
pub struct Hopeless(pub String);

impl std::fmt::Display for Hopeless {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Hopeless {}

/// Polls until `probe` gives a value. An error of the probe counts as "not yet" and is reported if time runs out.
pub async fn until<T>(
    what: &str,
    limit: Duration,
    mut probe: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        let last = match probe().await {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => None,
            Err(e) if e.is::<Hopeless>() => return Err(e.context(what.to_owned())),
            Err(e) => Some(e),
        };
        if Instant::now() > end {
            let why = last.map(|e| format!(": {e:#}")).unwrap_or_default();
            bail!("{what}: not within {} s{why}", limit.as_secs());
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Polls until `probe` is true.
pub async fn until_true(
    what: &str,
    limit: Duration,
    mut probe: impl AsyncFnMut() -> Result<bool>,
) -> Result<()> {
    until(what, limit, async || Ok(probe().await?.then_some(()))).await
}

/// A TCP port on loopback that nothing listens on. Inside the namespaces of a run nobody else takes it meanwhile: it is given
/// once, and lies below those that the kernel gives to whoever connects somewhere.
pub fn free_port() -> Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    loop {
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        ensure!(port < 30_000, "no free port is left");
        if TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).is_ok() {
            return Ok(port);
        }
    }
}
