//! Writes a volume's files so that a reader sees all of the old or all of the new ones, never a mixture.
//!
//! The files lie in a directory of their own whose name begins with two dots; the link `..data` leads to it; what the
//! container sees are links into `..data`. An update writes a new directory and swaps `..data` by a rename. These names
//! are what every reader of such volumes knows.
//!
//! Nothing in the volume is trusted to be what was left there: every name is opened relative to its directory, without
//! following links.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use jiff::Timestamp;
use keelson_core::volumes::{Payload, PayloadFile};
use keelson_host::path_error::{At, PathError};
use keelson_host::tree;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;

use crate::ownership;

const DATA: &CStr = c"..data";
const DATA_NEW: &CStr = c"..data_tmp";

/// Makes the volume hold exactly these files. Returns whether anything had to be written.
pub(crate) fn write(path: &Path, payload: &Payload<'_>, fs_group: Option<u32>) -> Result<bool, PathError> {
    check_names(payload).at("write", path)?;
    let volume = tree::open_dir(path).at("open", path)?;
    let current = current_directory(&volume);
    let unchanged =
        current.as_deref().is_some_and(|dir| holds(&volume, dir, payload, fs_group).unwrap_or(false));
    let live = match current {
        Some(dir) if unchanged => dir,
        _ => replace(&volume, payload, fs_group).at("write files into", path)?,
    };
    // Also when nothing changed: a crash may have come between the swap and these.
    make_links(&volume, payload).at("make links in", path)?;
    remove_leftovers(&volume, payload, &live).at("tidy", path)?;
    Ok(!unchanged)
}

