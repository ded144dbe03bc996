use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use keelson_require::{Missing, require};

use super::*;
use crate::testing;

fn uid(text: &str) -> PodUid {
    PodUid::try_from(text).expect("uid")
}

fn fake_v1(root: &Path) {
    for controller in ["cpu,cpuacct", "cpuset", "memory", "pids", "hugetlb", "systemd", "unified"] {
        fs::create_dir_all(root.join(controller)).expect("mkdir");
        fs::write(root.join(controller).join("cgroup.procs"), "").expect("write");
    }
    std::os::unix::fs::symlink("cpu,cpuacct", root.join("cpu")).expect("link");
    fs::write(root.join("unified/cgroup.controllers"), "").expect("write");
    fs::write(root.join("cpuset/cpuset.cpus"), "0-3\n").expect("write");
    fs::write(root.join("cpuset/cpuset.mems"), "0\n").expect("write");
}

fn fake_v2(root: &Path) {
    fs::write(root.join("cgroup.controllers"), "cpuset cpu io memory hugetlb pids rdma\n").expect("write");
}

fn settings(root: &Path) -> CgroupSettings {
    CgroupSettings { mount: root.to_owned(), ..CgroupSettings::new(Driver::Cgroupfs) }
}

fn pod(qos: QosClass) -> PodCgroup {
    let limits = Limits {
        cpu_shares: Some(512),
        cpu_quota_micros: Some(50_000),
        memory_bytes: Some(64 << 20),
        pids: Some(100),
        hugepages: [("2MB".to_owned(), 4 << 20)].into(),
        ..Limits::default()
    };
    PodCgroup { uid: uid("1-2"), qos, limits }
}

