//! Whether anybody still has a file open for writing.
//!
//! A runtime that was told to reopen a log finishes the old file a moment later. Whoever follows the log must know that
//! the old file is complete before going on with the new one, and so must whoever compresses it. The kernel knows: it
//! grants a read lease only on a file that nobody has open for writing.
#![allow(unsafe_code)] // no safe wrapper has F_SETLEASE and F_SETSIG

use std::fs::File;
use std::os::fd::AsRawFd;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    Some,
    None,
    /// The file system has no leases.
    Unknown,
}

/// Linux's number for it on every architecture; libc does not have it for all targets.
const F_SETSIG: libc::c_int = 10;

pub fn writers(file: &File) -> Writers {
    let fd = file.as_raw_fd();
    // SAFETY: fcntl on a descriptor that `file` keeps open; no memory is passed. The lease is held for a moment only;
    // should anybody open the file for writing just then, the kernel makes them wait for its end and sends the signal
    // that is set here. SIGURG is ignored unless somebody asked for it; the usual SIGIO would end this process.
    let granted = unsafe {
        if libc::fcntl(fd, F_SETSIG, libc::SIGURG) != 0 {
            return Writers::Unknown;
        }
        let granted = libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK);
        let errno = std::io::Error::last_os_error();
        if granted == 0 {
            libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK);
            Ok(())
        } else {
            Err(errno)
        }
    };
    match granted {
        Ok(()) => Writers::None,
        Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => Writers::Some,
        Err(_) => Writers::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_is_noticed_until_it_closes() {
        keelson_require::require!(crate::testing::leases());
        let temp = crate::testing::dir();
        let path = temp.path().join("log");
        let writer = File::create(&path).expect("create");
        let reader = File::open(&path).expect("open");
        assert_eq!(writers(&reader), Writers::Some);
        let second = writer.try_clone().expect("dup");
        drop(writer);
        assert_eq!(writers(&reader), Writers::Some, "a copy of the descriptor writes as well");
        drop(second);
        assert_eq!(writers(&reader), Writers::None);
        drop(File::options().append(true).open(&path).expect("the lease is not left behind"));
    }
}
