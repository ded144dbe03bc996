//! The cgroups of a run: one top-level name in every hierarchy, of either version, made before and removed after it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// What the names of all runs start with; the number of the outermost process follows, then the run's own.
pub const PREFIX: &str = "keelson-test-";

const MOUNT: &str = "/sys/fs/cgroup";

/// The root directories of all hierarchies: one for a machine on version 2, one a controller on version 1.
pub fn hierarchies() -> Vec<PathBuf> {
    let root = Path::new(MOUNT);
    if root.join("cgroup.controllers").exists() {
        return vec![root.into()];
    }
    let Ok(entries) = fs::read_dir(root) else { return vec![] };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
        .map(|e| e.path())
        .filter(|p| p.join("cgroup.procs").exists())
        .collect();
    found.sort();
    found
}

/// Makes the named cgroup everywhere, able to hold limits.
pub fn make(name: &str) -> Result<()> {
    for root in hierarchies() {
        let dir = root.join(name);
        fs::create_dir_all(&dir).with_context(|| format!("cannot make cgroup {}", dir.display()))?;
        if root.ends_with("cpuset") {
            // On version 1 a new cpuset is empty, and nothing can enter it until it has processors and memory.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let value = fs::read_to_string(root.join(file)).context("cannot read the root cpuset")?;
                fs::write(dir.join(file), value.trim())
                    .with_context(|| format!("cannot fill {}", dir.display()))?;
            }
        }
        if root == Path::new(MOUNT) {
            let all = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            for controller in all.split_whitespace() {
                // The root may refuse one that another owner holds; what is missing shows where it is needed.
                let _ = fs::write(root.join("cgroup.subtree_control"), format!("+{controller}"));
                let _ = fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"));
            }
        }
    }
    Ok(())
}

/// Moves a process into a cgroup of that name, which may hold so much memory: what it takes from then on counts.
pub fn limit_memory(name: &str, process: u32, bytes: u64) -> Result<()> {
    let unified = |root: &Path| root.join("cgroup.controllers").exists();
    let root = hierarchies().into_iter().find(|root| unified(root) || root.ends_with("memory"));
    let root = root.context("this machine has no cgroups for memory")?;
    let dir = root.join(name);
    fs::create_dir_all(&dir).with_context(|| format!("cannot make cgroup {}", dir.display()))?;
    let limit = if unified(&root) { "memory.max" } else { "memory.limit_in_bytes" };
    for (file, value) in [(limit, bytes), ("cgroup.procs", u64::from(process))] {
        let file = dir.join(file);
        fs::write(&file, value.to_string()).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// A value as the kernel holds it, from the file of whichever version of cgroups this machine has.
pub fn value(cgroup: &str, controller: &str, first: &str, second: &str) -> Result<String> {
    let roots = hierarchies();
    let files = roots.iter().filter(|r| r.ends_with(controller)).map(|r| r.join(cgroup).join(first));
    let files = files.chain(roots.iter().map(|r| r.join(cgroup).join(second)));
    let found = files.filter_map(|f| fs::read_to_string(f).ok()).next();
    Ok(found.with_context(|| format!("{cgroup} has neither {first} nor {second}"))?.trim().to_owned())
}

/// All cgroups below the named one, relative to their hierarchy, without doubles.
pub fn below(name: &str) -> BTreeSet<String> {
    fn walk(root: &Path, dir: &Path, found: &mut BTreeSet<String>) {
        let Ok(entries) = fs::read_dir(dir) else { return };
        for entry in entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
            if let Ok(relative) = entry.path().strip_prefix(root) {
                found.insert(relative.to_string_lossy().into_owned());
            }
            walk(root, &entry.path(), found);
        }
    }
    let mut found = BTreeSet::new();
    for root in hierarchies() {
        walk(&root, &root.join(name), &mut found);
    }
    found
}

/// Kills what is left in the named cgroup and removes it everywhere. What the kernel still holds on to is left.
pub fn remove(name: &str) {
    fn rmdirs(dir: &Path) {
        if let Ok(entries) = fs::read_dir(dir) {
            for entry in entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
                rmdirs(&entry.path());
            }
        }
        let _ = fs::remove_dir(dir);
    }
    for root in hierarchies() {
        rmdirs(&root.join(name));
    }
}

/// Removes the cgroups of runs that were killed before they could do it.
pub fn sweep() {
    for root in hierarchies() {
        let Ok(entries) = fs::read_dir(&root) else { continue };
        for name in entries.flatten().filter_map(|e| e.file_name().into_string().ok()) {
            let owner = name
                .strip_prefix(PREFIX)
                .and_then(|n| n.split('-').next())
                .and_then(|pid| pid.parse::<u32>().ok());
            if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                remove(&name);
            }
        }
    }
}
