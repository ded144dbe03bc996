//! The lock that all implementations share.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;

use crate::skel::Failure;

/// Takes the lock of a network's directory. One that is held for too long is an error, not waited for.
pub fn lock(dir: &Path, patience: Duration) -> Result<OwnedFd, Failure> {
    let path = dir.join("lock");
    let failed =
        |e: Errno| Failure::io(format!("cannot lock {}: {}", path.display(), std::io::Error::from(e)));
    let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC;
    let file = open(&path, flags, Mode::from_raw_mode(0o750)).map_err(failed)?;
    let deadline = Instant::now() + patience;
    let mut pause = Duration::from_micros(200);
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if Instant::now() < deadline => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(5));
            }
            Err(Errno::AGAIN) => {
                return Err(Failure::new(
                    Failure::TRY_AGAIN,
                    format!("the lock {} is held by another process", path.display()),
                    format!("waited {} s for it", patience.as_secs_f32()),
                ));
            }
            Err(errno) => return Err(failed(errno)),
        }
    }
}
