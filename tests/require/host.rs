//! Rights and programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use crate::Missing;

pub fn root() -> Result<(), Missing> {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err(Missing::new("root", "run as root (sudo -E make test)")),
    }
}

/// Where a program is. `/usr/sbin` counts as searched: some are only there.
pub fn program(name: &str) -> Result<PathBuf, Missing> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    dirs.map(|dir| dir.join(name)).find(|file| file.is_file()).ok_or_else(|| {
        Missing::new(format!("the program {name}"), "packaging/deps.sh test installs it on Debian, as root")
    })
}

/// Network namespaces and interfaces in them, which take root and the rights that a container's root may lack.
pub fn network_namespaces() -> Result<(), Missing> {
    static POSSIBLE: LazyLock<bool> =
        LazyLock::new(|| unshared(&["--net"], "ip link add probe0 type veth peer name probe1"));
    root()?;
    program("ip")?;
    privilege(*POSSIBLE, "network namespaces", "CAP_SYS_ADMIN and CAP_NET_ADMIN")
}

/// Mounting, seen by nobody else.
pub fn mounts() -> Result<(), Missing> {
    static POSSIBLE: LazyLock<bool> = LazyLock::new(|| unshared(&["--mount"], "mount -t tmpfs probe /mnt"));
    root()?;
    privilege(*POSSIBLE, "mounts", "CAP_SYS_ADMIN")
}

/// Cgroups that can be read, of either version.
pub fn mounted_cgroups() -> Result<(), Missing> {
    let files = ["/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/memory/tasks"].map(Path::new);
    match files.iter().any(|file| file.exists()) {
        true => Ok(()),
        false => Err(Missing::new(
            "cgroups",
            "mount them at /sys/fs/cgroup; a container sees them where it is given them",
        )),
    }
}

/// Cgroups that can be made, of either version.
pub fn cgroups() -> Result<(), Missing> {
    root()?;
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/memory"].map(Path::new);
    let probe = format!("keelson-probe-{}", std::process::id());
    let possible = roots.iter().any(|root| {
        let dir = root.join(&probe);
        std::fs::create_dir(&dir).is_ok() && std::fs::remove_dir(&dir).is_ok()
    });
    privilege(possible, "cgroups that can be made", "/sys/fs/cgroup writable")
}

fn privilege(possible: bool, what: &str, rights: &str) -> Result<(), Missing> {
    match possible {
        true => Ok(()),
        false => Err(Missing::new(what, format!("run where root has {rights}"))),
    }
}

fn unshared(namespaces: &[&str], line: &str) -> bool {
    let mut command = Command::new("unshare");
    command.args(namespaces).args(["sh", "-c", line]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
