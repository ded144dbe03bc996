//! Walking and removing directories that a pod could write into. No name in them is trusted: links are never
//! followed, mounts never crossed, and neither depth nor number of entries costs memory or descriptors.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;

use crate::path_error::{At, PathError};

/// Opens a directory by a path that is the agent's own. Its last component may not be a link.
pub fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, DIR_FLAGS, Mode::empty())?)
}

const DIR_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens one entry of a directory as a directory: no link, no other mount.
pub fn open_subdir(dir: impl AsFd, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(dir, name, DIR_FLAGS, Mode::empty(), resolve)
}

/// openat2 asks to be called again when a rename somewhere raced with it.
pub fn openat2(
    dir: impl AsFd,
    name: impl rustix::path::Arg + Copy,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    for _ in 0..64 {
        match rustix::fs::openat2(&dir, name, flags | OFlags::CLOEXEC, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

/// The names in a directory, without the two that are always there.
pub fn names(dir: impl AsFd) -> rustix::io::Result<Vec<CString>> {
    first_names(dir, usize::MAX)
}

/// So many names are taken from a directory at once: what a pod has put into it may be more than fits into memory.
const BATCH: usize = 1024;

fn first_names(dir: impl AsFd, most: usize) -> rustix::io::Result<Vec<CString>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(dir)? {
        if found.len() >= most {
            break;
        }
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            found.push(name.to_owned());
        }
    }
    Ok(found)
}

/// Removes a directory and all that is in it. A path that is not there is a success; a link at the path is refused.
///
/// A directory inside a directory is first moved up to the top, so the deepest nest needs three descriptors. What is
/// interrupted half-way is finished by the next call.
pub fn remove(path: &Path) -> Result<(), PathError> {
    let top = match open_dir(path) {
        Ok(top) => top,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(PathError::new("open for removal", path, e)),
    };
    empty(&top).at("empty", path)?;
    std::fs::remove_dir(path).at("remove", path)
}

/// Removes all that is in a directory, and leaves the directory itself.
pub fn empty(top: &OwnedFd) -> rustix::io::Result<()> {
    let mut serial = 0u64;
    loop {
        let entries = first_names(top, BATCH)?;
        if entries.is_empty() {
            return Ok(());
        }
        for name in entries {
            if unlink(top, &name)? == Gone::Yes {
                continue;
            }
            let dir = open_subdir(top, &name)?;
            flatten(top, &dir, &mut serial)?;
            drop(dir);
            rmdir(top, &name)?;
        }
    }
}

#[derive(PartialEq)]
enum Gone {
    Yes,
    IsDirectory,
}

fn unlink(dir: &OwnedFd, name: &CStr) -> rustix::io::Result<Gone> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(Gone::Yes),
        // POSIX says EPERM for a directory, Linux says EISDIR; an immutable file says EPERM too, and fails later.
        Err(Errno::ISDIR | Errno::PERM) => Ok(Gone::IsDirectory),
        Err(e) => Err(e),
    }
}

fn rmdir(dir: &OwnedFd, name: &CStr) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Unlinks the files of `dir` and moves its directories up into `top`.
fn flatten(top: &OwnedFd, dir: &OwnedFd, serial: &mut u64) -> rustix::io::Result<()> {
    loop {
        let entries = first_names(dir, BATCH)?;
        if entries.is_empty() {
            return Ok(());
        }
        for name in entries {
            if unlink(dir, &name)? == Gone::IsDirectory {
                remove_or_park(top, dir, &name, serial)?;
            }
        }
    }
}

/// An empty directory goes; another is moved up into `top` under a name that nobody has there.
fn remove_or_park(top: &OwnedFd, dir: &OwnedFd, name: &CStr, serial: &mut u64) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        Err(e) => return Err(e),
    }
    loop {
        *serial += 1;
        let parked = CString::new(format!(".removing-{serial}")).map_err(|_| Errno::INVAL)?;
        match rustix::fs::renameat_with(dir, name, top, &parked, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::testing;

    #[test]
    fn links_are_removed_and_what_they_point_at_stays() {
        let temp = testing::dir();
        let outside = temp.path().join("outside");
        std::fs::create_dir(&outside).expect("mkdir");
        std::fs::write(outside.join("keep"), "x").expect("write");
        let inside = temp.path().join("inside");
        std::fs::create_dir_all(inside.join("a/b")).expect("mkdir");
        symlink(&outside, inside.join("link")).expect("link");
        symlink(&outside, inside.join("a/b/link")).expect("link");
        std::fs::write(inside.join("a/file"), "x").expect("write");
        remove(&inside).expect("removal");
        assert!(!inside.exists());
        assert!(outside.join("keep").exists(), "the target of the links was touched");
        remove(&inside).expect("a second removal has nothing to do");
    }

    #[test]
    fn a_link_in_place_of_the_directory_is_refused() {
        let temp = testing::dir();
        let outside = temp.path().join("outside");
        std::fs::create_dir(&outside).expect("mkdir");
        std::fs::write(outside.join("keep"), "x").expect("write");
        symlink(&outside, temp.path().join("pod")).expect("link");
        assert!(remove(&temp.path().join("pod")).is_err());
        assert!(outside.join("keep").exists());
    }

    #[test]
    fn a_nest_deeper_than_any_path_is_removed() {
        let temp = testing::dir();
        let top = temp.path().join("deep");
        std::fs::create_dir(&top).expect("mkdir");
        let mut dir = open_dir(&top).expect("open");
        for _ in 0..600 {
            rustix::fs::mkdirat(&dir, c"nested-directory", Mode::RWXU).expect("mkdir");
            dir = open_subdir(&dir, c"nested-directory").expect("open");
        }
        remove(&top).expect("removal");
        assert!(!top.exists());
    }

    #[test]
    fn a_mount_inside_is_not_crossed() {
        let temp = keelson_require::require!(testing::mountable());
        let pod = temp.path().join("pod");
        let kept = temp.path().join("kept");
        std::fs::create_dir_all(pod.join("v/mounted")).expect("mkdir");
        std::fs::create_dir(&kept).expect("mkdir");
        std::fs::write(kept.join("data"), "x").expect("write");
        rustix::mount::mount_bind(&kept, pod.join("v/mounted")).expect("bind mount");
        let result = remove(&pod);
        rustix::mount::unmount(pod.join("v/mounted"), rustix::mount::UnmountFlags::DETACH).ok();
        assert!(result.is_err(), "a removal must stop at a mount");
        assert!(kept.join("data").exists(), "the removal went through a mount");
    }
}
