//! Waiting for something to read, or for the end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

/// Tells all threads of a path to end.
#[derive(Debug)]
pub struct Stop {
    asked: AtomicBool,
    event: OwnedFd,
}

/// Why a wait is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    Readable,
    Stopped,
}

impl Stop {
    pub fn new() -> rustix::io::Result<Stop> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Stop { asked: AtomicBool::new(false), event })
    }

    pub fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
        // Nobody reads the event, so it stays readable for every thread. It cannot overflow by one.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Waits until one of `sources` (at most two) can be read or has an error to tell, or until the end is asked for.
    pub fn wait_for<'a>(
        &'a self,
        sources: impl Iterator<Item = BorrowedFd<'a>>,
    ) -> rustix::io::Result<Woken> {
        let event = PollFd::from_borrowed_fd(self.event.as_fd(), PollFlags::IN);
        let mut waited = [event.clone(), event.clone(), event];
        let mut count = 1;
        for (place, fd) in waited.iter_mut().skip(1).zip(sources) {
            *place = PollFd::from_borrowed_fd(fd, PollFlags::IN);
            count += 1;
        }
        loop {
            match poll(&mut waited[..count], None) {
                Ok(_) if self.is_asked() => return Ok(Woken::Stopped),
                Ok(_) => return Ok(Woken::Readable),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}
