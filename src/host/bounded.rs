//! Reading files that a pod can write to, while it does: no link is followed, no pipe waited for, and no more is taken
//! than was asked for, whatever the file's size is or becomes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::tree;

/// Opens what is a plain file. `None` if nothing is there.
pub(crate) fn open(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    if !file.metadata()?.is_file() {
        return Err(refused("it is not a regular file"));
    }
    Ok(Some(file))
}

/// Opens what is a plain file beneath a directory, by a path that a pod has chosen among names that it has made: the kernel
/// itself keeps to the directory, whatever is swapped meanwhile. `None` if nothing is there.
pub(crate) fn open_beneath(root: &OwnedFd, path: &str) -> io::Result<Option<File>> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    // Looked at before it is opened: to open a device can be to use it.
    let place = match tree::openat2(root, path, OFlags::PATH, Mode::empty(), resolve) {
        Ok(place) => place,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::XDEV) => return Err(refused("it leads out of the volume")),
        Err(e) => return Err(e.into()),
    };
    let found = rustix::fs::fstat(&place)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(refused("it is not a regular file"));
    }
    let name = format!("/proc/self/fd/{}", place.as_raw_fd());
    let file = File::from(rustix::fs::open(name.as_str(), flags | OFlags::CLOEXEC, Mode::empty())?);
    Ok(Some(file))
}

fn refused(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// True when the file holds exactly this. One of another size is not read.
pub(crate) fn holds(file: File, content: &[u8]) -> io::Result<bool> {
    let wanted = content.len() as u64;
    if file.metadata()?.len() != wanted {
        return Ok(false);
    }
    let mut found = Vec::with_capacity(content.len());
    file.take(wanted + 1).read_to_end(&mut found)?;
    Ok(found == content)
}

/// The last bytes of a file.
pub(crate) fn tail(file: &mut File, most: u64) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
    head(file, most)
}

/// The first bytes from where the file stands. The kernel's own files have no size to look at.
pub(crate) fn head(file: &mut File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing;

    #[test]
    fn a_file_is_compared_by_its_size_first() {
        let temp = testing::dir();
        let path = temp.path().join("file");
        let same = |content: &[u8]| holds(open(&path).unwrap().unwrap(), content).unwrap();
        fs::write(&path, "abc").expect("write");
        assert!(same(b"abc") && !same(b"abd") && !same(b"ab") && !same(b"abcd"));
        // Far more than this machine's memory, were it read.
        File::options().write(true).open(&path).expect("open").set_len(1 << 42).expect("grow");
        assert!(!same(b"abc"));
        assert_eq!(tail(&mut open(&path).unwrap().unwrap(), 10).unwrap(), [0; 10]);
        assert_eq!(head(&mut open(&path).unwrap().unwrap(), 4).unwrap(), b"abc\0");
    }
}
