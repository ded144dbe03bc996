//! A part of a volume for one mount of a container. The volume's content belongs to the pod, which may change it while
//! it is inspected; so the part is opened beneath the volume by the kernel itself, and mounted by that descriptor. There
//! is no moment at which a name is looked up twice.

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use keelson_host::dirs::{self, PodDirs};
use keelson_host::path_error::{At, PathError};
use keelson_host::{mountinfo, mounting, tree};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Which part, of which volume, for which mount.
#[derive(Debug, Clone, Copy)]
pub struct SubPath<'a> {
    /// Where the volume lies on the host.
    pub volume_path: &'a Path,
    pub volume: &'a str,
    pub container: &'a str,
    /// The position of the mount in the container's list.
    pub index: usize,
    pub sub_path: &'a str,
}

#[derive(Debug, thiserror::Error)]
pub enum SubPathError {
    #[error("subPath {sub_path:?} of volume {volume:?} in container {container:?} {problem}")]
    Refused { sub_path: String, volume: String, container: String, problem: String },
    #[error("subPath {sub_path:?} of volume {volume:?}: {source}")]
    Path { sub_path: String, volume: String, source: PathError },
}

/// Opens the part, making directories that are missing, and binds it to a place of its own, which is returned. What is
/// bound there already is kept if it still is the same.
pub fn prepare(dirs: &PodDirs, part: &SubPath<'_>) -> Result<PathBuf, SubPathError> {
    let refuse = |problem: String| SubPathError::Refused {
        sub_path: part.sub_path.to_owned(),
        volume: part.volume.to_owned(),
        container: part.container.to_owned(),
        problem,
    };
    let failed =
        |source| SubPathError::Path { sub_path: part.sub_path.into(), volume: part.volume.into(), source };
    if part.sub_path.starts_with('/') {
        return Err(refuse("must not be an absolute path".into()));
    }
    let names: Vec<&str> = part.sub_path.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
    if names.contains(&"..") {
        return Err(refuse("must not contain '..'".into()));
    }
    let opened = open_part(part.volume_path, &names).map_err(|e| match e {
        Errno::XDEV => refuse("leads out of the volume".into()),
        Errno::LOOP => refuse("leads through a link that is not allowed".into()),
        Errno::NOTDIR => refuse("leads through something that is not a directory".into()),
        e => failed(PathError::new("open a part of", part.volume_path, e)),
    })?;
    let target = dirs.subpaths().join(part.volume).join(part.container).join(part.index.to_string());
    bind(&opened, &target).map_err(failed)?;
    Ok(target)
}

/// RESOLVE_BENEATH makes the kernel refuse every way out: `..`, absolute links, and what is swapped meanwhile.
fn open_part(volume: &Path, names: &[&str]) -> rustix::io::Result<OwnedFd> {
    let root = rustix::fs::open(volume, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let whole = names.join("/");
    if whole.is_empty() {
        return Ok(root);
    }
    match tree::openat2(&root, whole.as_str(), OFlags::PATH, Mode::empty(), resolve) {
        Err(Errno::NOENT) => {}
        other => return other,
    }
    // What is missing is made, with as much permission as the volume itself gives.
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&root)?.st_mode & 0o777);
    let mut here = root.try_clone().map_err(|_| Errno::MFILE)?;
    for (depth, name) in names.iter().enumerate() {
        // Each step starts from the root again, so that a link in between may go up as far as the volume's top.
        let so_far = names[..=depth].join("/");
        let open = || tree::openat2(&root, so_far.as_str(), OFlags::PATH, Mode::empty(), resolve);
        here = match open() {
            Err(Errno::NOENT) => {
                match rustix::fs::mkdirat(&here, *name, mode) {
                    Ok(()) => open_up(&here, name, mode)?,
                    Err(Errno::EXIST) => {}
                    Err(e) => return Err(e),
                }
                open()?
            }
            other => other?,
        };
    }
    Ok(here)
}

/// Gives a directory that was just made the mode that it was made with, whatever the umask has taken from it. What
/// somebody has put into its place meanwhile is opened inside of the volume only, and no link is followed.
fn open_up(parent: &OwnedFd, name: &str, mode: Mode) -> rustix::io::Result<()> {
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    let made = tree::open_subdir(parent, &name)?;
    let inherited = rustix::fs::fstat(&made)?.st_mode & 0o7000;
    rustix::fs::fchmod(&made, mode | Mode::from_raw_mode(inherited))
}

fn bind(opened: &OwnedFd, target: &Path) -> Result<(), PathError> {
    let wanted = rustix::fs::fstat(opened).at("inspect", target)?;
    if mountinfo::is_mountpoint(target)? {
        let bound = rustix::fs::lstat(target).at("inspect", target)?;
        if (bound.st_dev, bound.st_ino) == (wanted.st_dev, wanted.st_ino) {
            return Ok(());
        }
        mounting::unmount(target)?;
    }
    let is_directory = FileType::from_raw_mode(wanted.st_mode) == FileType::Directory;
    make_target(target, is_directory)?;
    let source = format!("/proc/self/fd/{}", opened.as_fd().as_raw_fd());
    rustix::mount::mount_bind(source.as_str(), target).at("bind a sub-path to", target)
}

/// A directory is bound to a directory, anything else to a file.
fn make_target(target: &Path, directory: bool) -> Result<(), PathError> {
    match fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() == directory && !found.is_symlink() => return Ok(()),
        Ok(found) if found.is_dir() => fs::remove_dir(target).at("remove", target)?,
        Ok(_) => fs::remove_file(target).at("remove", target)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(PathError::new("inspect", target, e)),
    }
    if directory {
        return dirs::make(target, 0o750);
    }
    if let Some(parent) = target.parent() {
        dirs::make(parent, 0o750)?;
    }
    OpenOptions::new().write(true).create_new(true).mode(0o640).open(target).map(|_| ()).at("create", target)
}

#[cfg(test)]
mod tests;
