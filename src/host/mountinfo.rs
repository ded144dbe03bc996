//! What is mounted where, as the kernel lists it in /proc/self/mountinfo.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crate::path_error::{At, PathError};

/// One mount. Later entries of a table lie over earlier ones at the same point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    pub id: u64,
    pub parent: u64,
    /// major:minor of the device.
    pub device: String,
    /// Which directory of its filesystem is mounted.
    pub root: PathBuf,
    pub point: PathBuf,
    pub options: String,
    pub fs_type: String,
    pub source: String,
    pub super_options: String,
}

/// The mounts of this process's namespace.
pub fn read() -> Result<Vec<Mount>, PathError> {
    let path = Path::new("/proc/self/mountinfo");
    let bytes = std::fs::read(path).at("read", path)?;
    Ok(parse(&bytes))
}

/// Reads the table. A line that is not understood is left out: a new kernel may add kinds, not take fields away.
pub fn parse(bytes: &[u8]) -> Vec<Mount> {
    bytes.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

/// True when something is mounted exactly at this path, which must be absolute and free of links. A path that is not
/// there is no mount point.
pub fn is_mountpoint(path: &Path) -> Result<bool, PathError> {
    // The kernel can be asked directly since 5.8, which spares reading a table of thousands of lines.
    match rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty()) {
        Ok(stat) if stat.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) => {
            Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
        }
        Err(Errno::NOENT) => Ok(false),
        _ => Ok(read()?.iter().any(|m| m.point == path)),
    }
}

/// What is mounted at this path or below it, innermost first, which is the order to unmount in.
pub fn mounts_under(path: &Path) -> Result<Vec<Mount>, PathError> {
    Ok(under(read()?, path))
}

fn under(mounts: Vec<Mount>, path: &Path) -> Vec<Mount> {
    let mut found: Vec<Mount> = mounts.into_iter().filter(|m| m.point.starts_with(path)).collect();
    found.reverse();
    // Stable, so that of two mounts at one point the upper still comes first.
    found.sort_by_key(|m| std::cmp::Reverse(m.point.components().count()));
    found
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|b| *b == b' ');
    let mut word = || words.next().filter(|w| !w.is_empty());
    let number = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.parse().ok();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(unescape(bytes)));

    let (id, parent, device) = (number(word()?)?, number(word()?)?, text(word()?));
    let (root, point, options) = (path(word()?), path(word()?), text(word()?));
    // Any number of optional fields, then a lone dash.
    while word()? != b"-" {}
    let (fs_type, source) = (text(word()?), text(&unescape(word()?)));
    let super_options = word().map(text).unwrap_or_default();
    Some(Mount { id, parent, device, root, point, options, fs_type, source, super_options })
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = (first == b'\\').then(|| tail.get(..3)).flatten().and_then(octal_byte);
        match octal {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    out
}

fn octal_byte(digits: &[u8]) -> Option<u8> {
    digits
        .iter()
        .try_fold(0u32, |n, d| (b'0'..=b'7').contains(d).then(|| n * 8 + u32::from(d - b'0')))?
        .try_into()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
        30 22 0:26 / /pods/a\\040b rw,nosuid shared:5 master:1 - tmpfs tmpfs rw,size=1024k\n\
        31 30 254:0 /data\\134x /pods/a\\040b/inner ro - ext4 /dev/vda rw\n\
        32 22 0:27 / /pods/a\\040b rw - tmpfs over rw\n\
        nonsense\n\
        33 22 0:28 / /podsother rw - tmpfs t\n";

    #[test]
    fn escapes_and_optional_fields_are_understood() {
        let mounts = parse(TABLE);
        assert_eq!(mounts.len(), 5, "the line of nonsense is left out");
        assert_eq!(mounts[1].point, Path::new("/pods/a b"));
        assert_eq!(
            (mounts[1].fs_type.as_str(), mounts[1].super_options.as_str()),
            ("tmpfs", "rw,size=1024k")
        );
        assert_eq!(mounts[2].root, Path::new("/data\\x"));
        assert_eq!((mounts[2].id, mounts[2].parent, mounts[2].device.as_str()), (31, 30, "254:0"));
    }

    #[test]
    fn mounts_below_a_path_come_innermost_and_uppermost_first() {
        let ids: Vec<u64> = under(parse(TABLE), Path::new("/pods")).iter().map(|m| m.id).collect();
        assert_eq!(ids, [31, 32, 30]);
    }

    #[test]
    fn this_process_has_a_root_mount() {
        assert!(is_mountpoint(Path::new("/")).expect("mountinfo"));
        assert!(!is_mountpoint(Path::new("/no/such/path")).expect("mountinfo"));
    }
}
