//! Where containers' logs lie: a directory a pod, and beside it a flat directory of links that log shippers read. Below
//! this module they are read, followed and rotated.

mod followers;
mod open;
mod reader;
mod rotate;
mod stream;
mod watch;
mod writers;

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use keelson_core::ids::{ContainerId, PodUid};
use keelson_core::logs::attempt_of;

use crate::dirs;
use crate::path_error::{At, PathError, absent_is_fine};
use crate::tree;

pub use followers::Followers;
pub use reader::LogReader;
pub use rotate::{Rotation, size};
pub use stream::{Follow, reading, stream};
pub use watch::LogWatch;
pub use writers::{Writers, writers};

/// /var/log/pods and /var/log/containers, unless set otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogDirs {
    pods: PathBuf,
    containers: PathBuf,
}

/// Whose logs a directory holds, as its name tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOwner {
    pub namespace: String,
    pub name: String,
    pub uid: PodUid,
}

impl LogDirs {
    pub fn new(pods: impl Into<PathBuf>, containers: impl Into<PathBuf>) -> Self {
        Self { pods: pods.into(), containers: containers.into() }
    }

    pub fn ensure(&self) -> Result<(), PathError> {
        dirs::make(&self.pods, 0o755)?;
        dirs::make(&self.containers, 0o755)
    }

    /// NS_NAME_UID. No part may contain an underscore or a slash, which the API sees to.
    pub fn pod(&self, namespace: &str, name: &str, uid: &PodUid) -> PathBuf {
        self.pods.join(format!("{namespace}_{name}_{uid}"))
    }

    /// Makes the directory for a pod's logs, which the runtime is told with the sandbox.
    pub fn ensure_pod(&self, namespace: &str, name: &str, uid: &PodUid) -> Result<(), PathError> {
        dirs::make(&self.pod(namespace, name, uid), 0o755)
    }

    /// Makes the directory for one container's logs and returns it.
    pub fn ensure_container(
        &self,
        namespace: &str,
        name: &str,
        uid: &PodUid,
        container: &str,
    ) -> Result<PathBuf, PathError> {
        let path = self.pod(namespace, name, uid).join(container);
        dirs::make(&path, 0o755)?;
        Ok(path)
    }

    /// The names of what lies beside a container's logs; none where it never had one.
    pub fn container_files(
        &self,
        namespace: &str,
        name: &str,
        uid: &PodUid,
        container: &str,
    ) -> Result<Vec<String>, PathError> {
        entries(&self.pod(namespace, name, uid).join(container))
    }

    /// Removes the logs of a container's instances before this one, and the links that led to them.
    pub fn remove_older(
        &self,
        namespace: &str,
        name: &str,
        uid: &PodUid,
        container: &str,
        attempt: u32,
    ) -> Result<(), PathError> {
        let dir = self.pod(namespace, name, uid).join(container);
        let files = entries(&dir)?;
        let older: Vec<_> =
            files.iter().filter(|file| attempt_of(file).is_some_and(|of| of < attempt)).collect();
        for file in &older {
            let path = dir.join(file);
            absent_is_fine(fs::remove_file(&path)).at("remove the log", &path)?;
        }
        if !older.is_empty() {
            self.remove_dead_links()?;
        }
        Ok(())
    }

    pub fn remove_pod(&self, namespace: &str, name: &str, uid: &PodUid) -> Result<(), PathError> {
        tree::remove(&self.pod(namespace, name, uid))
    }

    /// The pods that have a log directory. Names that are no pod's are left out.
    pub fn list_pods(&self) -> Result<Vec<LogOwner>, PathError> {
        let mut found = Vec::new();
        for name in entries(&self.pods)? {
            let parts: Vec<&str> = name.split('_').collect();
            if let [namespace, name, uid] = parts[..]
                && let Ok(uid) = PodUid::try_from(uid)
            {
                found.push(LogOwner { namespace: namespace.into(), name: name.into(), uid });
            }
        }
        Ok(found)
    }

    /// POD_NS_CONTAINER-ID.log, kept below the length that a file name may have.
    pub fn link_path(&self, namespace: &str, pod: &str, container: &str, id: &ContainerId) -> PathBuf {
        const SUFFIX: usize = ".log".len();
        let mut prefix = format!("{pod}_{namespace}_{container}");
        let room = 255usize.saturating_sub(SUFFIX + 1 + id.as_str().len());
        let mut end = prefix.len().min(room);
        while !prefix.is_char_boundary(end) {
            end -= 1;
        }
        prefix.truncate(end);
        self.containers.join(format!("{prefix}-{id}.log"))
    }

