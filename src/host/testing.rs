//! What the tests of this crate share: directories that go away, and a plain word where a test cannot run.

use tempfile::TempDir;

pub fn dir() -> TempDir {
    tempfile::Builder::new().prefix("keelson-host-").tempdir().expect("a temporary directory")
}

/// A directory under which this process may mount, or None with the reason printed.
pub fn mountable() -> Option<TempDir> {
    use rustix::mount::{MountFlags, UnmountFlags};
    let temp = dir();
    let probe = temp.path().join("probe");
    std::fs::create_dir(&probe).expect("mkdir");
    match rustix::mount::mount("tmpfs", &probe, "tmpfs", MountFlags::empty(), None) {
        Ok(()) => {
            rustix::mount::unmount(&probe, UnmountFlags::DETACH).expect("unmount");
            std::fs::remove_dir(&probe).expect("rmdir");
            Some(temp)
        }
        Err(e) => {
            println!("left out: mounting is not possible here ({e}); run as root to include this test");
            None
        }
    }
}
