//! Which cgroups a machine has: one tree for all controllers (v2), or a tree a controller (v1). A machine that has v1
//! controllers and an empty v2 tree beside them counts as v1.

use std::collections::BTreeSet;
use std::fs::{self, FileType, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::CgroupError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub version: Version,
    pub hierarchies: Vec<Hierarchy>,
    /// The v2 tree of a v1 machine: a runtime may have made cgroups there, the agent makes none.
    beside: Option<PathBuf>,
}

#[derive(Debug, Clone)]
pub(super) struct Hierarchy {
    pub path: PathBuf,
    pub controllers: BTreeSet<String>,
}

/// What pods may need of a v2 tree. Others are left as they are.
const DELEGATED: [&str; 6] = ["cpu", "cpuset", "memory", "pids", "io", "hugetlb"];

impl Layout {
    pub fn detect(mount: &Path) -> Result<Self, CgroupError> {
        if let Ok(text) = fs::read_to_string(mount.join("cgroup.controllers")) {
            let controllers = text.split_whitespace().map(str::to_owned).collect();
            let hierarchies = vec![Hierarchy { path: mount.to_owned(), controllers }];
            return Ok(Self { version: Version::V2, hierarchies, beside: None });
        }
        let mut hierarchies: Vec<Hierarchy> = Vec::new();
        let mut beside = None;
        for name in entries(mount, |_| true).unwrap_or_default() {
            // cpu is often a link to cpu,cpuacct; both lead to one tree.
            let Ok(path) = mount.join(&name).canonicalize() else { continue };
            if path.join("cgroup.controllers").exists() {
                beside = Some(path);
            } else if path.join("cgroup.procs").exists() && !hierarchies.iter().any(|h| h.path == path) {
                let controllers = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
                let controllers = controllers.split(',').map(str::to_owned).collect();
                hierarchies.push(Hierarchy { path, controllers });
            }
        }
        if hierarchies.is_empty() {
            return Err(CgroupError::NotMounted(mount.to_owned()));
        }
        Ok(Self { version: Version::V1, hierarchies, beside })
    }

    /// The tree in which a controller works.
    pub fn of(&self, controller: &str) -> Option<&Hierarchy> {
        self.hierarchies.iter().find(|h| h.controllers.contains(controller))
    }

    /// Every tree in which something of a pod may be left.
    pub fn everywhere(&self) -> impl Iterator<Item = &Path> {
        self.hierarchies.iter().map(|h| h.path.as_path()).chain(self.beside.as_deref())
    }

    /// Makes a cgroup and those above it, fit to hold processes and to have limits.
    pub fn make(&self, relative: &Path) -> Result<(), CgroupError> {
        for hierarchy in &self.hierarchies {
            let mut here = hierarchy.path.clone();
            for part in relative.components() {
                if self.version == Version::V2 {
                    hand_down_controllers(&here, &hierarchy.controllers)?;
                }
                let parent = here.clone();
                here.push(part);
                match fs::create_dir(&here) {
                    Ok(()) => {}
                    Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(e) => return Err(CgroupError::File { operation: "create", path: here, source: e }),
                }
                if self.version == Version::V1 && hierarchy.controllers.contains("cpuset") {
                    inherit_cpuset(&parent, &here)?;
                }
            }
        }
        Ok(())
    }
}

/// In v2 a cgroup has only the controllers that its parent hands down.
fn hand_down_controllers(dir: &Path, offered: &BTreeSet<String>) -> Result<(), CgroupError> {
    let file = dir.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&file).unwrap_or_default();
    let here = fs::read_to_string(dir.join("cgroup.controllers")).ok();
    for controller in DELEGATED {
        let available = match &here {
            Some(text) => text.split_whitespace().any(|c| c == controller),
            None => offered.contains(controller),
        };
        if available && !enabled.split_whitespace().any(|c| c == controller) {
            append(&file, &format!("+{controller}"))?;
        }
    }
    Ok(())
}

/// In v1 a new cpuset is empty, and nothing may run in an empty one.
fn inherit_cpuset(parent: &Path, child: &Path) -> Result<(), CgroupError> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let own = fs::read_to_string(child.join(file)).unwrap_or_default();
        if own.trim().is_empty()
            && let Ok(inherited) = fs::read_to_string(parent.join(file))
            && !inherited.trim().is_empty()
        {
            write(&child.join(file), inherited.trim())?;
        }
    }
    Ok(())
}

/// Sets a value. On a real cgroup the file is there, and creating it is refused by the kernel.
pub(super) fn write(path: &Path, value: &str) -> Result<(), CgroupError> {
    put(path, value, OpenOptions::new().write(true).create(true).truncate(true))
}

fn append(path: &Path, value: &str) -> Result<(), CgroupError> {
    put(path, &format!("{value}\n"), OpenOptions::new().append(true).create(true))
}

fn put(path: &Path, value: &str, how: &OpenOptions) -> Result<(), CgroupError> {
    how.open(path).and_then(|mut file| file.write_all(value.as_bytes())).map_err(|source| CgroupError::File {
        operation: "write",
        path: path.to_owned(),
        source,
    })
}

/// The names of the cgroups directly below one; none if it is not there.
pub(super) fn subdirectories(path: &Path) -> Result<Vec<String>, CgroupError> {
    // A cgroup has some fifty files; the listing itself sets them apart from cgroups.
    match entries(path, |kind| kind.is_dir()) {
        Ok(names) => Ok(names),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(vec![]),
        Err(source) => Err(CgroupError::File { operation: "list", path: path.to_owned(), source }),
    }
}

fn entries(path: &Path, wanted: impl Fn(FileType) -> bool) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if wanted(entry.file_type()?) {
            names.extend(entry.file_name().into_string().ok());
        }
    }
    names.sort();
    Ok(names)
}
