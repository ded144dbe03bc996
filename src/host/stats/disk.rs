//! What directories and filesystems hold.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use keelson_core::stats::Filesystem;

/// The filesystem that a path lies on. `None` if it cannot be asked.
pub fn filesystem(path: &Path) -> Option<Filesystem> {
    let found = rustix::fs::statvfs(path).ok()?;
    let bytes = |blocks: u64| Some(blocks.saturating_mul(found.f_frsize));
    Some(Filesystem {
        capacity: bytes(found.f_blocks),
        available: bytes(found.f_bavail),
        used: bytes(found.f_blocks.saturating_sub(found.f_bfree)),
        inodes: Some(found.f_files),
        inodes_free: Some(found.f_ffree),
        inodes_used: Some(found.f_files.saturating_sub(found.f_ffree)),
    })
}

/// Bytes and inodes that the tree at `path` takes on its own filesystem: links are not followed, mounts not entered, a
/// file with several names counted once. Stops counting after `most` entries.
pub fn tree_usage(path: &Path, most: usize) -> Option<(u64, u64)> {
    let root = fs::symlink_metadata(path).ok()?;
    let (mut bytes, mut inodes) = (root.blocks() * 512, 1);
    let mut linked = HashSet::new();
    let mut pending = vec![path.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let Ok(found) = entry.metadata() else { continue };
            if found.dev() != root.dev()
                || (found.nlink() > 1 && !found.is_dir() && !linked.insert(found.ino()))
            {
                continue;
            }
            bytes += found.blocks() * 512;
            inodes += 1;
            if inodes as usize >= most {
                return Some((bytes, inodes));
            }
            if found.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    Some((bytes, inodes))
}

/// What the files of one directory take, those below it left out.
pub fn log_bytes(dir: &Path) -> Option<(u64, u64)> {
    let (mut bytes, mut inodes) = (0, 0);
    for entry in fs::read_dir(dir).ok()?.flatten() {
        if let Ok(found) = entry.metadata()
            && found.is_file()
        {
            bytes += found.blocks() * 512;
            inodes += 1;
        }
    }
    Some((bytes, inodes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::testing;

    #[test]
    fn a_tree_counts_each_file_once_and_follows_nothing() {
        let temp = testing::dir();
        let dir = temp.path().join("volume/sub");
        fs::create_dir_all(&dir).expect("mkdir");
        fs::write(temp.path().join("outside"), vec![1; 1 << 20]).expect("write");
        fs::write(dir.join("a"), vec![1; 100_000]).expect("write");
        fs::hard_link(dir.join("a"), dir.join("b")).expect("link");
        symlink(temp.path().join("outside"), dir.join("c")).expect("link");
        symlink("..", dir.join("loop")).expect("link");
        let (bytes, inodes) = tree_usage(&temp.path().join("volume"), 1000).expect("usage");
        assert!((100_000..400_000).contains(&bytes), "{bytes}");
        assert_eq!(inodes, 5, "two directories, one file, two links");
        assert_eq!(tree_usage(&temp.path().join("volume"), 2).expect("bounded").1, 2);
        assert_eq!(tree_usage(&temp.path().join("absent"), 2), None);
        let (bytes, inodes) = log_bytes(temp.path()).expect("logs");
        assert!(bytes >= 1 << 20 && inodes == 1);
    }

    #[test]
    fn a_filesystem_adds_up() {
        let found = filesystem(Path::new("/")).expect("statvfs");
        assert!(found.used <= found.capacity && found.available <= found.capacity);
    }
}
