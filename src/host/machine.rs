//! What this machine is: read from /proc, /sys and /etc, without running anything.

mod network;
mod topology;

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use keelson_core::node::Machine;

pub use network::{Interface, NetworkError, host_addresses, interfaces};
pub use topology::{online_cpus, topology};

use crate::path_error::{At, PathError};

/// Where to read; tests have their own.
#[derive(Debug, Clone)]
pub struct Roots {
    pub proc: PathBuf,
    pub sys: PathBuf,
    /// The root under which etc, usr/lib and var/lib lie.
    pub files: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { proc: "/proc".into(), sys: "/sys".into(), files: "/".into() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineFacts {
    pub machine: Machine,
    /// As the kernel has it, in lower case.
    pub hostname: String,
    pub cpus: u32,
    pub memory_bytes: u64,
    /// The most processes there can be.
    pub pid_max: u64,
    /// Whether there is anything to swap to.
    pub swap_on: bool,
    /// Of a page that is not huge.
    pub page_bytes: u64,
    /// What shows too much of the processors' temperature to be shown to containers.
    pub thermal_throttle: Vec<PathBuf>,
    /// Bytes set aside, by the size of a page in bytes.
    pub huge_pages: BTreeMap<u64, u64>,
}

/// The size of a filesystem and what is left of it for unprivileged users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsCapacity {
    pub bytes: u64,
    pub available_bytes: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// Reads all of it. Only what a node cannot be without is an error when missing: processors and memory.
pub fn read(roots: &Roots) -> Result<MachineFacts, PathError> {
    let meminfo_path = roots.proc.join("meminfo");
    let meminfo = fs::read_to_string(&meminfo_path).at("read", &meminfo_path)?;
    let memory_bytes =
        kilobytes(&meminfo, "MemTotal").ok_or_else(|| unreadable(&meminfo_path, "has no line MemTotal"))?;
    let kernel = |file: &str| word(&roots.proc.join("sys/kernel").join(file));
    let first =
        |files: &[PathBuf]| files.iter().map(|f| word(f)).find(|text| !text.is_empty()).unwrap_or_default();

    let machine_id =
        first(&[roots.files.join("etc/machine-id"), roots.files.join("var/lib/dbus/machine-id")]);
    let uuid_files = [
        "class/dmi/id/product_uuid",
        "firmware/devicetree/base/system-id",
        "firmware/devicetree/base/vm,uuid",
    ];
    let uuid_files: Vec<PathBuf> = uuid_files.iter().map(|f| roots.sys.join(f)).collect();
    let system_uuid =
        Some(first(&uuid_files)).filter(|id| !id.is_empty()).unwrap_or_else(|| machine_id.clone());
    let machine = Machine {
        machine_id,
        system_uuid,
        boot_id: kernel("random/boot_id"),
        kernel_version: kernel("osrelease"),
        os_image: os_image(&roots.files),
        operating_system: "linux".into(),
        architecture: architecture().into(),
        swap_bytes: kilobytes(&meminfo, "SwapTotal"),
        app_armor: roots.sys.join("kernel/security/apparmor").exists()
            && word(&roots.sys.join("module/apparmor/parameters/enabled")).starts_with('Y'),
    };
    Ok(MachineFacts {
        machine,
        hostname: kernel("hostname").to_lowercase(),
        cpus: cpus(roots)?,
        memory_bytes,
        pid_max: kernel("pid_max").parse().unwrap_or(32_768),
        swap_on: swap_on(&roots.proc),
        page_bytes: rustix::param::page_size() as u64,
        thermal_throttle: thermal_throttle(&roots.sys),
        huge_pages: huge_pages(&roots.sys),
    })
}

/// The filesystem that a path lies on.
pub fn filesystem(path: &Path) -> Result<FsCapacity, PathError> {
    let found = rustix::fs::statvfs(path).at("read the size of the filesystem of", path)?;
    Ok(FsCapacity {
        bytes: found.f_blocks.saturating_mul(found.f_frsize),
        available_bytes: found.f_bavail.saturating_mul(found.f_frsize),
        inodes: found.f_files,
        inodes_free: found.f_ffree,
    })
}

/// The processor's architecture as Go names it, which is how images and labels do.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        other => other,
    }
}

/// Processors that are online, as a list of ranges such as `0-3,6`.
fn cpus(roots: &Roots) -> Result<u32, PathError> {
    let online = word(&roots.sys.join("devices/system/cpu/online"));
    if let Some(count) = count_ranges(&online) {
        return Ok(count);
    }
    let path = roots.proc.join("cpuinfo");
    let text = fs::read_to_string(&path).at("read", &path)?;
    match text.lines().filter(|line| line.starts_with("processor")).count() {
        0 => Err(unreadable(&path, "names no processor")),
        count => Ok(u32::try_from(count).unwrap_or(u32::MAX)),
    }
}

/// The kernel lists what it swaps to below one line of headings.
fn swap_on(proc: &Path) -> bool {
    fs::read_to_string(proc.join("swaps")).is_ok_and(|text| text.trim().lines().count() > 1)
}

/// Where each processor counts how often it was too hot, as far as there are such files: from them one container can learn
/// what others compute.
fn thermal_throttle(sys: &Path) -> Vec<PathBuf> {
    let cpus = sys.join("devices/system/cpu");
    let possible = word(&cpus.join("possible"));
    let paths = ranges(&possible).into_iter().flatten().flatten();
    let paths = paths.map(|cpu| cpus.join(format!("cpu{cpu}/thermal_throttle")));
    paths.filter(|path| path.exists()).collect()
}