    /// Links to a container's log file, which may not be there yet.
    pub fn link(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        id: &ContainerId,
        log: &Path,
    ) -> Result<(), PathError> {
        let link = self.link_path(namespace, pod, container, id);
        if fs::read_link(&link).is_ok_and(|target| target == log) {
            return Ok(());
        }
        absent_is_fine(fs::remove_file(&link)).at("replace the link", &link)?;
        match symlink(log, &link) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                dirs::make(&self.containers, 0o755)?;
                symlink(log, &link).at("make the link", &link)
            }
            other => other.at("make the link", &link),
        }
    }

    pub fn unlink(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        id: &ContainerId,
    ) -> Result<(), PathError> {
        let link = self.link_path(namespace, pod, container, id);
        absent_is_fine(fs::remove_file(&link)).at("remove the link", &link)
    }

    /// Removes the links whose log file is gone, and returns how many there were.
    pub fn remove_dead_links(&self) -> Result<usize, PathError> {
        let mut removed = 0;
        for name in entries(&self.containers)? {
            let link = self.containers.join(name);
            let is_link = link.symlink_metadata().is_ok_and(|m| m.is_symlink());
            let dead = fs::metadata(&link).is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
            if is_link && dead {
                absent_is_fine(fs::remove_file(&link)).at("remove the link", &link)?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

/// Removes a container's log file and what rotation has made of it: N.log, N.log.TIME, N.log.TIME.gz. Only names that
/// begin with the log's own are touched, and only in its directory.
pub fn remove_log(log: &Path) -> Result<(), PathError> {
    let (Some(dir), Some(name)) = (log.parent(), log.file_name().and_then(|n| n.to_str())) else {
        return Ok(());
    };
    for entry in entries(dir)? {
        if entry.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')) {
            let path = dir.join(entry);
            absent_is_fine(fs::remove_file(&path)).at("remove the log", &path)?;
        }
    }
    Ok(())
}

fn entries(dir: &Path) -> Result<Vec<String>, PathError> {
    let listing = match fs::read_dir(dir) {
        Ok(listing) => listing,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        Err(e) => return Err(PathError::new("list", dir, e)),
    };
    let mut names = Vec::new();
    for entry in listing {
        names.extend(entry.at("list", dir)?.file_name().into_string().ok());
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn directories_and_links_come_and_go() {
        let temp = testing::dir();
        let logs = LogDirs::new(temp.path().join("pods"), temp.path().join("containers"));
        let uid = PodUid::try_from("u-1").expect("uid");
        let id = ContainerId::try_from("abc").expect("id");
        let dir = logs.ensure_container("ns", "web", &uid, "main").expect("dir");
        assert_eq!(dir, temp.path().join("pods/ns_web_u-1/main"));
        let log = dir.join("0.log");
        logs.link("ns", "web", "main", &id, &log).expect("a link before its log");
        logs.link("ns", "web", "main", &id, &log).expect("again");
        let link = temp.path().join("containers/web_ns_main-abc.log");
        assert_eq!(fs::read_link(&link).expect("link"), log);
        assert!(logs.container_files("ns", "web", &uid, "other").expect("list").is_empty());
        fs::write(&log, "x").expect("write");
        assert_eq!(logs.container_files("ns", "web", &uid, "main").expect("list"), ["0.log"]);
        assert_eq!(logs.remove_dead_links().expect("scan"), 0);
        fs::create_dir(temp.path().join("pods/stray")).expect("mkdir");
        let owner = LogOwner { namespace: "ns".into(), name: "web".into(), uid: uid.clone() };
        assert_eq!(logs.list_pods().expect("list"), [owner]);
        logs.remove_pod("ns", "web", &uid).expect("remove");
        assert_eq!(logs.remove_dead_links().expect("scan"), 1);
        assert!(link.symlink_metadata().is_err());
        logs.unlink("ns", "web", "main", &id).expect("nothing left to unlink");
    }

    #[test]
    fn older_logs_go_with_their_links_and_the_newest_stays() {
        let temp = testing::dir();
        let logs = LogDirs::new(temp.path().join("pods"), temp.path().join("containers"));
        let uid = PodUid::try_from("u-1").expect("uid");
        let dir = logs.ensure_container("ns", "web", &uid, "main").expect("dir");
        for name in ["0.log", "1.log.20260102-030405.gz", "1.log", "2.log", "10.log", "notes"] {
            fs::write(dir.join(name), "x").expect("write");
        }
        for (id, log) in [("old", "1.log"), ("new", "2.log")] {
            let id = ContainerId::try_from(id).expect("id");
            logs.link("ns", "web", "main", &id, &dir.join(log)).expect("link");
        }
        logs.remove_older("ns", "web", &uid, "main", 2).expect("remove");
        assert_eq!(entries(&dir).expect("list"), ["10.log", "2.log", "notes"]);
        assert_eq!(entries(&temp.path().join("containers")).expect("list"), ["web_ns_main-new.log"]);
        logs.remove_older("ns", "web", &uid, "absent", 2).expect("nothing to remove");
    }

    #[test]
    fn a_log_goes_with_what_rotation_made_of_it() {
        let temp = testing::dir();
        for name in ["0.log", "0.log.20260102-030405", "0.log.20260102-030405.gz", "10.log", "1.log"] {
            fs::write(temp.path().join(name), "x").expect("write");
        }
        remove_log(&temp.path().join("0.log")).expect("remove");
        assert_eq!(entries(temp.path()).expect("list"), ["1.log", "10.log"]);
        remove_log(&temp.path().join("absent/0.log")).expect("nothing to remove");
    }

    #[test]
    fn a_long_name_still_makes_a_file_name() {
        let logs = LogDirs::new("/p", "/c");
        let id = ContainerId::try_from("f".repeat(64)).expect("id");
        let path = logs.link_path(&"n".repeat(63), &"p".repeat(253), &"c".repeat(63), &id);
        let name = path.file_name().expect("name").to_str().expect("text");
        assert_eq!(name.len(), 255);
        assert!(name.ends_with(&format!("-{id}.log")));
    }
}
