//! What a cgroup uses, read from its files when somebody asks. Both versions give the same values here.

use std::path::Path;

use keelson_core::stats::Usage;
use keelson_core::stats::usage::{Device, pressure};

use super::cgroup_dir::CgroupDir;
use super::{Cgroups, Version};

/// How much is read. Every file costs a few system calls, and there are many cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    CpuAndMemory,
    /// And pressure, for a summary.
    Summary,
    /// And limits, throttling and devices, for a dashboard.
    Everything,
}

/// A limit above this is none: the kernel's "unlimited" is the largest number of pages.
const UNLIMITED: u64 = 1 << 62;
/// The kernel's unit of accounted user and system time on every architecture that runs containers: 1/100 s.
const TICK_NANOS: u64 = 10_000_000;

impl Cgroups {
    /// What the cgroup at a path below the hierarchies uses. `None` if there is no such cgroup.
    pub fn usage(&self, relative: &Path, detail: Detail) -> Option<Usage> {
        self.at(relative).usage("", detail)
    }
}

impl CgroupDir<'_> {
    /// What the cgroup of that name below this one uses, or this one itself if it is empty.
    pub fn usage(&mut self, below: &str, detail: Detail) -> Option<Usage> {
        let version = self.version();
        let mut reader = Reader { dir: self, below };
        let usage = match version {
            Version::V1 => reader.v1(detail),
            Version::V2 => reader.v2(detail),
        };
        (usage.cpu_nanos.is_some() || usage.memory.is_some()).then_some(usage)
    }
}

struct Reader<'a, 'b> {
    dir: &'a mut CgroupDir<'b>,
    below: &'a str,
}

impl Reader<'_, '_> {
    fn v2(&mut self, detail: Detail) -> Usage {
        let mut usage = Usage::default();
        if let Some(text) = self.file("cpu", "cpu.stat") {
            let micros = |key| value(text, key).map(|n| n.saturating_mul(1000));
            usage.cpu_nanos = micros("usage_usec");
            usage.cpu_user_nanos = micros("user_usec");
            usage.cpu_system_nanos = micros("system_usec");
            usage.cfs_periods = value(text, "nr_periods");
            usage.cfs_throttled_periods = value(text, "nr_throttled");
            usage.cfs_throttled_nanos = micros("throttled_usec");
        }
        usage.memory = self.number("memory", "memory.current");
        if let Some(text) = self.file("memory", "memory.stat") {
            let inactive;
            [
                inactive,
                usage.rss,
                usage.cache,
                usage.mapped_file,
                usage.kernel,
                usage.page_faults,
                usage.major_page_faults,
            ] = values(
                text,
                ["inactive_file", "anon", "file", "file_mapped", "kernel", "pgfault", "pgmajfault"],
            );
            usage.working_set = usage.memory.map(|m| m.saturating_sub(inactive.unwrap_or(0)));
        }
        usage.memory_limit = self.limit("memory", "memory.max");
        usage.swap = self.number("memory", "memory.swap.current");
        usage.swap_limit = self.limit("memory", "memory.swap.max");
        if detail >= Detail::Summary {
            usage.pressures.cpu = self.file("cpu", "cpu.pressure").and_then(pressure);
            usage.pressures.memory = self.file("memory", "memory.pressure").and_then(pressure);
            usage.pressures.io = self.file("io", "io.pressure").and_then(pressure);
        }
        if detail == Detail::Everything {
            usage.threads = self.number("pids", "pids.current");
            usage.threads_limit = self.limit("pids", "pids.max");
            usage.memory_peak = self.number("memory", "memory.peak");
            if let Some(text) = self.file("memory", "memory.events") {
                usage.memory_failures = value(text, "max");
                usage.oom_kills = value(text, "oom_kill");
            }
            usage.cpu_shares = self.number("cpu", "cpu.weight").map(weight_to_shares);
            if let Some((quota, period)) = self.file("cpu", "cpu.max").and_then(|t| t.trim().split_once(' '))
            {
                usage.cpu_quota_micros = Some(quota.parse().unwrap_or(-1));
                usage.cpu_period_micros = period.parse().ok();
            }
            usage.devices = self.file("io", "io.stat").map(io_stat).unwrap_or_default();
        }
        usage
    }

