//! Reports to systemd how the process is: sd_notify(3), a datagram to the socket that NOTIFY_SOCKET names.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use keelson_core::node::Complaint;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, sendmsg_addr};
use tokio_util::sync::CancellationToken;

pub(crate) fn ready() {
    notify("READY=1\nSTATUS=Looking after the pods of this node");
}

pub(crate) fn stopping() {
    notify("STOPPING=1\nSTATUS=Leaving; pods go on running");
}

/// Pats systemd's watchdog at half its interval for as long as `health` finds nothing wrong; when it does, systemd restarts
/// the service. Returns at once where there is no watchdog.
pub(crate) async fn pat_watchdog(health: impl Fn() -> Result<(), String>, shutdown: CancellationToken) {
    let micros = std::env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse::<u64>().ok());
    let for_us = std::env::var("WATCHDOG_PID").map_or(true, |pid| pid == std::process::id().to_string());
    let Some(micros) = micros.filter(|micros| *micros > 0 && for_us) else { return };
    let mut ticks = tokio::time::interval(Duration::from_micros(micros / 2));
    let mut complaint = Complaint::default();
    loop {
        tokio::select! {
            _ = ticks.tick() => if let Some(state) = watchdog_state(health(), &mut complaint) {
                notify(state);
            },
            () = shutdown.cancelled() => return,
        }
    }
}

/// What systemd is to hear of one check of health; nothing when the process is not well.
pub(crate) fn watchdog_state(health: Result<(), String>, complaint: &mut Complaint) -> Option<&'static str> {
    match health {
        Ok(()) => {
            complaint.succeeded();
            Some("WATCHDOG=1")
        }
        Err(problem) => {
            // The sentence may count seconds; once is enough.
            if complaint.failed("unhealthy") {
                tracing::error!(problem, "not well: systemd's watchdog is not patted any more");
            }
            None
        }
    }
}

fn notify(state: &str) {
    if let Err(error) = tell(state, None) {
        tracing::warn!(%error, "cannot notify systemd");
    }
}

/// Says something to systemd, with a descriptor if there is one to hand over; nothing where it did not start us.
pub(crate) fn tell(state: &str, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    match std::env::var_os("NOTIFY_SOCKET") {
        Some(name) => send(name.as_encoded_bytes(), state, descriptor),
        None => Ok(()),
    }
}

pub(crate) fn send(socket: &[u8], state: &str, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let address = match socket.strip_prefix(b"@") {
        Some(name) => SocketAddrUnix::new_abstract_name(name)?,
        None => SocketAddrUnix::new(socket)?,
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut attached = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<_> = descriptor.into_iter().collect();
    if !descriptors.is_empty() {
        attached.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let text = [IoSlice::new(state.as_bytes())];
    sendmsg_addr(UnixDatagram::unbound()?, &address, &text, &mut attached, SendFlags::NOSIGNAL)?;
    Ok(())
}
