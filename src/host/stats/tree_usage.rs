//! What a tree of files takes on disk. Pods write such trees, and may change them while they are walked: every directory
//! is opened beneath the one before, by the kernel, and what is remembered depends neither on the number of files nor on
//! what they are called.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Stat};

use crate::tree;

/// Directories deeper than this are counted, and not what is in them: each level costs a descriptor and a buffer.
const MAX_DEPTH: usize = 256;

/// Bytes and inodes that the tree at `path` takes on its own filesystem: links are not followed, mounts not entered, a
/// file with several names counted once. Stops counting after `most` entries. `None` if it cannot be read.
pub fn tree_usage(path: &Path, most: u64) -> Option<(u64, u64)> {
    let root = tree::open_dir(path).ok()?;
    let device = rustix::fs::fstat(&root).ok()?.st_dev;
    let mut total = Total::default();
    total.add(&rustix::fs::fstat(&root).ok()?);
    let mut levels = vec![Dir::new(root).ok()?];
    while total.entries < most {
        let Some(here) = levels.last_mut() else { break };
        // What cannot be read is left out, as is what vanished meanwhile.
        let Some(Ok(entry)) = here.read() else {
            levels.pop();
            continue;
        };
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let Ok(dir) = here.fd() else { continue };
        let Ok(found) = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        if found.st_dev != device {
            continue;
        }
        total.add(&found);
        let enter = is_directory(&found) && levels.len() < MAX_DEPTH;
        let inner = enter
            .then(|| levels.last().and_then(|here| tree::open_subdir(here.fd().ok()?.as_fd(), name).ok()));
        levels.extend(inner.flatten().and_then(|inner| Dir::new(inner).ok()));
    }
    Some(total.rounded())
}

/// A file with n names is met n times, and each time an n-th of it is counted: that needs no list of what was met.
#[derive(Default)]
struct Total {
    entries: u64,
    /// In parts of which there are [`WHOLE`] in one.
    bytes: u128,
    inodes: u128,
}

const WHOLE: u128 = 1 << 40;

impl Total {
    fn add(&mut self, found: &Stat) {
        // A directory has a name in each of its own directories too, and those are not more of it.
        let names = if is_directory(found) { 1 } else { u128::from(found.st_nlink.max(1)) };
        let bytes = u128::try_from(found.st_blocks).unwrap_or(0) * 512;
        self.entries += 1;
        self.bytes += bytes * WHOLE / names;
        self.inodes += WHOLE / names;
    }

    fn rounded(&self) -> (u64, u64) {
        let round = |parts: u128| u64::try_from((parts + WHOLE / 2) / WHOLE).unwrap_or(u64::MAX);
        (round(self.bytes), round(self.inodes))
    }
}

fn is_directory(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::Directory
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::Mode;

    use super::*;
    use crate::testing;

    #[test]
    fn a_tree_counts_each_file_once_and_follows_nothing() {
        let temp = testing::dir();
        let dir = temp.path().join("volume/sub");
        fs::create_dir_all(&dir).expect("mkdir");
        fs::write(temp.path().join("outside"), vec![1; 1 << 20]).expect("write");
        fs::write(dir.join("a"), vec![1; 100_000]).expect("write");
        for name in ["b", "c", "d"] {
            fs::hard_link(dir.join("a"), dir.join(name)).expect("link");
        }
        symlink(temp.path().join("outside"), dir.join("link")).expect("link");
        symlink("..", dir.join("loop")).expect("link");
        let volume = temp.path().join("volume");
        let (bytes, inodes) = tree_usage(&volume, 1000).expect("usage");
        assert!((100_000..400_000).contains(&bytes), "{bytes}");
        assert_eq!(inodes, 5, "two directories, one file, two links");
        assert_eq!(tree_usage(&volume, 2).expect("bounded").1, 2);
        assert_eq!(tree_usage(&temp.path().join("absent"), 2), None);
        symlink(&volume, temp.path().join("swapped")).expect("link");
        assert_eq!(tree_usage(&temp.path().join("swapped"), 2), None, "a link in place of the volume");
    }

    #[test]
    fn what_lies_deeper_than_is_looked_at_is_left_out() {
        let temp = testing::dir();
        let top = temp.path().join("volume");
        fs::create_dir(&top).expect("mkdir");
        let mut dir = tree::open_dir(&top).expect("open");
        for _ in 0..2 * MAX_DEPTH {
            rustix::fs::mkdirat(&dir, c"nested-directory", Mode::RWXU).expect("mkdir");
            dir = tree::open_subdir(&dir, c"nested-directory").expect("open");
        }
        let (_, inodes) = tree_usage(&top, u64::MAX).expect("usage");
        tree::remove(&top).expect("removal");
        assert_eq!(inodes, MAX_DEPTH as u64 + 1, "the volume and so many levels");
    }
}
