//! What the tests of this crate share: directories that go away, and what they require of the machine.

use keelson_require::Missing;
use tempfile::TempDir;

pub fn dir() -> TempDir {
    tempfile::Builder::new().prefix("keelson-host-").tempdir().expect("a temporary directory")
}

/// A directory under which this process may mount.
pub fn mountable() -> Result<TempDir, Missing> {
    keelson_require::mounts().map(|()| dir())
}

/// The kernel's answer to whether anybody writes to a file, which not every file system gives.
pub fn leases() -> Result<(), Missing> {
    use crate::logs::{Writers, writers};
    let file = tempfile::tempfile().expect("a temporary file");
    match writers(&file) {
        Writers::Unknown => {
            Err(Missing::by_nature("leases on files", "put TMPDIR on a local file system such as ext4"))
        }
        Writers::Some | Writers::None => Ok(()),
    }
}
