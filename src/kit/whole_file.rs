//! Writes a file under another name and moves it into its place: whoever reads it sees the old one or the new one, never a half.

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A new file with this mode and what `fill` writes. It outlasts a power cut where `fill` syncs it.
pub fn replace(path: &Path, mode: u32, fill: impl FnOnce(&mut fs::File) -> io::Result<()>) -> io::Result<()> {
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this names no file"));
    };
    let fresh = path.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    // Left by an earlier process of the same number.
    let _ = fs::remove_file(&fresh);
    let mut options = fs::OpenOptions::new();
    let made = options.write(true).create_new(true).mode(mode).open(&fresh);
    let written = made.and_then(|mut file| fill(&mut file)).and_then(|()| fs::rename(&fresh, path));
    if written.is_err() {
        // What failed first is what counts.
        let _ = fs::remove_file(&fresh);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_or_stays_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        fs::write(&path, "old").unwrap();
        let failed = replace(&path, 0o600, |file| {
            file.write_all(b"half")?;
            Err(io::Error::other("the disk is full"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "the disk is full");
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        replace(&path, 0o600, |file| file.write_all(b"new")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["state"], "nothing else is left");
        assert!(replace(Path::new("/"), 0o600, |_| Ok(())).is_err());
    }
}