fn content(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn v1_gets_a_directory_a_controller() {
    let temp = testing::dir();
    fake_v1(temp.path());
    let cgroups = Cgroups::detect(settings(temp.path())).expect("detect");
    assert_eq!(cgroups.version(), Version::V1, "an empty v2 tree beside it changes nothing");
    cgroups.ensure_root(&Limits { memory_bytes: Some(1 << 30), ..Limits::default() }).expect("root");
    assert_eq!(cgroups.ensure_pod(&pod(QosClass::Burstable)).expect("pod"), "/kubepods/burstable/pod1-2");
    let at = |controller: &str, file: &str| {
        temp.path().join(controller).join("kubepods/burstable/pod1-2").join(file)
    };
    assert_eq!(content(at("cpu", "cpu.shares")), "512");
    assert_eq!(content(at("cpu,cpuacct", "cpu.cfs_period_us")), "100000");
    assert_eq!(content(at("cpu", "cpu.cfs_quota_us")), "50000");
    assert_eq!(content(at("memory", "memory.limit_in_bytes")), (64 << 20).to_string());
    assert_eq!(content(at("pids", "pids.max")), "100");
    assert_eq!(content(at("hugetlb", "hugetlb.2MB.limit_in_bytes")), (4 << 20).to_string());
    assert_eq!(content(at("cpuset", "cpuset.cpus")), "0-3", "an empty cpuset would let nothing run");
    assert!(at("systemd", "").is_dir());
    assert!(!at("unified", "").exists());
    assert_eq!(content(temp.path().join("memory/kubepods/memory.limit_in_bytes")), (1 << 30).to_string());
    assert_eq!(content(temp.path().join("cpu/kubepods/besteffort/cpu.shares")), "2");
}

#[test]
fn v2_gets_one_directory_and_its_controllers() {
    let temp = testing::dir();
    fake_v2(temp.path());
    let cgroups = Cgroups::detect(settings(temp.path())).expect("detect");
    assert_eq!(cgroups.version(), Version::V2);
    cgroups.ensure_root(&Limits::default()).expect("root");
    cgroups.ensure_pod(&pod(QosClass::Guaranteed)).expect("pod");
    let at = |file: &str| temp.path().join("kubepods/pod1-2").join(file);
    assert_eq!(content(at("cpu.weight")), "20");
    assert_eq!(content(at("cpu.max")), "50000 100000");
    assert_eq!(content(at("memory.max")), (64 << 20).to_string());
    assert_eq!(content(at("pids.max")), "100");
    assert_eq!(content(at("hugetlb.2MB.max")), (4 << 20).to_string());
    let handed_down = content(temp.path().join("kubepods/cgroup.subtree_control"));
    // A plain file collects what the kernel would fold into one set.
    let handed_down: BTreeSet<&str> = handed_down.lines().collect();
    assert_eq!(handed_down, ["+cpu", "+cpuset", "+memory", "+pids", "+io", "+hugetlb"].into());
    let unlimited = Limits { cpu_quota_micros: Some(-1), memory_bytes: Some(-1), ..Limits::default() };
    cgroups.ensure_pod(&PodCgroup { limits: unlimited, ..pod(QosClass::Guaranteed) }).expect("update");
    assert_eq!(content(at("cpu.max")), "max 100000");
    assert_eq!(content(at("memory.max")), "max");
}

#[test]
fn pods_are_found_again_in_every_class() {
    let temp = testing::dir();
    fake_v1(temp.path());
    let cgroups = Cgroups::detect(settings(temp.path())).expect("detect");
    assert!(cgroups.list_pods().expect("nothing yet").is_empty());
    cgroups.ensure_root(&Limits::default()).expect("root");
    for (qos, name) in [(QosClass::Guaranteed, "a"), (QosClass::Burstable, "b"), (QosClass::BestEffort, "c")]
    {
        cgroups.ensure_pod(&PodCgroup { uid: uid(name), qos, limits: Limits::default() }).expect("pod");
    }
    // Left in one hierarchy only, by an interrupted removal.
    fs::create_dir_all(temp.path().join("unified/kubepods/podd")).expect("mkdir");
    let found: Vec<PodUid> = cgroups.list_pods().expect("list").into_iter().collect();
    assert_eq!(found, ["a", "b", "c", "d"].map(uid));
}

#[test]
fn what_is_missing_is_named() {
    let temp = testing::dir();
    let error = Cgroups::detect(settings(temp.path())).expect_err("an empty directory");
    assert!(error.to_string().contains("no cgroups are mounted"), "{error}");
    fs::write(temp.path().join("cgroup.controllers"), "cpu pids").expect("write");
    let error = Cgroups::detect(settings(temp.path())).expect_err("no memory");
    assert!(error.to_string().contains("no memory controller"), "{error}");
    fake_v2(temp.path());
    let error = Cgroups::detect(CgroupSettings { cgroup_root: "/absent".into(), ..settings(temp.path()) })
        .expect_err("no root");
    assert!(error.to_string().contains("/absent"), "{error}");
    let sockets = vec!["/no/such/socket".into()];
    let systemd =
        CgroupSettings { driver: Driver::Systemd, systemd_sockets: sockets, ..settings(temp.path()) };
    let error = Cgroups::detect(systemd).expect_err("no systemd");
    assert!(error.to_string().contains("cgroupDriver: cgroupfs"), "{error}");
}

#[test]
fn without_cgroups_per_qos_the_root_is_the_parent() {
    let temp = testing::dir();
    fake_v2(temp.path());
    fs::create_dir(temp.path().join("mine")).expect("mkdir");
    let without = CgroupSettings { per_qos: false, cgroup_root: "/mine".into(), ..settings(temp.path()) };
    let cgroups = Cgroups::detect(without).expect("detect");
    assert_eq!(cgroups.ensure_pod(&pod(QosClass::Burstable)).expect("pod"), "/mine");
    cgroups.remove_pod(&uid("1-2")).expect("nothing to remove");
    assert!(temp.path().join("mine").is_dir());
}

/// The machine's own cgroups, under a root of this test's.
fn real() -> (Cgroups, String) {
    let name = format!("keelson-test-{}", std::process::id());
    let layout = Layout::detect(Path::new("/sys/fs/cgroup")).expect("cgroups");
    layout.make(Path::new(&name)).expect("a cgroup");
    let settings =
        CgroupSettings { cgroup_root: format!("/{name}"), ..CgroupSettings::new(Driver::Cgroupfs) };
    (Cgroups::detect(settings).expect("detect"), name)
}

/// Of the pod 1-2.
fn memory_dir(cgroups: &Cgroups) -> PathBuf {
    let below = cgroups.pod_place(&uid("1-2"), QosClass::Burstable).expect("pods have cgroups");
    cgroups.layout.of("memory").expect("memory").path.join(below)
}

fn sleeper() -> Child {
    Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().expect("sleep")
}

#[test]
fn on_this_machine_a_pod_is_limited_killed_and_removed() {
    require!(keelson_require::cgroups());
    let (cgroups, name) = real();
    cgroups.ensure_root(&Limits::default()).expect("root");
    let wanted = PodCgroup {
        limits: Limits { hugepages: Default::default(), ..pod(QosClass::Burstable).limits },
        ..pod(QosClass::Burstable)
    };
    let parent = cgroups.ensure_pod(&wanted).expect("pod");
    assert_eq!(parent, format!("/{name}/kubepods/burstable/pod1-2"));
    cgroups.ensure_pod(&wanted).expect("a second time changes nothing");
    let memory = memory_dir(&cgroups);
    let file = if cgroups.version() == Version::V1 { "memory.limit_in_bytes" } else { "memory.max" };
    assert_eq!(content(memory.join(file)).trim(), (64 << 20).to_string());

    // A container's cgroup below, with a process in it.
    let container = memory.join("container");
    fs::create_dir(&container).expect("mkdir");
    let mut child = sleeper();
    fs::write(container.join("cgroup.procs"), child.id().to_string()).expect("move the process");
    assert_eq!(cgroups.list_pods().expect("list"), [uid("1-2")].into());
    cgroups.remove_pod(&uid("1-2")).expect("remove");
    let status = child.wait().expect("wait");
    assert!(!status.success(), "the process should have been killed");
    assert!(cgroups.list_pods().expect("list").is_empty());
    assert!(!memory.exists());
    cgroups.remove_pod(&uid("1-2")).expect("nothing left to remove");
    let paths: Vec<PathBuf> =
        cgroups.layout.everywhere().map(|h| h.join(&name)).filter(|p| p.exists()).collect();
    removal::remove_all(&paths).expect("take the test's root away");
}

#[test]
fn on_a_machine_with_systemd_a_pod_is_a_slice() {
    let sockets = CgroupSettings::new(Driver::Systemd).systemd_sockets;
    let name = format!("keelsontest{}", std::process::id());
    let root_slice = format!("{name}.slice");
    require!(keelson_require::cgroups());
    let remedy = "the whole machine of the end-to-end suite `machine` has it";
    require!(
        sockets
            .iter()
            .any(|s| s.exists())
            .then_some(())
            .ok_or(Missing::by_nature("a running systemd", remedy))
    );
    let version = Layout::detect(Path::new("/sys/fs/cgroup")).expect("cgroups").version;
    systemd::ensure_slice(&sockets, &root_slice, &Limits::default(), version).expect("a slice");
    // Over the bus where there is one, and over systemd's own socket.
    for socket in sockets.iter().filter(|s| s.exists()) {
        let settings = CgroupSettings {
            cgroup_root: root_slice.clone(),
            systemd_sockets: vec![socket.clone()],
            ..CgroupSettings::new(Driver::Systemd)
        };
        let cgroups = Cgroups::detect(settings).expect("detect");
        cgroups.ensure_root(&Limits { memory_bytes: Some(1 << 30), ..Limits::default() }).expect("root");
        let wanted = PodCgroup {
            limits: Limits { hugepages: Default::default(), ..pod(QosClass::Burstable).limits },
            ..pod(QosClass::Burstable)
        };
        let parent = cgroups.ensure_pod(&wanted).expect("pod");
        assert_eq!(parent, format!("{name}-kubepods-burstable-pod1_2.slice"));
        cgroups.ensure_pod(&wanted).expect("a second time changes nothing");
        let classes = QosCgroups { burstable_shares: 2048, ..QosCgroups::default() };
        cgroups.set_classes(&classes).expect("set the class's share");
        let memory = memory_dir(&cgroups);
        let file = if version == Version::V1 { "memory.limit_in_bytes" } else { "memory.max" };
        assert_eq!(content(memory.join(file)).trim(), (64 << 20).to_string());
        let container = memory.join("container");
        fs::create_dir(&container).expect("mkdir");
        let mut child = sleeper();
        fs::write(container.join("cgroup.procs"), child.id().to_string()).expect("move the process");
        assert_eq!(cgroups.list_pods().expect("list"), [uid("1-2")].into());
        cgroups.remove_pod(&uid("1-2")).expect("remove");
        assert!(!child.wait().expect("wait").success(), "the process should have been killed");
        assert!(cgroups.list_pods().expect("list").is_empty());
        println!("a pod was a slice, by way of {}", socket.display());
    }
    let private = [PathBuf::from("/run/systemd/private")];
    systemd::stop_slice(&private, &root_slice).expect("stop the test's root");
}

#[test]
fn swap_can_be_bounded_where_the_kernel_has_a_file_for_it() {
    let temp = testing::dir();
    fake_v1(temp.path());
    let cgroups = Cgroups::detect(settings(temp.path())).expect("detect");
    assert!(!cgroups.limits_swap(), "v1 without swap accounting");
    fs::write(temp.path().join("memory/memory.memsw.limit_in_bytes"), "").expect("write");
    assert!(cgroups.limits_swap());

    let temp = testing::dir();
    fake_v2(temp.path());
    let cgroups = Cgroups::detect(settings(temp.path())).expect("detect");
    cgroups.ensure_root(&Limits::default()).expect("root");
    assert!(!cgroups.limits_swap(), "v2 without swap accounting");
    fs::write(temp.path().join("kubepods/memory.swap.max"), "max").expect("write");
    assert!(cgroups.limits_swap());
}

#[test]
fn huge_pages_that_are_set_aside_are_bounded_where_the_kernel_counts_them() {
    for (fake, file, reserved) in [
        (fake_v1 as fn(&Path), "hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.rsvd.limit_in_bytes"),
        (fake_v2, "hugetlb.2MB.max", "hugetlb.2MB.rsvd.max"),
    ] {
        let temp = testing::dir();
        fake(temp.path());
        let cgroups = Cgroups::detect(settings(temp.path())).expect("detect");
        cgroups.ensure_pod(&pod(QosClass::Guaranteed)).expect("pod");
        let version = cgroups.version();
        let top = if version == Version::V1 { temp.path().join("hugetlb") } else { temp.path().to_owned() };
        let at = |file: &str| top.join("kubepods/pod1-2").join(file);
        assert_eq!(content(at(file)), "4194304", "{version:?}");
        assert!(!at(reserved).exists(), "{version:?}: an older kernel has no such file");
        fs::write(at(reserved), "max").expect("write");
        cgroups.ensure_pod(&pod(QosClass::Guaranteed)).expect("pod again");
        assert_eq!(content(at(reserved)), "4194304", "{version:?}");
    }
}
