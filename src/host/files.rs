//! The single files that a pod is given besides its volumes: /etc/hosts, and the termination message of a container,
//! both the way in and the way back. The way back is hostile ground: a container may have put anything there.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::bounded;
use crate::dirs::{self, PodDirs};
use crate::path_error::{At, PathError};
use crate::stats::tree_usage;
use crate::tree;

/// The most that is taken from a termination message file.
pub const MAX_MESSAGE_BYTES: usize = 4096;
/// The most that is taken from a log in place of a message.
pub const MAX_LOG_MESSAGE_BYTES: usize = 2048;
pub const MAX_LOG_MESSAGE_LINES: usize = 80;

/// The most that is taken from a file of the host's, such as its own /etc/hosts.
const MAX_HOST_FILE_BYTES: u64 = 1 << 20;

/// Reads a small text file of the host; what is beyond its bound is left out.
pub fn read_bounded(path: &Path) -> Result<String, PathError> {
    let mut file = File::open(path).at("read", path)?;
    let bytes = bounded::head(&mut file, MAX_HOST_FILE_BYTES).at("read", path)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads a file beneath a directory that a pod writes into, and no more than one byte beyond `most`. `None` if nothing is
/// there.
pub fn read_beneath(root: &Path, path: &str, most: usize) -> io::Result<Option<Vec<u8>>> {
    let root = tree::open_dir(root)?;
    let Some(mut file) = bounded::open_beneath(&root, path)? else { return Ok(None) };
    bounded::head(&mut file, most as u64 + 1).map(Some)
}

/// Writes the pod's hosts file, in place, since the runtime has bound this very inode into the containers. They may have
/// made anything of it.
pub fn write_hosts(dirs: &PodDirs, content: &str) -> Result<PathBuf, PathError> {
    let path = dirs.etc_hosts();
    if let Ok(Some(old)) = bounded::open(&path)
        && bounded::holds(old, content.as_bytes()).unwrap_or(false)
    {
        return Ok(path);
    }
    dirs.ensure()?;
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o644)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(&path)
        .at("write", &path)?;
    file.write_all(content.as_bytes()).at("write", &path)?;
    file.set_permissions(Permissions::from_mode(0o644)).at("set the mode of", &path)?;
    Ok(path)
}

/// Bytes and inodes that these files take: their containers can make them as large as the disk.
pub fn usage(dirs: &PodDirs) -> (u64, u64) {
    /// There are a few for each container.
    const MOST_FILES: u64 = 10_000;
    let hosts = fs::symlink_metadata(dirs.etc_hosts()).map_or((0, 0), |found| (found.blocks() * 512, 1));
    let logs = tree_usage(&dirs.containers(), MOST_FILES).unwrap_or_default();
    (hosts.0 + logs.0, hosts.1 + logs.1)
}

/// Makes the file that is bound to a container's termination message path. `instance` sets one start of the container
/// apart from the next, so that no start reads another's message.
pub fn create_termination_log(dirs: &PodDirs, container: &str, instance: &str) -> Result<PathBuf, PathError> {
    let dir = dirs.container(container);
    dirs::make(&dir, 0o750)?;
    let path = dir.join(instance);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(&path)
        .at("create the termination log", &path)?;
    // Whoever the container runs as must be able to write, whatever this process's umask is.
    file.set_permissions(Permissions::from_mode(0o666)).at("set the mode of", &path)?;
    Ok(path)
}

/// The container's own message: the last 4096 bytes of its file. Anything but a regular file has no message.
pub fn read_termination_message(path: &Path) -> Result<String, PathError> {
    let mut file = match bounded::open(path) {
        Ok(Some(file)) => file,
        Ok(None) => return Ok(String::new()),
        Err(e) => return Err(PathError::new("read the termination message", path, e)),
    };
    let bytes =
        bounded::tail(&mut file, MAX_MESSAGE_BYTES as u64).at("read the termination message", path)?;
    Ok(text(&bytes, MAX_MESSAGE_BYTES))
}

