//! Opening a port that a predecessor may still hold: on an upgrade or a swap with a kubelet the next agent is often started
//! while the one before it is still shutting down.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpSocket};

/// How long a predecessor may take to let go of a port. Longer than that it is most likely somebody who stays.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);
const BACKLOG: u32 = 1024;

/// A port of one address family; for IPv6's unspecified address also IPv4's, as the system has it.
pub(crate) fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Connections of a predecessor that are still being closed are no reason to wait.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Calls `open` until it succeeds. Only an address that somebody else holds is tried again, and only for so long.
pub(crate) async fn open(
    address: SocketAddr,
    patience: Duration,
    open: impl Fn() -> io::Result<TcpListener>,
) -> io::Result<TcpListener> {
    let began = Instant::now();
    let mut said = false;
    loop {
        match open() {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse && began.elapsed() < patience => {
                if !said {
                    said = true;
                    tracing::warn!(
                        %address,
                        patience = ?patience,
                        "the port is in use; waiting for its holder to end, as a predecessor that is shutting down will"
                    );
                }
                // The kernel does not report when a port becomes free.
                tokio::time::sleep(PAUSE).await;
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const LOCAL: &str = "127.0.0.1:0";

    #[tokio::test]
    async fn a_port_is_taken_over_as_soon_as_its_holder_lets_go() {
        let held = listener(LOCAL.parse().unwrap()).unwrap();
        let address = held.local_addr().unwrap();
        let holder = Cell::new(Some(held));
        let tried = Cell::new(0);
        let opened = open(address, Duration::from_secs(600), || {
            tried.set(tried.get() + 1);
            // The predecessor ends after it was found alive twice.
            if tried.get() == 3 {
                drop(holder.take());
            }
            listener(address)
        });
        assert_eq!(opened.await.unwrap().local_addr().unwrap(), address);
        assert_eq!(tried.get(), 3);
    }

    #[tokio::test]
    async fn a_holder_that_stays_and_other_errors_end_the_wait() {
        let holder = listener(LOCAL.parse().unwrap()).unwrap();
        let address = holder.local_addr().unwrap();
        let error = open(address, Duration::ZERO, || listener(address)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let elsewhere: SocketAddr = "192.0.2.77:0".parse().unwrap();
        let error = open(elsewhere, Duration::from_secs(600), || listener(elsewhere)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    }
}
