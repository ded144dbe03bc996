//! Files and folders of the machine's logs, opened beneath their root by the kernel itself. Pods can leave links among
//! them, and names are asked for by callers; neither leads out.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2};

/// Names of one folder that are listed; nobody reads more.
const MOST_NAMES: usize = 10_000;

pub enum SystemLog {
    /// Its length now; a log grows while it is read.
    File(File, u64),
    /// Sorted; folders end with a slash.
    Folder(Vec<String>),
}

/// Not found is also what a link that leads out is, and anything that is neither file nor folder.
pub fn open_beneath(root: &Path, parts: &[String]) -> io::Result<SystemLog> {
    let folder = open(root, OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let name = if parts.is_empty() { ".".to_owned() } else { parts.join("/") };
    // Without waiting: a pipe would hold an open for ever.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let opened = openat2(&folder, &name, flags, Mode::empty(), within).map_err(|e| match e {
        rustix::io::Errno::XDEV | rustix::io::Errno::LOOP => io::ErrorKind::NotFound.into(),
        other => io::Error::from(other),
    })?;
    let about = fstat(&opened)?;
    match FileType::from_raw_mode(about.st_mode) {
        FileType::RegularFile => {
            Ok(SystemLog::File(opened.into(), u64::try_from(about.st_size).unwrap_or(0)))
        }
        FileType::Directory => list(Dir::new(opened)?).map(SystemLog::Folder),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

fn list(mut entries: Dir) -> io::Result<Vec<String>> {
    let mut names = vec![];
    while let Some(entry) = entries.read() {
        let entry = entry?;
        // A name that is no text cannot be asked for either.
        let Ok(name) = entry.file_name().to_str() else { continue };
        if name == "." || name == ".." {
            continue;
        }
        let slash = if entry.file_type() == FileType::Directory { "/" } else { "" };
        names.push(format!("{name}{slash}"));
        if names.len() >= MOST_NAMES {
            break;
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    fn read(root: &Path, name: &str) -> io::Result<String> {
        let parts: Vec<String> = name.split('/').filter(|p| !p.is_empty()).map(Into::into).collect();
        match open_beneath(root, &parts)? {
            SystemLog::File(mut file, _) => {
                let mut text = String::new();
                file.read_to_string(&mut text)?;
                Ok(text)
            }
            SystemLog::Folder(names) => Ok(names.join(" ")),
        }
    }

    #[test]
    fn files_and_folders_beneath_are_read_and_nothing_outside() {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("log");
        std::fs::create_dir_all(root.join("pods/web")).unwrap();
        std::fs::write(outer.path().join("secret"), "secret").unwrap();
        std::fs::write(root.join("a.log"), "lines").unwrap();
        std::fs::write(root.join("pods/web/0.log"), "deep").unwrap();
        symlink("a.log", root.join("inner")).unwrap();
        symlink("../secret", root.join("outer")).unwrap();
        symlink(outer.path().join("secret"), root.join("absolute")).unwrap();
        symlink("..", root.join("parent")).unwrap();
        symlink("/proc/self/root/etc/passwd", root.join("magic")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            root.join("pipe"),
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert_eq!(read(&root, "a.log").unwrap(), "lines");
        assert_eq!(read(&root, "pods/web/0.log").unwrap(), "deep");
        assert_eq!(read(&root, "inner").unwrap(), "lines");
        assert_eq!(read(&root, "").unwrap(), "a.log absolute inner magic outer parent pipe pods/");
        for name in ["outer", "absolute", "parent/secret", "magic", "pipe", "none", "a.log/x", "../secret"] {
            let error = read(&root, name).expect_err(name);
            assert!(
                matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
                "{name}: {error:?}"
            );
        }
    }
}