    fn v1(&mut self, detail: Detail) -> Usage {
        let mut usage = Usage { cpu_nanos: self.number("cpuacct", "cpuacct.usage"), ..Usage::default() };
        usage.memory = self.number("memory", "memory.usage_in_bytes");
        if let Some(text) = self.file("memory", "memory.stat") {
            let (inactive, limit);
            // Swap is only there where it is accounted.
            [
                inactive,
                usage.rss,
                usage.cache,
                usage.mapped_file,
                usage.page_faults,
                usage.major_page_faults,
                usage.swap,
                limit,
            ] = values(
                text,
                [
                    "total_inactive_file",
                    "total_rss",
                    "total_cache",
                    "total_mapped_file",
                    "total_pgfault",
                    "total_pgmajfault",
                    "total_swap",
                    "hierarchical_memory_limit",
                ],
            );
            usage.working_set = usage.memory.map(|m| m.saturating_sub(inactive.unwrap_or(0)));
            usage.memory_limit = limit.filter(|n| *n < UNLIMITED);
        }
        if detail == Detail::Everything {
            if let Some(text) = self.file("cpuacct", "cpuacct.stat") {
                let ticks = |key| value(text, key).map(|n| n.saturating_mul(TICK_NANOS));
                usage.cpu_user_nanos = ticks("user");
                usage.cpu_system_nanos = ticks("system");
            }
            if let Some(text) = self.file("cpu", "cpu.stat") {
                usage.cfs_periods = value(text, "nr_periods");
                usage.cfs_throttled_periods = value(text, "nr_throttled");
                usage.cfs_throttled_nanos = value(text, "throttled_time");
            }
            usage.threads = self.number("pids", "pids.current");
            usage.threads_limit = self.limit("pids", "pids.max");
            usage.memory_peak = self.number("memory", "memory.max_usage_in_bytes");
            usage.memory_failures = self.number("memory", "memory.failcnt");
            usage.oom_kills =
                self.file("memory", "memory.oom_control").and_then(|text| value(text, "oom_kill"));
            usage.kernel = self.number("memory", "memory.kmem.usage_in_bytes");
            usage.cpu_shares = self.number("cpu", "cpu.shares");
            usage.cpu_quota_micros =
                self.file("cpu", "cpu.cfs_quota_us").and_then(|text| text.trim().parse().ok());
            usage.cpu_period_micros = self.number("cpu", "cpu.cfs_period_us");
            let bytes = self.file("blkio", "blkio.throttle.io_service_bytes_recursive").map(blkio);
            let operations = self.file("blkio", "blkio.throttle.io_serviced_recursive").map(blkio);
            usage.devices = bytes.unwrap_or_default();
            for device in &mut usage.devices {
                let same = |o: &&Device| (o.major, o.minor) == (device.major, device.minor);
                if let Some(counted) = operations.as_ref().and_then(|all| all.iter().find(same)) {
                    (device.reads, device.writes) = (counted.read_bytes, counted.written_bytes);
                }
            }
        }
        usage
    }

    fn file(&mut self, controller: &str, name: &str) -> Option<&str> {
        self.dir.file(self.below, controller, name)
    }

    fn number(&mut self, controller: &str, name: &str) -> Option<u64> {
        self.file(controller, name)?.trim().parse().ok()
    }

    fn limit(&mut self, controller: &str, name: &str) -> Option<u64> {
        self.number(controller, name).filter(|n| *n < UNLIMITED)
    }
}

/// The numbers behind keys in lines of `key number`.
fn values<const N: usize>(text: &str, keys: [&str; N]) -> [Option<u64>; N] {
    let mut found = [None; N];
    for (key, number) in text.lines().filter_map(|line| line.split_once(' ')) {
        if let Some(at) = keys.iter().position(|k| *k == key) {
            found[at] = number.trim().parse().ok();
        }
    }
    found
}

fn value(text: &str, key: &str) -> Option<u64> {
    let [found] = values(text, [key]);
    found
}

/// The inverse of what the kubelet and the runtimes do with shares.
fn weight_to_shares(weight: u64) -> u64 {
    2 + (weight.saturating_sub(1)) * 262_142 / 9_999
}

/// `8:0 rbytes=1 wbytes=2 rios=3 wios=4 ...`
fn io_stat(text: &str) -> Vec<Device> {
    let mut devices = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some((major, minor)) = words.next().and_then(numbered) else { continue };
        let mut device = Device { major, minor, ..Device::default() };
        for (key, value) in words.filter_map(|w| w.split_once('=')) {
            let value = value.parse().unwrap_or(0);
            match key {
                "rbytes" => device.read_bytes = value,
                "wbytes" => device.written_bytes = value,
                "rios" => device.reads = value,
                "wios" => device.writes = value,
                _ => {}
            }
        }
        devices.push(device);
    }
    devices
}

/// `8:0 Read 1` and `8:0 Write 2`, in the places for bytes whatever is counted.
fn blkio(text: &str) -> Vec<Device> {
    let mut devices: Vec<Device> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some((major, minor)), Some(what), Some(value)) =
            (words.next().and_then(numbered), words.next(), words.next())
        else {
            continue;
        };
        let value = value.parse().unwrap_or(0);
        if devices.last().is_none_or(|d| (d.major, d.minor) != (major, minor)) {
            devices.push(Device { major, minor, ..Device::default() });
        }
        let Some(device) = devices.last_mut() else { continue };
        match what {
            "Read" => device.read_bytes = value,
            "Write" => device.written_bytes = value,
            _ => {}
        }
    }
    devices
}

fn numbered(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests;