/// The end of a container's log, in place of a message: at most 80 lines and 2048 bytes, without time stamps.
pub fn read_log_message(log: &Path) -> Result<String, PathError> {
    // A line of the log may be up to 16 KiB and carries some 40 bytes of its own. What is wanted is little, so a
    // bounded piece from the end always holds it.
    const WINDOW: u64 = 64 * 1024;
    let mut file = match bounded::open(log) {
        Ok(Some(file)) => file,
        Ok(None) => return Ok(String::new()),
        Err(e) => return Err(PathError::new("read the log", log, e)),
    };
    let whole = file.metadata().is_ok_and(|m| m.len() <= WINDOW);
    let bytes = bounded::tail(&mut file, WINDOW).at("read the log", log)?;
    let mut lines: Vec<&[u8]> = bytes.split_inclusive(|b| *b == b'\n').collect();
    if !whole && lines.len() > 1 {
        lines.remove(0);
    }
    let mut message = Vec::new();
    let from = lines.len().saturating_sub(MAX_LOG_MESSAGE_LINES);
    for line in &lines[from..] {
        message.extend_from_slice(log_text(line));
    }
    Ok(text(&message, MAX_LOG_MESSAGE_BYTES))
}

/// The text of one line in the CRI's log format: `TIME STREAM P|F TEXT`, where P means that the line goes on. A line of
/// another shape is taken as it is.
fn log_text(line: &[u8]) -> &[u8] {
    let mut parts = line.splitn(4, |b| *b == b' ');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(_), Some(b"stdout" | b"stderr"), Some(tags), Some(rest)) => {
            let partial = tags.split(|b| *b == b':').next() == Some(b"P");
            if partial { rest.strip_suffix(b"\n").unwrap_or(rest) } else { rest }
        }
        _ => line,
    }
}

