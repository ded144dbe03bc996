//! Waiting for something to read, or for the end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use crate::path_shared::Queue;

/// Makes all threads of a path end.
#[derive(Debug)]
pub struct StopEvent {
    event: OwnedFd,
}

/// Why a wait is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// Which of the sources are readable or have a pending error.
    Readable([bool; Queue::MOST_SOURCES]),
    Stopped,
}

impl StopEvent {
    pub fn new() -> rustix::io::Result<StopEvent> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(StopEvent { event })
    }

    pub fn ask(&self) {
        // Nobody reads the event, so it stays readable for every thread. It cannot overflow by one.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Waits until one of `sources` is readable or has a pending error, or until the end is requested.
    pub fn wait_for<'a>(
        &'a self,
        sources: impl Iterator<Item = BorrowedFd<'a>>,
    ) -> rustix::io::Result<Woken> {
        let event = PollFd::from_borrowed_fd(self.event.as_fd(), PollFlags::IN);
        let mut waited = [event.clone(), event.clone(), event.clone(), event];
        let mut count = 1;
        for (place, fd) in waited.iter_mut().skip(1).zip(sources) {
            *place = PollFd::from_borrowed_fd(fd, PollFlags::IN);
            count += 1;
        }
        loop {
            match poll(&mut waited[..count], None) {
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        let [event, sources @ ..] = waited.map(|place| !place.revents().is_empty());
        Ok(if event { Woken::Stopped } else { Woken::Readable(sources) })
    }
}
