//! The machine as a whole.

use std::fs;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use keelson_core::stats::usage::{interfaces, pressure};
use keelson_core::stats::{Interface, Usage};

use crate::cgroup::{Cgroups, Detail};

#[derive(Debug, Clone)]
pub struct NodeUsage {
    pub usage: Usage,
    pub booted: Timestamp,
    pub interfaces: Vec<Interface>,
}

/// `proc` is /proc, unless a test has its own.
pub fn read_node(proc: &Path, cgroups: &Cgroups) -> NodeUsage {
    let text = |file: &str| fs::read_to_string(proc.join(file)).unwrap_or_default();
    let mut usage = cgroups.usage(Path::new(""), Detail::CpuAndMemory).unwrap_or_default();
    let meminfo = text("meminfo");
    let bytes = |key: &str| kilobytes(&meminfo, key);
    if usage.memory.is_none() {
        // The root of cgroup v2 does not say it.
        usage.memory = difference(bytes("MemTotal"), bytes("MemFree"));
        usage.working_set = difference(usage.memory, bytes("Inactive(file)"));
    }
    usage.memory_limit = bytes("MemTotal");
    usage.swap = difference(bytes("SwapTotal"), bytes("SwapFree"));
    usage.swap_limit = bytes("SwapTotal");
    usage.pressures.cpu = pressure(&text("pressure/cpu"));
    usage.pressures.memory = pressure(&text("pressure/memory"));
    usage.pressures.io = pressure(&text("pressure/io"));
    let booted = text("stat").lines().find_map(|l| l.strip_prefix("btime ")?.trim().parse().ok());
    NodeUsage {
        usage,
        booted: booted.and_then(|s| Timestamp::from_second(s).ok()).unwrap_or_default(),
        interfaces: interfaces(&text("net/dev")),
    }
}

/// The most processes there can be, and how many there are.
pub fn processes(proc: &Path) -> (Option<u64>, Option<u64>) {
    let word = |file: &str| fs::read_to_string(proc.join(file)).ok();
    let number = |file: &str| word(file)?.trim().parse::<u64>().ok();
    let most = [number("sys/kernel/pid_max"), number("sys/kernel/threads-max")].into_iter().flatten().min();
    // The fourth word is RUNNING/ALL.
    let now = word("loadavg").and_then(|t| t.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok());
    (most, now)
}

/// The cgroup that this process is in, below the hierarchies; `None` if that is the root.
pub fn own_cgroup(proc: &Path) -> Option<PathBuf> {
    let text = fs::read_to_string(proc.join("self/cgroup")).ok()?;
    let of = |controller: &str| {
        text.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            controllers.split(',').any(|c| c == controller).then_some(path)
        })
    };
    let path = of("memory").or_else(|| of(""))?.trim_start_matches('/');
    (!path.is_empty() && !path.split('/').any(|part| part == "..")).then(|| PathBuf::from(path))
}

fn kilobytes(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn difference(all: Option<u64>, part: Option<u64>) -> Option<u64> {
    Some(all?.saturating_sub(part?))
}

#[cfg(test)]
mod tests {
    use keelson_require::{mounted_cgroups, require};

    use super::*;
    use crate::cgroup::{CgroupSettings, Driver};

    #[test]
    fn this_machine_says_what_it_uses() {
        require!(mounted_cgroups());
        let cgroups = Cgroups::detect(CgroupSettings::new(Driver::Cgroupfs)).expect("cgroups");
        let node = read_node(Path::new("/proc"), &cgroups);
        let usage = &node.usage;
        assert!(usage.cpu_nanos.is_some_and(|n| n > 0));
        assert!(usage.working_set > Some(0) && usage.working_set <= usage.memory, "{usage:?}");
        assert!(usage.memory < usage.memory_limit);
        assert!(node.booted > Timestamp::UNIX_EPOCH && node.booted < Timestamp::now());
        assert!(node.interfaces.iter().any(|i| i.name == "lo"));
        let (most, now) = processes(Path::new("/proc"));
        assert!(now > Some(0) && now < most, "{now:?} of {most:?}");
    }
}