/// Text of at most `most` bytes from the end; bytes that are no text become the replacement character.
fn text(bytes: &[u8], most: usize) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut start = text.len().saturating_sub(most);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text[start..].to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use keelson_core::ids::PodUid;

    use super::*;
    use crate::dirs::RootDirs;
    use crate::testing;

    #[test]
    fn the_hosts_file_keeps_its_inode() {
        let temp = testing::dir();
        let pod = RootDirs::new(temp.path()).pod(&PodUid::try_from("u").expect("uid"));
        let path = write_hosts(&pod, "127.0.0.1 localhost\n").expect("write");
        let inode = fs::metadata(&path).expect("stat").ino();
        write_hosts(&pod, "127.0.0.1 localhost\n10.0.0.1 web\n").expect("rewrite");
        assert_eq!(fs::read_to_string(&path).expect("read"), "127.0.0.1 localhost\n10.0.0.1 web\n");
        assert_eq!(fs::metadata(&path).expect("stat").ino(), inode, "containers hold the old inode");
        // Far more than this machine's memory, were it read.
        File::options().write(true).open(&path).expect("open").set_len(1 << 42).expect("grow");
        write_hosts(&pod, "127.0.0.1 localhost\n").expect("rewrite what a container has grown");
        assert_eq!(fs::read_to_string(&path).expect("read"), "127.0.0.1 localhost\n");
    }

    #[test]
    fn a_file_is_read_beneath_its_volume_only() {
        let temp = testing::dir();
        let volume = temp.path().join("volume");
        fs::create_dir_all(volume.join("dir")).expect("mkdir");
        fs::write(temp.path().join("outside"), "s3cret").expect("write");
        fs::write(volume.join("dir/env"), "A='1'").expect("write");
        let link = |target: &str, name: &str| symlink(target, volume.join(name)).expect("link");
        link("dir/env", "inside");
        link("../outside", "up");
        link("dir/../../outside", "deep");
        link("..", "parent");
        link(temp.path().join("outside").to_str().expect("text"), "absolute");
        link("/proc/self/environ", "magic");
        link("loop", "loop");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            volume.join("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .expect("a pipe that nobody writes to");
        let read = |path: &str| read_beneath(&volume, path, 16);
        assert_eq!(read("dir/env").expect("read"), Some(b"A='1'".to_vec()));
        assert_eq!(read("inside").expect("a link inside"), Some(b"A='1'".to_vec()));
        assert_eq!(read("absent").expect("read"), None);
        for path in ["up", "deep", "parent/outside", "absolute", "magic", "../outside", "/etc/passwd"] {
            let error = read(path).expect_err(path);
            assert!(error.to_string().contains("out of the volume"), "{path}: {error}");
        }
        for path in ["loop", "dir", "pipe", "dir/env/x"] {
            assert!(read(path).is_err(), "{path}");
        }
        // Far more than this machine's memory, were it read.
        File::options()
            .write(true)
            .open(volume.join("dir/env"))
            .expect("open")
            .set_len(1 << 42)
            .expect("grow");
        assert_eq!(read("dir/env").expect("read").map(|b| b.len()), Some(17));
        symlink(&volume, temp.path().join("swapped")).expect("link");
        assert!(
            read_beneath(&temp.path().join("swapped"), "dir/env", 16).is_err(),
            "a link in place of the volume"
        );
    }

    #[test]
    fn what_containers_write_into_these_files_is_counted() {
        let temp = testing::dir();
        let pod = RootDirs::new(temp.path()).pod(&PodUid::try_from("u").expect("uid"));
        assert_eq!(usage(&pod), (0, 0));
        let hosts = write_hosts(&pod, "127.0.0.1 localhost\n").expect("write");
        let log = create_termination_log(&pod, "main", "1").expect("create");
        let (small, inodes) = usage(&pod);
        assert_eq!(inodes, 4, "two files in two directories and one that is not counted");
        fs::write(hosts, vec![b'x'; 1 << 20]).expect("write");
        fs::write(log, vec![b'x'; 2 << 20]).expect("write");
        let grown = usage(&pod).0 - small;
        assert!((3 << 20..(3 << 20) + 65536).contains(&(grown + 8192)), "{grown}");
    }

    #[test]
    fn a_termination_log_is_writable_for_all_and_read_from_its_end() {
        let temp = testing::dir();
        let pod = RootDirs::new(temp.path()).pod(&PodUid::try_from("u").expect("uid"));
        let path = create_termination_log(&pod, "main", "1a2b").expect("create");
        assert_eq!(path, pod.container("main").join("1a2b"));
        assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o777, 0o666);
        assert_eq!(read_termination_message(&path).expect("empty"), "");
        fs::write(&path, format!("{}THE END", "x".repeat(10_000))).expect("write");
        let message = read_termination_message(&path).expect("long");
        assert_eq!(message.len(), MAX_MESSAGE_BYTES);
        assert!(message.ends_with("THE END"));
        fs::write(&path, [b'o', b'k', 0xff, 0xfe]).expect("write");
        assert_eq!(read_termination_message(&path).expect("bytes"), "ok\u{fffd}\u{fffd}");
    }

    #[test]
    fn a_link_a_pipe_or_a_directory_in_its_place_gives_no_byte() {
        let temp = testing::dir();
        let secret = temp.path().join("secret");
        fs::write(&secret, "secret").expect("write");
        let link = temp.path().join("link");
        symlink(&secret, &link).expect("link");
        assert!(read_termination_message(&link).is_err());
        let pipe = temp.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
            .expect("fifo");
        assert!(read_termination_message(&pipe).is_err(), "a pipe without a writer must not block");
        assert!(read_termination_message(temp.path()).is_err());
        assert_eq!(read_termination_message(&temp.path().join("absent")).expect("absent"), "");
    }

    #[test]
    fn a_log_gives_its_last_lines_without_time_stamps() {
        let temp = testing::dir();
        let log = temp.path().join("0.log");
        let line = |text: &str, tag: &str| format!("2026-01-02T03:04:05.000000006Z stderr {tag} {text}\n");
        fs::write(
            &log,
            [line("first half, ", "P"), line("second half", "F"), line("", "F"), line("end", "F")].concat(),
        )
        .expect("write");
        assert_eq!(read_log_message(&log).expect("read"), "first half, second half\n\nend\n");

        let many: String = (0..200).map(|i| line(&format!("{i}"), "F")).collect();
        fs::write(&log, many).expect("write");
        let message = read_log_message(&log).expect("read");
        assert_eq!(message.lines().count(), MAX_LOG_MESSAGE_LINES);
        assert!(message.starts_with("120\n") && message.ends_with("199\n"), "{message}");

        let wide: String = (0..100).map(|_| line(&"y".repeat(5000), "F")).collect();
        fs::write(&log, wide).expect("write");
        assert_eq!(read_log_message(&log).expect("read").len(), MAX_LOG_MESSAGE_BYTES);
    }
}