fn count_ranges(text: &str) -> Option<u32> {
    ranges(text)?.iter().try_fold(0u32, |count, range| {
        count.checked_add(range.end().checked_sub(*range.start())?.checked_add(1)?)
    })
}

/// A list such as `0-3,6`.
fn ranges(text: &str) -> Option<Vec<RangeInclusive<u32>>> {
    let range = |range: &str| {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        Some(from.trim().parse().ok()?..=to.trim().parse().ok()?)
    };
    text.split(',').map(range).collect()
}

fn kilobytes(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn huge_pages(sys: &Path) -> BTreeMap<u64, u64> {
    let dir = sys.join("kernel/mm/hugepages");
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let size =
            name.to_str().and_then(|n| n.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok());
        if let Some(size) = size.and_then(|kb| kb.checked_mul(1024)) {
            let pages: u64 = word(&entry.path().join("nr_hugepages")).parse().unwrap_or(0);
            found.insert(size, pages.saturating_mul(size));
        }
    }
    found
}

fn os_image(files: &Path) -> String {
    for file in ["etc/os-release", "usr/lib/os-release"] {
        let text = fs::read_to_string(files.join(file)).unwrap_or_default();
        if let Some(name) = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")) {
            return name.trim().trim_matches(['"', '\'']).to_owned();
        }
    }
    "Linux".into()
}

/// A file of one line, or nothing.
fn word(path: &Path) -> String {
    fs::read_to_string(path)
        .map(|text| text.trim_matches(['\0', '\n', ' ', '\t']).to_owned())
        .unwrap_or_default()
}

fn unreadable(path: &Path, problem: &'static str) -> PathError {
    PathError::new("use", path, std::io::Error::new(std::io::ErrorKind::InvalidData, problem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn put(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
        fs::write(path, text).expect("write");
    }

    #[test]
    fn a_machine_is_read_from_its_files() {
        let temp = testing::dir();
        let at = temp.path();
        let roots = Roots { proc: at.join("proc"), sys: at.join("sys"), files: at.to_owned() };
        let error = read(&roots).expect_err("nothing there");
        assert!(error.to_string().contains("meminfo"), "{error}");
        put(at, "proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\nSwapTotal:       0 kB\n");
        put(at, "proc/sys/kernel/random/boot_id", "b-1\n");
        put(at, "proc/sys/kernel/osrelease", "6.1.0\n");
        put(at, "proc/sys/kernel/hostname", "Host1\n");
        put(at, "proc/sys/kernel/pid_max", "4194304\n");
        put(at, "sys/devices/system/cpu/online", "0-3,6\n");
        put(at, "proc/swaps", "Filename\t\tType\t\tSize\n/swapfile file 1024\n");
        put(at, "sys/devices/system/cpu/possible", "0-2,6\n");
        put(at, "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "0\n");
        put(at, "sys/devices/system/cpu/cpu6/thermal_throttle/core_throttle_count", "0\n");
        put(at, "sys/devices/system/cpu/cpu7/thermal_throttle/core_throttle_count", "0\n");
        put(at, "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "3\n");
        put(at, "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0\n");
        put(at, "sys/kernel/security/apparmor/profiles", "");
        put(at, "sys/module/apparmor/parameters/enabled", "Y\n");
        put(at, "etc/machine-id", "m-1\n");
        put(at, "usr/lib/os-release", "NAME=x\nPRETTY_NAME=\"Some Linux 12\"\n");
        let facts = read(&roots).expect("facts");
        assert_eq!((facts.cpus, facts.memory_bytes, facts.pid_max), (5, 16 << 20, 4_194_304));
        assert_eq!(facts.hostname, "host1");
        assert_eq!(facts.huge_pages, [(2 << 20, 6 << 20), (1 << 30, 0)].into());
        assert!(facts.swap_on);
        let throttle = |cpu: &str| at.join("sys/devices/system/cpu").join(cpu).join("thermal_throttle");
        assert_eq!(facts.thermal_throttle, [throttle("cpu1"), throttle("cpu6")]);
        put(at, "proc/swaps", "Filename\t\tType\t\tSize\n");
        assert!(!read(&roots).expect("facts").swap_on, "headings alone are no swap");
        let machine = &facts.machine;
        assert_eq!((machine.machine_id.as_str(), machine.boot_id.as_str()), ("m-1", "b-1"));
        assert_eq!(machine.system_uuid, "m-1", "without firmware the machine id stands in");
        assert_eq!(machine.os_image, "Some Linux 12");
        assert_eq!(machine.swap_bytes, Some(0));
        assert!(machine.app_armor);
    }

    #[test]
    fn lists_of_processors_are_counted() {
        for (text, count) in
            [("0", Some(1)), ("0-1", Some(2)), ("0,2-3", Some(3)), ("", None), ("3-1", None), ("x", None)]
        {
            assert_eq!(count_ranges(text), count, "{text:?}");
        }
    }

    #[test]
    fn this_machine_can_be_read() {
        let facts = read(&Roots::default()).expect("facts");
        assert!(facts.cpus > 0 && facts.memory_bytes > 0);
        assert!(!facts.machine.boot_id.is_empty() && !facts.machine.kernel_version.is_empty());
        let root = filesystem(Path::new("/")).expect("statvfs");
        assert!(root.bytes >= root.available_bytes && root.bytes > 0);
    }
}
