//! A running path: the device, the sockets, and a thread for each queue.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use keelson_kit::cidr::IpNetwork;
use keelson_netkit::{IfIndex, IfName};
use rustix::io::Errno;

use crate::carry_loop::CarryLoop;
use crate::counters::{Counters, ThreadCounters};
use crate::error::Error;
use crate::icmp_reply::IcmpRateLimit;
use crate::path_shared::{PathHandle, PathShared, Queue};
use crate::peers::Peers;
use crate::socket::{self, IcmpSocket};
use crate::sys::tun;
use crate::wait::StopEvent;

/// What a path needs to know before it starts.
#[derive(Debug, Clone)]
pub struct Config {
    /// The TUN device, "flannel0" by flannel's habit.
    pub device: IfName,
    /// This host's own address, as in its lease, with the port; at most one of each family.
    pub listen: Vec<SocketAddr>,
    /// This host's own subnets; what is not for them does not come in. Empty: everything does.
    pub subnets: Vec<IpNetwork>,
    /// How many queues, each with a thread. None: half as many as there are cores, from one to four.
    pub queues: Option<usize>,
}

/// What a path leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// The device with its addresses and routes, for a successor.
    Device,
    Nothing,
}

/// The threads that carry packets. Dropped, they end, and the device stays.
#[derive(Debug)]
pub struct Path {
    shared: PathHandle,
    queues: Vec<Arc<Queue>>,
    threads: Vec<JoinHandle<()>>,
    thread_counters: Vec<Arc<ThreadCounters>>,
    index: IfIndex,
}

const MOST_QUEUES: usize = 4;

impl Path {
    /// Makes the device or takes over the one that is there, binds, and starts the threads, in the calling thread's
    /// network namespace. The device's addresses, MTU and routes are the caller's business.
    pub fn start(config: &Config) -> Result<Path, Error> {
        let (v4, v6) = families(&config.listen)?;
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let count = config.queues.unwrap_or(cores / 2).clamp(1, MOST_QUEUES);
        let failed = |op: &'static str| {
            move |source: std::io::Error| Error::Device { op, device: config.device.clone(), source }
        };
        let mut queues = Vec::with_capacity(count);
        let mut udp = false;
        for n in 0..count {
            let device = tun::open_queue(config.device.as_str()).map_err(failed("open"))?;
            if n == 0 {
                udp = tun::enable_offloads(device.as_fd()).map_err(failed("enable offloads of"))?;
            }
            let open = |address: Option<SocketAddr>| address.map(|a| socket::open(a, count > 1)).transpose();
            queues.push(Arc::new(Queue { device, v4: open(v4)?, v6: open(v6)? }));
        }
        let probe = queues.iter().flat_map(|q| q.sockets()).next().ok_or(Error::NoAddress)?;
        let index = tun::index(probe, config.device.as_str()).map_err(failed("find"))?;
        let first = queues.first().ok_or(Error::NoAddress)?;
        // So that traffic takes no other route while this process is away.
        tun::set_persistent(first.device.as_fd(), true).map_err(failed("keep"))?;
        let stop = StopEvent::new().map_err(|errno| Error::Event(errno.into()))?;
        let shared = Arc::new(PathShared {
            peers: Peers::default(),
            stop,
            icmp: IcmpSocket::open(),
            icmp_limit: Mutex::new(IcmpRateLimit::default()),
            begun: Instant::now(),
            failure: Mutex::new(None),
        });
        let mut path =
            Path { shared, queues, threads: Vec::new(), thread_counters: Vec::new(), index: IfIndex(index) };
        path.start_threads(config, udp)?;
        Ok(path)
    }

    fn start_threads(&mut self, config: &Config, udp: bool) -> Result<(), Error> {
        for (n, queue) in self.queues.clone().into_iter().enumerate() {
            let own = config.subnets.clone();
            self.start_thread(format!("overlay-{n}"), move |shared, counters| {
                CarryLoop::new(shared, &queue, counters, &own, udp).run()
            })?;
        }
        Ok(())
    }

    fn start_thread(
        &mut self,
        name: String,
        body: impl FnOnce(&PathHandle, &ThreadCounters) -> Result<(), Errno> + Send + 'static,
    ) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let counters = Arc::new(ThreadCounters::default());
        self.thread_counters.push(Arc::clone(&counters));
        let thread_name = name.clone();
        let run = move || {
            if let Err(errno) = body(&shared, &counters) {
                shared.fail(format!("{thread_name} ended: {}", std::io::Error::from(errno)));
                shared.stop.ask(); // half a path would look like a whole one
            }
        };
        let builder = thread::Builder::new().name(name.clone()).stack_size(STACK);
        let thread = builder.spawn(run).map_err(|source| Error::Thread { name, source })?;
        self.threads.push(thread);
        Ok(())
    }

    /// The device's number.
    pub fn index(&self) -> IfIndex {
        self.index
    }

    pub fn peers(&self) -> &Peers {
        &self.shared.peers
    }

    pub fn counters(&self) -> Counters {
        Counters::sum(self.thread_counters.iter().map(AsRef::as_ref))
    }

    /// Why the path has ended, when it has: the device was deleted, for example. A new one is to be started then.
    pub fn failure(&self) -> Option<String> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn stop(self, leave: Leave) {
        if leave == Leave::Nothing
            && let Some(first) = self.queues.first()
        {
            // It is gone when the last descriptor is closed. Where it is gone already, that was the wish.
            let _ = tun::set_persistent(first.device.as_fd(), false);
        }
        drop(self);
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        self.shared.stop.ask();
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing to hand back.
            let _ = thread.join();
        }
    }
}

/// Threads here use little, and what they touch stays theirs.
const STACK: usize = 128 * 1024;

fn families(listen: &[SocketAddr]) -> Result<(Option<SocketAddr>, Option<SocketAddr>), Error> {
    let (mut v4, mut v6) = (None, None);
    for address in listen {
        if address.ip().is_unspecified() {
            return Err(Error::Wildcard(*address));
        }
        let place = if address.is_ipv4() { &mut v4 } else { &mut v6 };
        if let Some(other) = place.replace(*address) {
            return Err(Error::TwoAddresses(other, *address));
        }
    }
    if listen.is_empty() { Err(Error::NoAddress) } else { Ok((v4, v6)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_to_listen_on_are_checked_first() {
        let parse = |texts: &[&str]| families(&texts.iter().map(|t| t.parse().unwrap()).collect::<Vec<_>>());
        assert!(parse(&["192.0.2.1:8285", "[2001:db8::1]:8285"]).is_ok());
        for wrong in [&[][..], &["0.0.0.0:8285"], &["[::]:8285"], &["192.0.2.1:1", "192.0.2.2:1"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
