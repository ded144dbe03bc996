//! What directories and filesystems hold.

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
    use super::*;
    use crate::testing;

    #[test]
    fn logs_are_the_files_of_one_directory() {
        let temp = testing::dir();
        fs::create_dir(temp.path().join("below")).expect("mkdir");
        fs::write(temp.path().join("below/other"), vec![1; 1 << 20]).expect("write");
        fs::write(temp.path().join("0.log"), vec![1; 1 << 20]).expect("write");
        let (bytes, inodes) = log_bytes(temp.path()).expect("logs");
        assert!((1 << 20..3 << 19).contains(&bytes), "{bytes}");
        assert_eq!(inodes, 1);
    }

    #[test]
    fn a_filesystem_adds_up() {
        let found = filesystem(Path::new("/")).expect("statvfs");
        assert!(found.used <= found.capacity && found.available <= found.capacity);
    }
}
