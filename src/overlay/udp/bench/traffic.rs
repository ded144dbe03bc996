//! What is sent between the pods, and what of it is measured.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, recv, sendto, socket_with,
};

use crate::world::{World, pod_address};

const SMALL: usize = 64;
const PINGS: u16 = 200;

/// How fast streams went, and what the whole machine's processors did meanwhile.
pub struct Streamed {
    pub gigabits: f64,
    pub cpu_seconds_per_gigabit: f64,
}

pub fn streams(world: &World, count: usize, seconds: f64) -> Result<Streamed, Box<dyn Error>> {
    let listener = world.pods[1].run(|| TcpListener::bind("0.0.0.0:0"))?;
    let target: SocketAddr = format!("{}:{}", pod_address(2), listener.local_addr()?.port()).parse()?;
    let (received, end) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| -> Result<Streamed, Box<dyn Error>> {
        let ended = End(&end);
        for _ in 0..count {
            let near = world.pods[0].run(|| TcpStream::connect_timeout(&target, Duration::from_secs(10)))?;
            let (far, _) = listener.accept()?;
            near.set_write_timeout(Some(Duration::from_secs(1)))?;
            far.set_read_timeout(Some(Duration::from_secs(1)))?;
            scope.spawn(|| write_until(near, &end));
            scope.spawn(|| read_until(far, &end, &received));
        }
        // The beginning, in which windows open, is not counted.
        thread::sleep(Duration::from_millis(300));
        let (before, cpu, begun) = (received.load(Ordering::Relaxed), busy_seconds()?, Instant::now());
        thread::sleep(Duration::from_secs_f64(seconds));
        let gigabits = (received.load(Ordering::Relaxed) - before) as f64 * 8e-9;
        let (took, cpu) = (begun.elapsed().as_secs_f64(), busy_seconds()? - cpu);
        drop(ended);
        Ok(Streamed { gigabits: gigabits / took, cpu_seconds_per_gigabit: cpu / gigabits.max(1e-9) })
    })
}

/// Ends the threads of a measurement, also when it fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn write_until(mut stream: TcpStream, end: &AtomicBool) {
    let bytes = vec![7; 128 * 1024];
    while !end.load(Ordering::Relaxed) && stream.write(&bytes).is_ok() {}
}

fn read_until(mut stream: TcpStream, end: &AtomicBool, received: &AtomicU64) {
    let mut bytes = vec![0; 256 * 1024];
    while !end.load(Ordering::Relaxed) {
        let Ok(length) = stream.read(&mut bytes) else { return };
        received.fetch_add(length as u64, Ordering::Relaxed);
    }
}

/// Datagrams per second that arrive when one end sends small ones without pause.
pub fn datagrams(world: &World, seconds: f64) -> Result<f64, Box<dyn Error>> {
    let far = world.pods[1].run(|| UdpSocket::bind("0.0.0.0:0"))?;
    far.set_read_timeout(Some(Duration::from_millis(100)))?;
    let near = world.pods[0].run(|| UdpSocket::bind("0.0.0.0:0"))?;
    near.connect(format!("{}:{}", pod_address(2), far.local_addr()?.port()))?;
    let (received, end) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let ended = End(&end);
        scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                // A full queue somewhere is what a flood runs into.
                let _ = near.send(&[7; SMALL]);
            }
        });
        scope.spawn(|| {
            let mut bytes = [0; 2048];
            while !end.load(Ordering::Relaxed) {
                received.fetch_add(u64::from(far.recv(&mut bytes).is_ok()), Ordering::Relaxed);
            }
        });
        thread::sleep(Duration::from_millis(200));
        let (before, begun) = (received.load(Ordering::Relaxed), Instant::now());
        thread::sleep(Duration::from_secs_f64(seconds));
        let rate = (received.load(Ordering::Relaxed) - before) as f64 / begun.elapsed().as_secs_f64();
        drop(ended);
        Ok(rate)
    })
}

/// The median round trip of an echo request, in milliseconds.
pub fn ping(world: &World) -> Result<f64, Box<dyn Error>> {
    let raw = || socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::ICMP));
    let socket = world.pods[0].run(raw)?;
    rustix::net::sockopt::set_socket_timeout(
        &socket,
        rustix::net::sockopt::Timeout::Recv,
        Some(Duration::from_secs(1)),
    )?;
    let to: SocketAddr = format!("{}:0", pod_address(2)).parse()?;
    let mut trips = Vec::new();
    for n in 0..PINGS {
        // Type 8, and a checksum that fits: the words of such a message are its type and its number.
        let sum = !(0x0800u32 + u32::from(n)) as u16;
        let message = [8, 0, (sum >> 8) as u8, sum as u8, 0, 0, (n >> 8) as u8, n as u8];
        let begun = Instant::now();
        sendto(&socket, &message, SendFlags::empty(), &to)?;
        let mut bytes = [0u8; 256];
        loop {
            match recv(&socket, &mut bytes[..], RecvFlags::empty()) {
                Ok((length, _)) if length >= 28 && bytes[20] == 0 && bytes[26..28] == message[6..8] => {
                    trips.push(begun.elapsed().as_secs_f64() * 1e3);
                    break;
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
        thread::sleep(Duration::from_millis(2));
    }
    trips.sort_by(f64::total_cmp);
    trips.get(trips.len() / 2).copied().ok_or_else(|| "no echo came back".into())
}

/// Seconds that all processors together have worked since the machine was started.
fn busy_seconds() -> Result<f64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let first = text.lines().next().ok_or("/proc/stat is empty")?;
    let ticks: Vec<f64> = first.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    // user, nice, system, (idle, iowait), irq, softirq
    let busy =
        ticks.iter().take(7).enumerate().filter(|(n, _)| *n != 3 && *n != 4).map(|(_, t)| t).sum::<f64>();
    Ok(busy / 100.0)
}
