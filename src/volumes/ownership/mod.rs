//! Who owns what is in a volume. With an fsGroup everything belongs to that group, and new files inherit it.

mod walk;

use std::path::Path;

use keelson_host::path_error::{At, PathError};
use rustix::fs::{Gid, Mode, OFlags};

pub(crate) use walk::{Interrupt, Walk, Walked, give_to_group};

const SETGID: u32 = 0o2000;
const KIND_MASK: u32 = 0o7777;

/// Gives a directory its mode and group, if it has not got them yet.
pub(crate) fn of_directory(path: &Path, mode: u32, fs_group: Option<u32>) -> Result<(), PathError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path, flags, Mode::empty()).at("open", path)?;
    let now = rustix::fs::fstat(&dir).at("inspect", path)?;
    if let Some(group) = fs_group
        && now.st_gid != group
    {
        rustix::fs::fchown(&dir, None, Some(Gid::from_raw(group))).at("change the group of", path)?;
    }
    let wanted = if fs_group.is_some() { mode | SETGID | 0o770 } else { mode };
    if now.st_mode & KIND_MASK != wanted {
        rustix::fs::fchmod(&dir, Mode::from_raw_mode(wanted)).at("set the mode of", path)?;
    }
    Ok(())
}

/// The mode of a file that only the agent writes: the group may read it.
pub(crate) fn file_mode(mode: u32, fs_group: Option<u32>) -> u32 {
    let mode = mode & 0o777;
    if fs_group.is_some() { mode | 0o440 } else { mode }
}

/// The mode of a directory inside such a volume.
pub(crate) fn inner_directory_mode(fs_group: Option<u32>) -> u32 {
    if fs_group.is_some() { 0o755 | 0o550 | SETGID } else { 0o755 }
}
