//! Where a probe or a hook connects to: addresses as they are, names by the host's resolver.
//!
//! A name server that is silent holds a thread for as long as the system's resolver is patient, also when the probe has
//! long given up. The threads that may block are few and shared with all that pods need of disks and cgroups, so look-ups
//! have a share of their own, and each pod a small part of that.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::LazyLock;

use keelson_kit::blocking::BlockingLimit;
use tokio::net::TcpStream;

const LOOK_UPS_OF_A_POD: usize = 2;
/// An eighth of the threads that there are.
const LOOK_UPS_OF_THE_NODE: usize = 64;

/// One for each pod; clones share its part.
#[derive(Clone)]
pub struct Resolver {
    of_pod: BlockingLimit,
    of_node: BlockingLimit,
}

impl Resolver {
    pub fn for_pod() -> Self {
        static OF_NODE: LazyLock<BlockingLimit> = LazyLock::new(|| BlockingLimit::new(LOOK_UPS_OF_THE_NODE));
        Self { of_pod: BlockingLimit::new(LOOK_UPS_OF_A_POD), of_node: OF_NODE.clone() }
    }

    pub async fn connect(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return TcpStream::connect((address, port)).await;
        }
        let name = host.to_owned();
        let found = self
            .look_up(move || {
                (name.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<SocketAddr>>)
            })
            .await??;
        TcpStream::connect(found.as_slice()).await
    }

    async fn look_up<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        // The pod's part first: who waits for it holds nothing that others need.
        let of_pod = self.of_pod.acquire().await?;
        let of_node = self.of_node.acquire().await?;
        of_node
            .run(move || {
                let found = work();
                drop(of_pod);
                found
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::net::TcpListener;

    use super::*;

    fn resolver(node: &BlockingLimit) -> Resolver {
        Resolver { of_pod: BlockingLimit::new(2), of_node: node.clone() }
    }

    /// Begins a look-up that hangs until the sender is dropped, and stops waiting for it, as a probe does.
    async fn hang(resolver: &Resolver) -> (mpsc::Sender<()>, bool) {
        let (release, released) = mpsc::channel();
        let begun = resolver.look_up(move || released.recv());
        let begun = tokio::time::timeout(Duration::ZERO, begun).await;
        (release, begun.is_err())
    }

    #[tokio::test]
    async fn a_pod_whose_names_are_not_resolved_holds_up_no_other_and_no_address() {
        let node = BlockingLimit::new(3);
        let (bad, good) = (resolver(&node), resolver(&node));
        let mut held = vec![];
        for _ in 0..10 {
            let (release, begun) = hang(&bad).await;
            assert!(begun, "nobody answers");
            held.push(release);
        }
        let found = tokio::time::timeout(Duration::from_secs(60), good.look_up(|| 7)).await;
        assert!(found.is_ok_and(|found| found.is_ok()), "one of the node's is left for others");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        bad.connect("127.0.0.1", port).await.unwrap();
        good.connect("localhost", port).await.unwrap();
        held.clear();
        assert_eq!(bad.look_up(|| 7).await.unwrap(), 7, "it goes on once its names are resolved");
    }

    #[tokio::test]
    async fn look_ups_never_take_more_threads_than_their_share() {
        let node = BlockingLimit::new(3);
        let mut held = vec![];
        for _ in 0..5 {
            let pod = resolver(&node);
            held.push(hang(&pod).await);
            held.push(hang(&pod).await);
        }
        assert!(node.try_acquire().is_none(), "all of the share is in use");
        assert_eq!(tokio::task::spawn_blocking(|| 7).await.unwrap(), 7, "other threads are not");
    }
}
