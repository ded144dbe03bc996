//! Each suite runs in network, mount and process namespaces of its own.
//!
//! That is what lets several run at once, and what guarantees that nothing outlives them: when the last process of the
//! namespaces is gone, so are the interfaces, the rules, the mounts and every process, also after `kill -9`. Only cgroups
//! are not covered; they carry the run's name and are removed from outside.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{WaitOptions, wait};

use crate::cgroups;

const STAGE: &str = "KEELSON_RIG_STAGE";
const CGROUP: &str = "KEELSON_RIG_CGROUP";

/// Where this process stands: a suite re-executes the program twice on its way in.
pub enum Stage {
    /// On the machine, as it was started.
    Outside,
    /// The first process of the namespaces: sets them up and reaps orphans.
    Init,
    /// In the namespaces, doing the work.
    Inside,
}

pub fn stage() -> Stage {
    match std::env::var(STAGE).as_deref() {
        Ok("init") => Stage::Init,
        Ok("inside") => Stage::Inside,
        _ => Stage::Outside,
    }
}

/// The cgroup under which everything of this run lives; also a name that no other run on this machine has.
pub fn cgroup_name() -> String {
    std::env::var(CGROUP).unwrap_or_else(|_| format!("{}{}", cgroups::PREFIX, std::process::id()))
}

/// Runs this program again inside fresh namespaces. Returns the process, with its output to be read, and the cgroup that is
/// to be removed after it.
pub fn enter(variables: Vec<(String, OsString)>, dir: &Path) -> Result<(Child, String)> {
    cgroups::sweep();
    let program = std::env::current_exe().context("cannot find this program")?;
    // By the number of this process a later run knows whether the cgroup still has an owner.
    let unique =
        dir.file_name().and_then(|n| n.to_str()).and_then(|n| n.rsplit('-').next()).unwrap_or_default();
    let cgroup = format!("{}{}-{unique}", cgroups::PREFIX, std::process::id());
    let child = Command::new("unshare")
        .args([
            "--mount",
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--propagation",
            "private",
        ])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(STAGE, "init")
        .env(CGROUP, &cgroup)
        .envs(variables)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run unshare, which puts the tests into namespaces of their own")?;
    Ok((child, cgroup))
}

/// The first process of the namespaces. It prepares them, starts the suite proper and reaps whatever is orphaned, which
/// containerd's shims are from birth.
pub fn init() -> ExitCode {
    if let Err(e) = prepare() {
        println!("FAILED: cannot prepare the namespaces: {e:#}");
        return ExitCode::FAILURE;
    }
    let child = std::env::current_exe().and_then(|program| {
        Command::new(program).args(std::env::args_os().skip(1)).env(STAGE, "inside").spawn()
    });
    let child = match child {
        Ok(child) => child.id(),
        Err(e) => {
            println!("FAILED: cannot start the suite inside its namespaces: {e}");
            return ExitCode::FAILURE;
        }
    };
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get().unsigned_abs() == child => {
                return ExitCode::from(status.exit_status().and_then(|c| u8::try_from(c).ok()).unwrap_or(1));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return ExitCode::FAILURE,
        }
    }
}

/// A machine in small: mounts that propagate to containers but not outwards, empty /run and /var/log, and one network
/// interface with a default route, from which an agent learns its address.
fn prepare() -> Result<()> {
    run("mount", &["--make-rshared", "/"])?;
    for fresh in ["/run", "/var/log"] {
        run("mount", &["-t", "tmpfs", "-o", "mode=755", "rig", fresh])?;
    }
    std::fs::create_dir_all("/run/lock")?;
    for line in [
        "link set lo up",
        "link add rig0 type veth peer name rig1",
        "addr add 192.0.2.10/24 dev rig0",
        "addr add 2001:db8::10/64 dev rig0 nodad",
        "link set rig0 up",
        "link set rig1 up",
        "route add default via 192.0.2.1 dev rig0",
    ] {
        run("ip", &line.split(' ').collect::<Vec<_>>())?;
    }
    Ok(())
}

/// The address of the one interface that stands for the machine's.
pub const NODE_IP: &str = "192.0.2.10";

fn run(program: &str, args: &[&str]) -> Result<()> {
    let out = Command::new(program).args(args).output().with_context(|| format!("cannot run {program}"))?;
    ensure!(
        out.status.success(),
        "{program} {}: {}",
        args.join(" "),
        String::from_utf8_lossy(&out.stderr).trim()
    );
    Ok(())
}
