//! Small datagrams, as many as go: one end sends without pause, the other counts.

use std::error::Error;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// What counts as a small packet.
const SIZE: usize = 64;

/// flood ADDRESS SECONDS
pub fn flood(words: &[String]) -> Result<(), Box<dyn Error>> {
    let [to, seconds] = words else { return Err("flood needs an address and seconds".into()) };
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(to.as_str())?;
    let end = Instant::now() + Duration::from_secs_f64(seconds.parse()?);
    let mut sent = 0u64;
    while Instant::now() < end {
        for _ in 0..64 {
            // A full queue somewhere is what a flood runs into; a refusal is about an earlier one.
            sent += u64::from(socket.send(&[7; SIZE]).is_ok());
        }
    }
    println!("{sent}");
    Ok(())
}

/// count ADDRESS SECONDS: counts from the first datagram on, and prints packets per second.
pub fn count(words: &[String]) -> Result<(), Box<dyn Error>> {
    let [at, seconds] = words else { return Err("count needs an address and seconds".into()) };
    let socket = UdpSocket::bind(at.as_str())?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    println!("ready");
    let mut bytes = [0; 2048];
    socket.recv(&mut bytes)?;
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;
    let length = Duration::from_secs_f64(seconds.parse()?);
    let begun = Instant::now();
    let mut packets = 0u64;
    while begun.elapsed() < length {
        for _ in 0..64 {
            match socket.recv(&mut bytes) {
                Ok(_) => packets += 1,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    println!("{:.0}", packets as f64 / begun.elapsed().as_secs_f64());
    Ok(())
}
