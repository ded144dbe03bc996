//! The ids that the machine sets aside for pods with users of their own, and the file in which each such pod's are kept.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bounded;
use crate::dirs::{self, PodDirs};
use crate::path_error::{At, PathError, absent_is_fine};

/// Whose subordinate ids are the pods'.
const USER: &str = "kubelet";
const PROGRAM: &str = "getsubids";
/// A record has some hundred bytes.
const MOST_BYTES: u64 = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum SubidsError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(
        "user {USER} exists, but {} does not say which ids are its: {problem}; give it one range in /etc/subuid and the same in /etc/subgid, or remove the user", program.display()
    )]
    Refused { program: PathBuf, problem: String },
    #[error(
        "the subordinate ids of user {USER} and of its group differ ({uids:?} and {gids:?}): make them the same in /etc/subuid and /etc/subgid"
    )]
    Differ { uids: String, gids: String },
}

/// What `getsubids` prints for user kubelet. `None` without that user or that program: then nothing is set aside.
pub fn subordinate_ids(passwd: &Path, search: &OsStr) -> Result<Option<String>, SubidsError> {
    let users = match fs::read_to_string(passwd) {
        Ok(users) => users,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(PathError::new("read", passwd, e).into()),
    };
    if !users.lines().any(|line| line.split(':').next() == Some(USER)) {
        return Ok(None);
    }
    let Some(program) = std::env::split_paths(search).map(|dir| dir.join(PROGRAM)).find(|p| executable(p))
    else {
        return Ok(None);
    };
    let uids = ask(&program, &[USER])?;
    let gids = ask(&program, &["-g", USER])?;
    if uids != gids {
        return Err(SubidsError::Differ { uids, gids });
    }
    Ok(Some(uids))
}

fn executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

fn ask(program: &Path, args: &[&str]) -> Result<String, SubidsError> {
    let refused = |problem: String| SubidsError::Refused { program: program.to_owned(), problem };
    let out = Command::new(program).args(args).output().map_err(|e| refused(e.to_string()))?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        return Err(refused(format!("{}: {}", out.status, said.trim())));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The pod's record as it lies there. `None` if there is none.
pub fn read_record(pod: &PodDirs) -> Result<Option<Vec<u8>>, PathError> {
    let path = pod.user_namespace();
    let Some(mut file) = bounded::open(&path).at("read", &path)? else { return Ok(None) };
    bounded::head(&mut file, MOST_BYTES).at("read", &path).map(Some)
}

/// Written as a whole or not at all, and lasting: a machine that loses power must not give the pod's ids to another one while
/// its files are still there.
pub fn write_record(pod: &PodDirs, record: &str) -> Result<(), PathError> {
    dirs::make(pod.path(), 0o750)?;
    let (path, fresh) = (pod.user_namespace(), pod.path().join(".userns"));
    absent_is_fine(fs::remove_file(&fresh)).at("remove", &fresh)?;
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh).at("create", &fresh)?;
    file.write_all(record.as_bytes()).and_then(|()| file.sync_all()).at("write", &fresh)?;
    fs::rename(&fresh, &path).at("replace", &path)?;
    File::open(pod.path()).and_then(|dir| dir.sync_all()).at("sync", pod.path())
}

pub fn remove_record(pod: &PodDirs) -> Result<(), PathError> {
    let path = pod.user_namespace();
    absent_is_fine(fs::remove_file(&path)).at("remove", &path)
}

#[cfg(test)]
mod tests {
    use keelson_core::ids::PodUid;

    use super::*;
    use crate::dirs::RootDirs;
    use crate::testing;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nkubelet:x:900:900::/nonexistent:/usr/sbin/nologin\n";

    fn asked(passwd: &str, program: Option<&str>) -> Result<Option<String>, SubidsError> {
        let temp = testing::dir();
        let users = temp.path().join("passwd");
        fs::write(&users, passwd).expect("passwd");
        if let Some(script) = program {
            let path = temp.path().join(PROGRAM);
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("program");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("mode");
        }
        subordinate_ids(&users, temp.path().as_os_str())
    }

    #[test]
    fn the_ids_of_user_kubelet_are_asked_for_where_there_is_one() {
        let line = "0: kubelet 65536 13107200";
        let answer = asked(PASSWD, Some(&format!("echo '{line}'"))).expect("an answer");
        assert_eq!(answer.as_deref(), Some("0: kubelet 65536 13107200\n"));
        assert_eq!(asked(PASSWD, None).expect("no program"), None);
        let others = "root:x:0:0::/:/bin/sh\nkubelet2:x:1:1::/:/bin/sh\n";
        assert_eq!(asked(others, Some("exit 1")).expect("no such user"), None);
    }

    #[test]
    fn what_cannot_be_right_is_an_error_that_says_what_to_do() {
        let refused = asked(PASSWD, Some("echo 'remote is down' >&2; exit 1")).expect_err("it failed");
        let text = refused.to_string();
        assert!(text.contains("remote is down") && text.contains("/etc/subuid"), "{text}");
        let differing = asked(PASSWD, Some("echo $#")).expect_err("they differ");
        assert!(matches!(differing, SubidsError::Differ { .. }), "{differing}");
    }

    #[test]
    fn a_record_is_written_read_and_removed() {
        let temp = testing::dir();
        let pod = RootDirs::new(temp.path()).pod(&PodUid::try_from("u-1").expect("uid"));
        assert_eq!(read_record(&pod).expect("none"), None);
        // What an agent that died in between has left.
        fs::create_dir_all(pod.path()).expect("mkdir");
        fs::write(pod.path().join(".userns"), "half").expect("write");
        for text in ["one", "another"] {
            write_record(&pod, text).expect("write");
            assert_eq!(read_record(&pod).expect("read").as_deref(), Some(text.as_bytes()));
        }
        assert_eq!(fs::read_dir(pod.path()).expect("list").count(), 1);
        let mode = fs::metadata(pod.user_namespace()).expect("stat").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        remove_record(&pod).expect("remove");
        remove_record(&pod).expect("again");
        assert_eq!(read_record(&pod).expect("none"), None);
    }
}
