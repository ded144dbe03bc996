//! Mounting and unmounting, so that doing it twice is doing it once.

use std::ffi::CString;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{FsOpenFlags, MountFlags, UnmountFlags};

use crate::mountinfo;
use crate::path_error::{At, PathError};

/// Who writes into a filesystem in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// Only this agent: nothing in it is a device, or gives anybody rights.
    Agent,
    Pod,
}

/// Mounts a tmpfs on a directory, unless something is mounted there already. Nothing of it is written to a swap device
/// where the kernel can promise that.
pub fn ensure_tmpfs(path: &Path, size: Option<u64>, writer: Writer) -> Result<(), PathError> {
    if mountinfo::is_mountpoint(path)? {
        return Ok(());
    }
    let mut options = vec!["mode=1777".to_owned()];
    options.extend(size.map(|bytes| format!("size={bytes}")));
    let flags = match writer {
        Writer::Agent => MountFlags::NOSUID | MountFlags::NODEV,
        Writer::Pod => MountFlags::empty(),
    };
    let mount = |options: &[String]| {
        let data = CString::new(options.join(",")).map_err(|_| Errno::INVAL)?;
        rustix::mount::mount("tmpfs", path, "tmpfs", flags, data.as_c_str())
    };
    let mounted = match mount(&[&options[..], &["noswap".to_owned()]].concat()) {
        // Kernels before 6.3 do not know that option.
        Err(Errno::INVAL) => mount(&options),
        other => other,
    };
    mounted.at("mount a tmpfs on", path)
}

/// Whether the kernel can promise that nothing of a tmpfs is written to a swap device. Asked without mounting one.
pub fn keeps_tmpfs_from_swap() -> bool {
    let opened = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC);
    opened.and_then(|fs| rustix::mount::fsconfig_set_flag(fs, "noswap")).is_ok()
}

/// Mounts huge pages of a size on a directory, unless something is mounted there already: that must be such pages then.
pub fn ensure_hugetlbfs(path: &Path, page_bytes: u64) -> Result<(), PathError> {
    if !mountinfo::is_mountpoint(path)? {
        let data = CString::new(format!("pagesize={page_bytes}")).unwrap_or_default();
        let mounted = rustix::mount::mount("nodev", path, "hugetlbfs", MountFlags::empty(), data.as_c_str());
        return mounted.at("mount huge pages on", path);
    }
    // The block of a filesystem of huge pages is its page.
    let found = rustix::fs::statvfs(path).at("inspect", path)?;
    match found.f_bsize == page_bytes {
        true => Ok(()),
        false => {
            let problem = format!("something else is mounted there, with pages of {} bytes", found.f_bsize);
            Err(PathError::new("mount huge pages on", path, std::io::Error::other(problem)))
        }
    }
}

/// How a directory is shown at another place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BindOptions {
    pub read_only: bool,
    /// What is not allowed in it: programs, devices, rights of a program's owner. And whether reading is noted.
    flags: MountFlags,
}

impl BindOptions {
    /// As mount takes them. The error is the first that is none.
    pub fn parse(options: &[String]) -> Result<Self, String> {
        let mut parsed = Self { read_only: false, flags: MountFlags::empty() };
        for option in options.iter().flat_map(|option| option.split(',')) {
            parsed.flags |= match option {
                "" | "bind" | "defaults" | "rw" => MountFlags::empty(),
                "ro" => {
                    parsed.read_only = true;
                    MountFlags::empty()
                }
                "noexec" => MountFlags::NOEXEC,
                "nodev" => MountFlags::NODEV,
                "nosuid" => MountFlags::NOSUID,
                "noatime" => MountFlags::NOATIME,
                "nodiratime" => MountFlags::NODIRATIME,
                "relatime" => MountFlags::RELATIME,
                other => return Err(other.to_owned()),
            };
        }
        Ok(parsed)
    }
}

/// Shows a directory at another place as well, unless it is shown there already; another one that is shown there goes. True where
/// it was not.
pub fn ensure_bind(source: &Path, target: &Path, options: BindOptions) -> Result<bool, PathError> {
    let same = || -> Result<bool, PathError> {
        let [a, b] = [
            std::fs::metadata(source).at("look at", source)?,
            std::fs::metadata(target).at("look at", target)?,
        ];
        Ok((a.dev(), a.ino()) == (b.dev(), b.ino()))
    };
    if mountinfo::is_mountpoint(target)? {
        if same()? {
            return Ok(false);
        }
        unmount(target)?;
    }
    rustix::mount::mount_bind(source, target).at("bind a directory to", target)?;
    let mut flags = options.flags;
    flags.set(MountFlags::RDONLY, options.read_only);
    if flags.is_empty() {
        return Ok(true);
    }
    let limited = rustix::mount::mount_remount(target, MountFlags::BIND | flags, c"")
        .at("limit what may be done in", target);
    // Not without its limits.
    if limited.is_err() {
        let _ = unmount(target);
    }
    limited.map(|()| true)
}

/// Unmounts what is mounted at a path. What is still in use is detached: it vanishes from the tree now, and for good
/// when its last user is gone.
pub fn unmount(path: &Path) -> Result<(), PathError> {
    let result = match rustix::mount::unmount(path, UnmountFlags::NOFOLLOW) {
        Err(Errno::BUSY) => rustix::mount::unmount(path, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH),
        other => other,
    };
    match result {
        // Nothing is mounted there any more.
        Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        other => other.at("unmount", path),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing;

    #[test]
    fn what_is_said_of_swap_is_what_a_tmpfs_has() {
        let temp = keelson_require::require!(testing::mountable());
        let path = temp.path().join("memory");
        fs::create_dir(&path).expect("mkdir");
        ensure_tmpfs(&path, None, Writer::Agent).expect("mount");
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        unmount(&path).expect("unmount");
        let line =
            mounts.lines().find(|l| l.contains(&format!(" {} ", path.display()))).expect("it is mounted");
        let options = line.rsplit(' ').next().unwrap_or_default();
        assert_eq!(options.split(',').any(|o| o == "noswap"), keeps_tmpfs_from_swap(), "{line}");
    }
}
