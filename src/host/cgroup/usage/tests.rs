use std::fs;

use keelson_require::{mounted_cgroups, require};

use super::*;
use crate::cgroup::{CgroupSettings, Driver, Members};
use crate::testing;

fn put(root: &Path, file: &str, text: &str) {
    let path = root.join(file);
    fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
    fs::write(path, text).expect("write");
}

fn open(mount: &Path) -> Cgroups {
    let settings = CgroupSettings { mount: mount.to_owned(), ..CgroupSettings::new(Driver::Cgroupfs) };
    Cgroups::detect(settings).expect("cgroups")
}

#[test]
fn version_2_is_read() {
    let temp = testing::dir();
    let at = temp.path();
    put(at, "cgroup.controllers", "cpu memory io pids\n");
    put(
        at,
        "a/cpu.stat",
        "usage_usec 1500\nuser_usec 1000\nsystem_usec 500\nnr_periods 4\nnr_throttled 2\nthrottled_usec 7\n",
    );
    put(at, "a/memory.current", "1000\n");
    put(
        at,
        "a/memory.stat",
        "anon 300\nfile 500\nfile_mapped 20\ninactive_file 400\npgfault 9\npgmajfault 1\n",
    );
    put(at, "a/memory.max", "max\n");
    put(at, "a/memory.swap.current", "5\n");
    put(at, "a/cpu.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=3\n");
    put(at, "a/cpu.max", "max 100000\n");
    put(at, "a/cpu.weight", "39\n");
    put(at, "a/pids.current", "6\n");
    put(at, "a/memory.events", "low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\n");
    put(at, "a/io.stat", "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n");
    put(at, "a/cgroup.procs", "11\n12\n");
    put(at, "a/b/cgroup.procs", "13\n");
    let cgroups = open(at);
    let usage = cgroups.usage(Path::new("a"), Detail::Everything).expect("usage");
    assert_eq!((usage.cpu_nanos, usage.cpu_system_nanos), (Some(1_500_000), Some(500_000)));
    assert_eq!((usage.memory, usage.working_set, usage.rss), (Some(1000), Some(600), Some(300)));
    assert_eq!((usage.memory_limit, usage.swap), (None, Some(5)));
    assert_eq!(usage.pressures.cpu.expect("pressure").some.total_micros, 3);
    assert_eq!(usage.threads, Some(6));
    assert_eq!(
        (usage.cpu_quota_micros, usage.cpu_period_micros, usage.cpu_shares),
        (Some(-1), Some(100_000), Some(998))
    );
    assert_eq!((usage.memory_failures, usage.oom_kills), (Some(3), Some(2)));
    let device = Device { major: 8, minor: 0, read_bytes: 1, written_bytes: 2, reads: 3, writes: 4 };
    assert_eq!(usage.devices, [device]);
    let brief = cgroups.usage(Path::new("a"), Detail::CpuAndMemory).expect("usage");
    assert_eq!((brief.threads, brief.pressures.cpu), (None, None));
    assert_eq!(cgroups.usage(Path::new("absent"), Detail::Summary), None);
    let mut dir = cgroups.at(Path::new("a"));
    assert_eq!(dir.below(), ["b"]);
    assert_eq!(dir.members(""), Some(Members { count: 2, first: Some(11) }));
    assert_eq!((dir.members("b").map(|m| m.count), dir.members("absent")), (Some(1), None));
    assert_eq!(dir.usage("b", Detail::Summary), None, "a cgroup without figures");
}

#[test]
fn version_1_is_read() {
    let temp = testing::dir();
    let at = temp.path();
    for tree in ["cpu,cpuacct", "memory", "pids", "blkio"] {
        put(at, &format!("{tree}/cgroup.procs"), "");
    }
    put(at, "cpu,cpuacct/a/cpuacct.usage", "1500000\n");
    put(at, "cpu,cpuacct/a/cpuacct.stat", "user 3\nsystem 4\n");
    put(at, "cpu,cpuacct/a/cpu.stat", "nr_periods 4\nnr_throttled 2\nthrottled_time 7\n");
    put(at, "cpu,cpuacct/a/cpu.shares", "512\n");
    put(at, "cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
    put(at, "memory/a/memory.usage_in_bytes", "1000\n");
    put(
        at,
        "memory/a/memory.stat",
        "cache 1\nhierarchical_memory_limit 2048\ntotal_cache 500\ntotal_rss 300\ntotal_mapped_file 20\n\
         total_pgfault 9\ntotal_pgmajfault 1\ntotal_inactive_file 400\n",
    );
    put(
        at,
        "blkio/a/blkio.throttle.io_service_bytes_recursive",
        "8:0 Read 1\n8:0 Write 2\n8:0 Total 3\nTotal 3\n",
    );
    put(at, "blkio/a/blkio.throttle.io_serviced_recursive", "8:0 Read 5\n8:0 Write 6\nTotal 11\n");
    put(at, "pids/a/pids.max", "max\n");
    let usage = open(at).usage(Path::new("a"), Detail::Everything).expect("usage");
    assert_eq!((usage.cpu_nanos, usage.cpu_user_nanos), (Some(1_500_000), Some(30_000_000)));
    assert_eq!((usage.memory, usage.working_set, usage.cache), (Some(1000), Some(600), Some(500)));
    assert_eq!((usage.memory_limit, usage.swap), (Some(2048), None));
    assert_eq!((usage.cpu_shares, usage.cpu_quota_micros), (Some(512), Some(-1)));
    assert_eq!((usage.threads_limit, usage.cfs_throttled_nanos), (None, Some(7)));
    let device = Device { major: 8, minor: 0, read_bytes: 1, written_bytes: 2, reads: 5, writes: 6 };
    assert_eq!(usage.devices, [device]);
}

#[test]
fn this_machine_is_read() {
    require!(mounted_cgroups());
    let cgroups = Cgroups::detect(CgroupSettings::new(Driver::Cgroupfs)).expect("cgroups");
    // The root of v2 has no memory.current; its processor time it has in both versions.
    let usage = cgroups.usage(Path::new(""), Detail::Everything).expect("usage");
    assert!(usage.cpu_nanos.is_some_and(|n| n > 0), "{usage:?}");
}
