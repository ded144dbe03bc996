//! Probes some peers at once: sends packets and collects replies for up to a second. Blocking.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keelson_netkit::IfName;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::diagnose::ProbeResult;
use super::echo::{EchoId, EchoSocket};
use crate::plan::Carrier;

/// keelson hosts answer probes on this port, on their overlay addresses only.
pub const PROBE_PORT: u16 = 8286;
/// The first bytes of a probe.
pub const PROBE_MAGIC: &[u8; 8] = b"KSPROBE1";
const REPLY_TIMEOUT: Duration = Duration::from_millis(1000);
const SEARCH_TIMEOUT: Duration = Duration::from_millis(300);
const SMALL: u32 = 84;

/// A peer to be probed.
#[derive(Debug, Clone)]
pub struct ProbeTarget {
    pub holder: Arc<str>,
    pub carrier: Carrier,
    /// Its address on the overlay, or the public one where there is no tunnel.
    pub overlay: IpAddr,
    pub public: IpAddr,
    /// The tunnel's device; None follows the routes.
    pub device: Option<IfName>,
    /// The udp path's device, where it can replace the tunnel.
    pub fallback: Option<IfName>,
    pub mtu: u32,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot probe peers: {0}")]
pub struct SweepError(#[from] io::Error);

/// The result of each target, in the same order. Each needs a socket for its UDP probe, so callers probe in batches.
pub fn sweep(targets: &[ProbeTarget]) -> Result<Vec<ProbeResult>, SweepError> {
    Ok(probe(targets)?)
}

/// What a probe checks.
#[derive(Clone, Copy, PartialEq)]
enum ProbePurpose {
    Small,
    Large(u32),
    Underlay,
    Fallback,
}

struct Sockets {
    /// Not bound to a device, so that a reply counts whichever way it came.
    receivers: Vec<EchoSocket>,
    /// By family and device.
    senders: HashMap<(bool, Option<IfName>), EchoSocket>,
    echo_id: EchoId,
    sent: Vec<(usize, ProbePurpose, Instant)>,
}

impl Sockets {
    fn open(targets: &[ProbeTarget]) -> io::Result<Self> {
        let random = crate::random::random();
        let echo_id = EchoId { id: random as u16, cookie: random.rotate_left(17).to_ne_bytes() };
        let mut receivers = Vec::new();
        for v4 in [true, false] {
            if targets.iter().any(|t| t.overlay.is_ipv4() == v4 || t.public.is_ipv4() == v4) {
                receivers.push(EchoSocket::open(v4, None)?);
            }
        }
        Ok(Sockets { receivers, senders: HashMap::new(), echo_id, sent: Vec::new() })
    }

    fn send(&mut self, at: usize, to: IpAddr, device: Option<&IfName>, kind: ProbePurpose) {
        let Ok(seq) = u16::try_from(self.sent.len()) else { return };
        let key = (to.is_ipv4(), device.cloned());
        if !self.senders.contains_key(&key) {
            // A missing device counts as a failed probe.
            let Ok(sender) = EchoSocket::open(key.0, device) else { return };
            self.senders.insert(key.clone(), sender);
        }
        let size = match kind {
            ProbePurpose::Large(size) => size,
            _ => SMALL,
        };
        if self.senders.get(&key).is_some_and(|sender| sender.send(to, self.echo_id, seq, size)) {
            self.sent.push((at, kind, Instant::now()));
        }
    }

    fn drain_replies(&self, mut each: impl FnMut(usize, ProbePurpose, f64)) {
        let mut buffer = vec![0; 65536];
        for receiver in &self.receivers {
            receiver.drain(&mut buffer, self.echo_id, |seq| {
                if let Some((at, kind, when)) = self.sent.get(usize::from(seq)) {
                    each(*at, *kind, when.elapsed().as_secs_f64() * 1000.0);
                }
            });
        }
    }
}

fn probe(targets: &[ProbeTarget]) -> io::Result<Vec<ProbeResult>> {
    let mut sockets = Sockets::open(targets)?;
    let mut results = vec![ProbeResult::default(); targets.len()];
    let mut datagrams: Vec<Option<UdpSocket>> = Vec::new();
    for (at, target) in targets.iter().enumerate() {
        let device = target.device.as_ref();
        sockets.send(at, target.overlay, device, ProbePurpose::Small);
        sockets.send(at, target.overlay, device, ProbePurpose::Large(target.mtu));
        sockets.send(at, target.public, None, ProbePurpose::Underlay);
        if let Some(fallback) = &target.fallback {
            sockets.send(at, target.overlay, Some(fallback), ProbePurpose::Fallback);
        }
        datagrams.push(datagram(target.overlay).ok());
    }
    let end = Instant::now() + REPLY_TIMEOUT;
    loop {
        sockets.drain_replies(|at, kind, rtt| add_reply(&mut results[at], kind, rtt));
        for (socket, results) in datagrams.iter_mut().zip(&mut results) {
            // A reply, or "connection refused" from the peer's kernel: either made the round trip.
            if socket.as_ref().is_some_and(has_answered) {
                results.udp = true;
                *socket = None;
            }
        }
        let complete = |(t, e): (&ProbeTarget, &ProbeResult)| {
            e.small.is_some() && e.largest.is_some() && e.udp && (t.fallback.is_none() || e.fallback)
        };
        if Instant::now() >= end || targets.iter().zip(&results).all(complete) {
            break;
        }
        wait(&sockets.receivers, datagrams.iter().flatten(), end);
    }
    search(targets, &mut results, &mut sockets);
    Ok(results)
}

fn add_reply(result: &mut ProbeResult, kind: ProbePurpose, rtt: f64) {
    match kind {
        ProbePurpose::Small => result.small = Some(rtt as f32),
        ProbePurpose::Large(size) => result.largest = result.largest.max(Some(size)),
        ProbePurpose::Underlay => result.underlay = true,
        ProbePurpose::Fallback => result.fallback = true,
    }
}

/// Finds the path MTU by bisection where small packets pass and the largest do not, for all such peers at once.
fn search(targets: &[ProbeTarget], results: &mut [ProbeResult], sockets: &mut Sockets) {
    /// Enough to find any size below 2048 exactly.
    const STEPS: usize = 11;
    let mut bounds: Vec<(usize, u32, u32)> = (0..targets.len())
        .filter(|at| results[*at].small.is_some() && results[*at].largest.is_none())
        .map(|at| (at, SMALL, targets[at].mtu))
        .collect();
    for _ in 0..STEPS {
        bounds.retain(|(_, passes, fails)| passes + 1 < *fails);
        if bounds.is_empty() {
            return;
        }
        for (at, passes, fails) in &bounds {
            let target = &targets[*at];
            sockets.send(
                *at,
                target.overlay,
                target.device.as_ref(),
                ProbePurpose::Large(passes.midpoint(*fails)),
            );
        }
        let end = Instant::now() + SEARCH_TIMEOUT;
        let mut open: Vec<usize> = bounds.iter().map(|b| b.0).collect();
        while Instant::now() < end && !open.is_empty() {
            wait(&sockets.receivers, std::iter::empty(), end);
            sockets.drain_replies(|at, kind, rtt| {
                add_reply(&mut results[at], kind, rtt);
                open.retain(|o| *o != at);
            });
        }
        for (at, passes, fails) in &mut bounds {
            let middle = passes.midpoint(*fails);
            if results[*at].largest.is_some_and(|found| found >= middle) {
                *passes = middle
            } else {
                *fails = middle
            }
        }
    }
}

fn datagram(to: IpAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = if to.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.set_nonblocking(true)?;
    socket.connect((to, PROBE_PORT))?;
    let mut probe = PROBE_MAGIC.to_vec();
    probe.resize(64, 0);
    socket.send(&probe)?;
    Ok(socket)
}

fn has_answered(socket: &UdpSocket) -> bool {
    let mut buffer = [0; 64];
    match socket.recv(&mut buffer) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
    }
}

fn wait<'a>(receivers: &'a [EchoSocket], datagrams: impl Iterator<Item = &'a UdpSocket>, end: Instant) {
    let left = end.saturating_duration_since(Instant::now());
    let mut fds: Vec<PollFd<'_>> = receivers
        .iter()
        .map(|e| e.as_fd())
        .chain(datagrams.map(AsFd::as_fd))
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    let _ = poll(&mut fds, Some(&timeout));
}
