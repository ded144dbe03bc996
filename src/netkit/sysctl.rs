//! Kernel settings under /proc/sys.
//!
//! Names are paths with slashes, because interface names may hold dots. What is under net/ belongs to the
//! network namespace of the calling thread.

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read, write};

use crate::error::{Error, Result};

/// Sets a value, whatever it was.
pub fn set(name: &str, value: &str) -> Result<()> {
    let op = || format!("set {name} to {value}");
    let path = format!("/proc/sys/{name}");
    let fd = open(path.as_str(), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Error::system(op(), errno))?;
    write(&fd, value.as_bytes()).map(drop).map_err(|errno| Error::system(op(), errno))
}

/// Reads a value without its line end.
pub fn get(name: &str) -> Result<String> {
    let op = || format!("read {name}");
    let path = format!("/proc/sys/{name}");
    let fd = open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Error::system(op(), errno))?;
    let mut buf = [0; 256];
    let len = read(&fd, &mut buf).map_err(|errno| Error::system(op(), errno))?;
    Ok(String::from_utf8_lossy(&buf[..len]).trim().to_owned())
}

/// Sets a value unless it is set already. Reading is much cheaper than setting some of them, and a
/// read-only /proc/sys does no harm where the host was prepared.
pub fn ensure(name: &str, value: &str) -> Result<()> {
    if get(name).is_ok_and(|current| current == value) { Ok(()) } else { set(name, value) }
}

/// Sets a value where the kernel has that setting at all; IPv6 may be missing.
pub fn set_if_there(name: &str, value: &str) -> Result<()> {
    match set(name, value) {
        Err(error) if error.errno() == Some(Errno::NOENT) => Ok(()),
        other => other,
    }
}
