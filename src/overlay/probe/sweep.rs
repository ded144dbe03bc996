//! One sweep over some peers: packets out, answers in, a second's patience. Blocking.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keelson_netkit::IfName;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::diagnose::Evidence;
use super::echo::{Echo, Mark};
use crate::plan::Carrier;

/// Where keelson hosts answer probes, on their overlay addresses only.
pub const PROBE_PORT: u16 = 8286;
/// What a probe begins with.
pub const PROBE_MAGIC: &[u8; 8] = b"KSPROBE1";
const PATIENCE: Duration = Duration::from_millis(1000);
const SEARCH_PATIENCE: Duration = Duration::from_millis(300);
const SMALL: u32 = 84;

/// A peer to be probed.
#[derive(Debug, Clone)]
pub struct Target {
    pub holder: Arc<str>,
    pub carrier: Carrier,
    /// Its address on the overlay, or the public one where there is no tunnel.
    pub overlay: IpAddr,
    pub public: IpAddr,
    /// The tunnel's device; None follows the routes.
    pub device: Option<IfName>,
    /// The device of what can stand in for the tunnel.
    pub fallback: Option<IfName>,
    pub mtu: u32,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot probe peers: {0}")]
pub struct SweepError(#[from] io::Error);

/// What each peer answered, in the order of the targets. Each needs a socket for its UDP probe, so they come in batches.
pub fn sweep(targets: &[Target]) -> Result<Vec<Evidence>, SweepError> {
    Ok(probe(targets)?)
}

/// What a probe was sent for.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Small,
    Large(u32),
    Underlay,
    Fallback,
}

struct Sockets {
    /// Hears everything, so that an answer counts whatever way it came.
    ears: Vec<Echo>,
    /// By family and device.
    mouths: HashMap<(bool, Option<IfName>), Echo>,
    mark: Mark,
    sent: Vec<(usize, Kind, Instant)>,
}

impl Sockets {
    fn open(targets: &[Target]) -> io::Result<Self> {
        let random = crate::source::etcd::random();
        let mark = Mark { id: random as u16, cookie: random.rotate_left(17).to_ne_bytes() };
        let mut ears = Vec::new();
        for v4 in [true, false] {
            if targets.iter().any(|t| t.overlay.is_ipv4() == v4 || t.public.is_ipv4() == v4) {
                ears.push(Echo::open(v4, None)?);
            }
        }
        Ok(Sockets { ears, mouths: HashMap::new(), mark, sent: Vec::new() })
    }

    fn send(&mut self, at: usize, to: IpAddr, device: Option<&IfName>, kind: Kind) {
        let Ok(seq) = u16::try_from(self.sent.len()) else { return };
        let key = (to.is_ipv4(), device.cloned());
        if !self.mouths.contains_key(&key) {
            // A device that is not there is one by which nothing gets through.
            let Ok(mouth) = Echo::open(key.0, device) else { return };
            self.mouths.insert(key.clone(), mouth);
        }
        let size = match kind {
            Kind::Large(size) => size,
            _ => SMALL,
        };
        if self.mouths.get(&key).is_some_and(|mouth| mouth.send(to, self.mark, seq, size)) {
            self.sent.push((at, kind, Instant::now()));
        }
    }

    fn hear(&self, mut each: impl FnMut(usize, Kind, f64)) {
        let mut buffer = vec![0; 65536];
        for ear in &self.ears {
            ear.drain(&mut buffer, self.mark, |seq| {
                if let Some((at, kind, when)) = self.sent.get(usize::from(seq)) {
                    each(*at, *kind, when.elapsed().as_secs_f64() * 1000.0);
                }
            });
        }
    }
}

fn probe(targets: &[Target]) -> io::Result<Vec<Evidence>> {
    let mut sockets = Sockets::open(targets)?;
    let mut evidence = vec![Evidence::default(); targets.len()];
    let mut datagrams: Vec<Option<UdpSocket>> = Vec::new();
    for (at, target) in targets.iter().enumerate() {
        let device = target.device.as_ref();
        sockets.send(at, target.overlay, device, Kind::Small);
        sockets.send(at, target.overlay, device, Kind::Large(target.mtu));
        sockets.send(at, target.public, None, Kind::Underlay);
        if let Some(fallback) = &target.fallback {
            sockets.send(at, target.overlay, Some(fallback), Kind::Fallback);
        }
        datagrams.push(datagram(target.overlay).ok());
    }
    let end = Instant::now() + PATIENCE;
    loop {
        sockets.hear(|at, kind, rtt| note(&mut evidence[at], kind, rtt));
        for (socket, evidence) in datagrams.iter_mut().zip(&mut evidence) {
            // An answer, or the word of the peer's kernel that nobody listens: either went there and back.
            if socket.as_ref().is_some_and(has_answered) {
                evidence.udp = true;
                *socket = None;
            }
        }
        let complete = |(t, e): (&Target, &Evidence)| {
            e.small.is_some() && e.largest.is_some() && e.udp && (t.fallback.is_none() || e.fallback)
        };
        if Instant::now() >= end || targets.iter().zip(&evidence).all(complete) {
            break;
        }
        wait(&sockets.ears, datagrams.iter().flatten(), end);
    }
    search(targets, &mut evidence, &mut sockets);
    Ok(evidence)
}

fn note(evidence: &mut Evidence, kind: Kind, rtt: f64) {
    match kind {
        Kind::Small => evidence.small = Some(rtt as f32),
        Kind::Large(size) => evidence.largest = evidence.largest.max(Some(size)),
        Kind::Underlay => evidence.underlay = true,
        Kind::Fallback => evidence.fallback = true,
    }
}

/// Where small packets pass and the largest do not: how large they may be, found by halving, for all such peers at once.
fn search(targets: &[Target], evidence: &mut [Evidence], sockets: &mut Sockets) {
    /// Enough to tell every size below 2048 from its neighbours.
    const STEPS: usize = 11;
    let mut bounds: Vec<(usize, u32, u32)> = (0..targets.len())
        .filter(|at| evidence[*at].small.is_some() && evidence[*at].largest.is_none())
        .map(|at| (at, SMALL, targets[at].mtu))
        .collect();
    for _ in 0..STEPS {
        bounds.retain(|(_, passes, fails)| passes + 1 < *fails);
        if bounds.is_empty() {
            return;
        }
        for (at, passes, fails) in &bounds {
            let target = &targets[*at];
            sockets.send(*at, target.overlay, target.device.as_ref(), Kind::Large(passes.midpoint(*fails)));
        }
        let end = Instant::now() + SEARCH_PATIENCE;
        let mut open: Vec<usize> = bounds.iter().map(|b| b.0).collect();
        while Instant::now() < end && !open.is_empty() {
            wait(&sockets.ears, std::iter::empty(), end);
            sockets.hear(|at, kind, rtt| {
                note(&mut evidence[at], kind, rtt);
                open.retain(|o| *o != at);
            });
        }
        for (at, passes, fails) in &mut bounds {
            let middle = passes.midpoint(*fails);
            if evidence[*at].largest.is_some_and(|found| found >= middle) {
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

fn wait<'a>(ears: &'a [Echo], datagrams: impl Iterator<Item = &'a UdpSocket>, end: Instant) {
    let left = end.saturating_duration_since(Instant::now());
    let mut fds: Vec<PollFd<'_>> = ears
        .iter()
        .map(|e| e.as_fd())
        .chain(datagrams.map(AsFd::as_fd))
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let patience = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    let _ = poll(&mut fds, Some(&patience));
}