/// Paths come from pod specs and from objects; none may leave the volume or collide with the writer's own names.
fn check_names(payload: &Payload<'_>) -> io::Result<()> {
    for name in payload.files.keys() {
        let inside = name.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
        if !inside || name.starts_with("..") || name.contains('\0') {
            let problem = format!("{name:?} is no path inside of a volume");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
    }
    Ok(())
}

/// Where `..data` leads, if that is one of the writer's own directories.
fn current_directory(volume: &OwnedFd) -> Option<CString> {
    let target = rustix::fs::readlinkat(volume, DATA, Vec::new()).ok()?;
    let bytes = target.as_bytes();
    (bytes.starts_with(b"..") && bytes.len() > 2 && !bytes.contains(&b'/')).then_some(target)
}

/// True when a directory holds these files with this content and mode, and no others.
fn holds(volume: &OwnedFd, dir: &CStr, payload: &Payload<'_>, fs_group: Option<u32>) -> io::Result<bool> {
    let root = tree::open_subdir(volume, dir)?;
    for (name, file) in &payload.files {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let found = tree::openat2(&root, name.as_str(), flags, Mode::empty(), resolve)?;
        let stat = rustix::fs::fstat(&found)?;
        let same_size = u64::try_from(stat.st_size).is_ok_and(|size| size == file.data.len() as u64);
        let wanted_uid = owner(file).unwrap_or(0);
        let same_owner = stat.st_uid == wanted_uid && fs_group.is_none_or(|group| stat.st_gid == group);
        if !same_size || !same_owner || stat.st_mode & 0o7777 != ownership::file_mode(file.mode, fs_group) {
            return Ok(false);
        }
        let mut content = Vec::with_capacity(file.data.len());
        File::from(found).take(file.data.len() as u64 + 1).read_to_end(&mut content)?;
        if content != *file.data {
            return Ok(false);
        }
    }
    let wanted: BTreeSet<&str> = payload.files.keys().map(String::as_str).collect();
    Ok(count_files(&root)? == wanted.len())
}

fn count_files(dir: &OwnedFd) -> io::Result<usize> {
    let mut count = 0;
    for name in tree::names(dir)? {
        match tree::open_subdir(dir, &name) {
            Ok(inner) => count += count_files(&inner)?,
            Err(Errno::NOTDIR | Errno::LOOP) => count += 1,
            Err(e) => return Err(e.into()),
        }
    }
    Ok(count)
}

/// Writes the files into a new directory and makes `..data` lead there.
fn replace(volume: &OwnedFd, payload: &Payload<'_>, fs_group: Option<u32>) -> io::Result<CString> {
    let name = new_directory(volume)?;
    let root = tree::open_subdir(volume, &name)?;
    set_directory(&root, fs_group)?;
    for (path, file) in &payload.files {
        write_file(&root, path, file, fs_group)?;
    }
    match rustix::fs::unlinkat(volume, DATA_NEW, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(_) => remove_any(volume, DATA_NEW)?,
    }
    rustix::fs::symlinkat(&name, volume, DATA_NEW)?;
    match rustix::fs::renameat(volume, DATA_NEW, volume, DATA) {
        // Somebody made a directory of that name.
        Err(Errno::ISDIR | Errno::NOTEMPTY | Errno::EXIST) => {
            remove_any(volume, DATA)?;
            rustix::fs::renameat(volume, DATA_NEW, volume, DATA)?;
        }
        other => other?,
    }
    Ok(name)
}

/// A name from the time, as readers are used to, made unique by counting on.
fn new_directory(volume: &OwnedFd) -> io::Result<CString> {
    let now = Timestamp::now();
    let stamp = now.strftime("%Y_%m_%d_%H_%M_%S");
    let mut serial = now.subsec_nanosecond();
    loop {
        let name = CString::new(format!("..{stamp}.{serial:09}"))?;
        match rustix::fs::mkdirat(volume, &name, Mode::from_raw_mode(0o755)) {
            Ok(()) => return Ok(name),
            Err(Errno::EXIST) => serial = serial.wrapping_add(1),
            Err(e) => return Err(e.into()),
        }
    }
}

fn write_file(root: &OwnedFd, path: &str, file: &PayloadFile<'_>, fs_group: Option<u32>) -> io::Result<()> {
    let mut dir = root.as_fd().try_clone_to_owned()?;
    let (parents, name) = path.rsplit_once('/').unwrap_or(("", path));
    for part in parents.split('/').filter(|part| !part.is_empty()) {
        let part = CString::new(part)?;
        match rustix::fs::mkdirat(&dir, &part, Mode::from_raw_mode(0o755)) {
            Ok(()) => {
                dir = tree::open_subdir(&dir, &part)?;
                set_directory(&dir, fs_group)?;
            }
            Err(Errno::EXIST) => dir = tree::open_subdir(&dir, &part)?,
            Err(e) => return Err(e.into()),
        }
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(&dir, name, flags, Mode::from_raw_mode(0o600))?;
    let mut out = File::from(fd);
    out.write_all(&file.data)?;
    if file.uid.is_some() || fs_group.is_some() {
        rustix::fs::fchown(&out, owner(file).map(Uid::from_raw), fs_group.map(Gid::from_raw))?;
    }
    // Last, because a change of owner takes bits away.
    rustix::fs::fchmod(&out, Mode::from_raw_mode(ownership::file_mode(file.mode, fs_group)))?;
    Ok(())
}

fn owner(file: &PayloadFile<'_>) -> Option<u32> {
    file.uid.and_then(|uid| u32::try_from(uid).ok())
}

fn set_directory(dir: &OwnedFd, fs_group: Option<u32>) -> io::Result<()> {
    if let Some(group) = fs_group {
        rustix::fs::fchown(dir, None, Some(Gid::from_raw(group)))?;
    }
    // Whatever the umask has left of it.
    Ok(rustix::fs::fchmod(dir, Mode::from_raw_mode(ownership::inner_directory_mode(fs_group)))?)
}

/// The names at the top of the volume, each a link of the same name into `..data`.
fn visible(payload: &Payload<'_>) -> BTreeSet<CString> {
    let first = |path: &String| CString::new(path.split('/').next().unwrap_or(path)).ok();
    payload.files.keys().filter_map(first).collect()
}

fn make_links(volume: &OwnedFd, payload: &Payload<'_>) -> io::Result<()> {
    for name in visible(payload) {
        let target = CString::new([b"..data/", name.as_bytes()].concat())?;
        if rustix::fs::readlinkat(volume, &name, Vec::new()).is_ok_and(|found| found == target) {
            continue;
        }
        remove_any(volume, &name)?;
        rustix::fs::symlinkat(&target, volume, &name)?;
    }
    Ok(())
}

/// Old directories, unfinished ones, and links to files that are no more.
fn remove_leftovers(volume: &OwnedFd, payload: &Payload<'_>, live: &CStr) -> io::Result<()> {
    let visible = visible(payload);
    for name in tree::names(volume)? {
        if name.as_c_str() != DATA && name.as_c_str() != live && !visible.contains(&name) {
            remove_any(volume, &name)?;
        }
    }
    Ok(())
}

/// Removes an entry, whatever it is.
fn remove_any(dir: &OwnedFd, name: &CStr) -> io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(e) => return Err(e.into()),
    }
    tree::empty(&tree::open_subdir(dir, name)?)?;
    Ok(rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)?)
}

#[cfg(test)]
mod tests;
