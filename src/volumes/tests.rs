//! The kinds, one by one, on real directories.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use keelson_host::dirs::RootDirs;
use keelson_host::mountinfo;
use keelson_require::{Missing, require};
use serde_json::{Value, json};

use crate::testing::{self, Rig};

/// Prepares every volume of the rig once more.
fn prepare(rig: &mut Rig) -> Result<PathBuf, String> {
    rig.states = Default::default();
    let (_, failures) = rig.round(Timestamp::UNIX_EPOCH);
    match failures.into_iter().next() {
        Some(failure) => Err(failure),
        None => Ok(rig.states.paths().into_values().next().expect("a volume").into()),
    }
}

fn rig(root: &Path, volume: Value) -> Rig {
    Rig::new(root, json!([volume]), json!({}))
}

#[test]
fn an_empty_dir_is_open_to_everybody() {
    let temp = testing::dir();
    let mut rig = rig(temp.path(), json!({"name": "data", "emptyDir": {}}));
    let path = prepare(&mut rig).expect("setup");
    assert_eq!(path, rig.dirs().path().join("volumes/kubernetes.io~empty-dir/data"));
    assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o777);
    fs::write(path.join("kept"), "x").expect("write");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("chmod");
    prepare(&mut rig).expect("again");
    assert!(path.join("kept").exists());
    assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o700, "what the pod has set stays");
    // The mark is a kubelet's: without it the volume may be half-made.
    fs::remove_file(rig.dirs().path().join("plugins/kubernetes.io~empty-dir/data/ready")).expect("the mark");
    prepare(&mut rig).expect("once more");
    assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o777);
}

#[test]
fn an_empty_dir_belongs_to_the_fs_group() {
    require!(keelson_require::root());
    let temp = testing::dir();
    let volumes = json!([{"name": "data", "emptyDir": {}}]);
    let mut rig = Rig::new(temp.path(), volumes, json!({"securityContext": {"fsGroup": 2000}}));
    let path = prepare(&mut rig).expect("setup");
    let stat = fs::metadata(&path).expect("stat");
    assert_eq!((stat.gid(), stat.mode() & 0o7777), (2000, 0o2777));
}

#[test]
fn a_volume_in_memory_is_mounted_once_sized_and_unmounted() {
    let temp = require!(testing::mountable());
    let volume = json!({"name": "mem", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}});
    let limits = json!({"containers": [{"name": "c", "resources": {"limits": {"memory": "64Mi"}}}]});
    let mut rig = Rig::new(temp.path(), json!([volume]), limits);
    let path = prepare(&mut rig).expect("setup");
    fs::write(path.join("kept"), "x").expect("write");
    prepare(&mut rig).expect("again");
    assert!(path.join("kept").exists(), "a second mount lies over the first");
    let mounts = mountinfo::mounts_under(rig.dirs().path()).expect("mounts");
    let size = rustix::fs::statvfs(&path).expect("statvfs");
    let found = (mounts.len(), mounts[0].fs_type.clone(), size.f_blocks * size.f_frsize);
    rig.teardown();
    assert_eq!(found, (1, "tmpfs".to_owned(), 1 << 20));
    assert!(mountinfo::mounts_under(rig.dirs().path()).expect("mounts").is_empty());
    rig.teardown();
    rig.dirs().remove().expect("and the directory can go");
}

#[test]
fn a_volume_in_memory_is_no_larger_than_the_pod_may_be() {
    let temp = require!(testing::mountable());
    let volume = json!({"name": "mem", "emptyDir": {"medium": "Memory"}});
    let limits = json!({"containers": [{"name": "c", "resources": {"limits": {"memory": "2Mi"}}}]});
    let mut rig = Rig::new(temp.path(), json!([volume]), limits);
    let size = rustix::fs::statvfs(prepare(&mut rig).expect("setup")).expect("statvfs");
    assert_eq!(size.f_blocks * size.f_frsize, 2 << 20);
}

#[test]
fn a_volume_in_memory_is_no_larger_than_all_pods_together_and_its_mode_is_the_pod_s() {
    let temp = require!(testing::mountable());
    let mut rig = rig(temp.path(), json!({"name": "mem", "emptyDir": {"medium": "Memory"}}));
    let setup = Arc::get_mut(&mut rig.setup).expect("nobody else has it");
    setup.node_allocatable = BTreeMap::from([("memory".to_owned(), Quantity("3Mi".to_owned()))]);
    let path = prepare(&mut rig).expect("setup");
    let size = rustix::fs::statvfs(&path).expect("statvfs");
    let mode = || fs::metadata(&path).expect("stat").mode() & 0o7777;
    let made = mode();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).expect("chmod");
    prepare(&mut rig).expect("again");
    let kept = mode();
    rig.teardown();
    assert_eq!((size.f_blocks * size.f_frsize, made, kept), (3 << 20, 0o1777, 0o750));
}

/// Pages need not be there for a filesystem of them to be mounted.
fn huge_pages() -> Result<(), Missing> {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let sized = Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB").is_dir();
    match known.contains("hugetlbfs") && sized {
        true => Ok(()),
        false => Err(Missing::by_nature("huge pages of 2 MiB", "run on a kernel that has hugetlbfs")),
    }
}

#[test]
fn a_volume_of_huge_pages_has_pages_of_the_size_that_the_pod_requests() {
    let temp = require!(testing::mountable());
    require!(huge_pages());
    let volumes = json!([
        {"name": "only", "emptyDir": {"medium": "HugePages"}},
        {"name": "sized", "emptyDir": {"medium": "HugePages-2Mi"}},
    ]);
    let requests = json!({"hugepages-2Mi": "4Mi", "memory": "1Mi"});
    let spec = json!({
        "containers": [{"name": "c", "resources": {"requests": requests, "limits": requests}}],
        "securityContext": {"fsGroup": 2000},
    });
    let mut rig = Rig::new(temp.path(), volumes, spec);
    prepare(&mut rig).expect("both");
    prepare(&mut rig).expect("again");
    let mounts = mountinfo::mounts_under(rig.dirs().path()).expect("mounts");
    let found: Vec<_> = rig
        .states
        .paths()
        .into_values()
        .map(|path| {
            let stat = fs::metadata(&path).expect("stat");
            let pages = rustix::fs::statvfs(&path).expect("statvfs").f_bsize;
            (pages, stat.gid(), stat.mode() & 0o7777)
        })
        .collect();
    let kinds: Vec<&str> = mounts.iter().map(|m| m.fs_type.as_str()).collect();
    assert_eq!(kinds, ["hugetlbfs"; 2], "one mount each");
    // Somebody has mounted something else in the place of one.
    let sized = PathBuf::from(&rig.states.paths()["sized"]);
    fs::remove_file(rig.dirs().path().join("plugins/kubernetes.io~empty-dir/sized/ready")).expect("the mark");
    rustix::mount::unmount(&sized, rustix::mount::UnmountFlags::empty()).expect("unmount");
    rustix::mount::mount("tmpfs", &sized, "tmpfs", rustix::mount::MountFlags::empty(), c"").expect("mount");
    let error = prepare(&mut rig).expect_err("another filesystem");
    rig.teardown();
    assert_eq!(found, [(2 << 20, 2000, 0o2777); 2]);
    assert!(error.contains("\"sized\"") && error.contains("something else is mounted there"), "{error}");
    assert!(mountinfo::mounts_under(rig.dirs().path()).expect("mounts").is_empty());
    rig.dirs().remove().expect("and the directory can go");
}

#[test]
fn what_is_mounted_behind_a_link_is_found_and_taken_away() {
    let temp = require!(testing::mountable());
    fs::create_dir(temp.path().join("disk")).expect("mkdir");
    symlink("disk", temp.path().join("root")).expect("link");
    let volume = json!({"name": "s", "secret": {"secretName": "x"}});
    let mut rig = rig(&temp.path().join("root"), volume);
    let uid = rig.dirs().uid().clone();
    let root = RootDirs::new(temp.path().join("root")).resolved().expect("resolved");
    Arc::get_mut(&mut rig.setup).expect("nobody else has it").dirs = root.pod(&uid);
    rig.objects.set("x", "k");
    let path = prepare(&mut rig).expect("setup");
    let mode = fs::metadata(&path).expect("stat").mode() & 0o7777;
    let mounted = mountinfo::mounts_under(rig.dirs().path()).expect("mounts").len();
    rig.teardown();
    assert_eq!((mounted, mode), (1, 0o1777));
    assert!(!path.join("key").exists(), "the secret stayed behind");
    rig.dirs().remove().expect("and the directory can go");
}

#[test]
fn a_busy_mount_is_detached() {
    let temp = require!(testing::mountable());
    let mut rig = rig(temp.path(), json!({"name": "mem", "emptyDir": {"medium": "Memory"}}));
    let path = prepare(&mut rig).expect("setup");
    let held = fs::File::create(path.join("held")).expect("create");
    rig.teardown();
    assert!(mountinfo::mounts_under(rig.dirs().path()).expect("mounts").is_empty());
    drop(held);
}

#[test]
fn secrets_are_written_into_memory_and_config_maps_to_disk() {
    let temp = require!(testing::mountable());
    let volumes = json!([
        {"name": "s", "secret": {"secretName": "x", "items": [{"key": "key", "path": "nested/key"}]}},
        {"name": "c", "configMap": {"name": "x", "items": [{"key": "key", "path": "nested/key"}]}},
    ]);
    let mut rig = Rig::new(temp.path(), volumes, json!({}));
    rig.objects.set("x", "k");
    prepare(&mut rig).expect("both");
    let paths = rig.states.paths();
    let (secret, map) = (Path::new(&paths["s"]), Path::new(&paths["c"]));
    assert!(secret.ends_with("volumes/kubernetes.io~secret/s"), "{}", secret.display());
    assert!(map.ends_with("volumes/kubernetes.io~configmap/c"), "{}", map.display());
    let read = |path: &Path| fs::read_to_string(path.join("nested/key")).expect("read");
    let (in_secret, in_map) = (read(secret), read(map));
    let points: Vec<PathBuf> =
        mountinfo::mounts_under(rig.dirs().path()).expect("mounts").into_iter().map(|m| m.point).collect();
    rig.teardown();
    assert_eq!((in_secret.as_str(), in_map.as_str()), ("k", "k"));
    assert_eq!(points, [secret]);
    assert!(!secret.join("nested").exists(), "the secret stayed behind");
}

#[test]
fn fields_and_tokens_are_written_into_memory() {
    let temp = require!(testing::mountable());
    let labels = json!({"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}});
    let volumes = json!([
        {"name": "d", "downwardAPI": {"items": [labels]}},
        {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}, {"downwardAPI": {"items": [labels]}}]}},
    ]);
    let mut rig = Rig::new(temp.path(), volumes, json!({}));
    let renew_at = Timestamp::from_second(3000).expect("time");
    rig.objects.renew_at = Some(renew_at);
    prepare(&mut rig).expect("both");
    let paths = rig.states.paths();
    assert!(
        paths["d"].ends_with("kubernetes.io~downward-api/d")
            && paths["p"].ends_with("kubernetes.io~projected/p")
    );
    let read =
        |volume: &str, file: &str| fs::read_to_string(Path::new(&paths[volume]).join(file)).expect("read");
    assert_eq!((read("d", "labels"), read("p", "labels")), ("a=\"b\"".into(), "a=\"b\"".into()));
    assert_eq!(read("p", "token"), "token");
    assert_eq!(mountinfo::mounts_under(rig.dirs().path()).expect("mounts").len(), 2);
    assert_eq!(rig.states.next_review(), Some(renew_at), "a token has to be renewed");
}

#[test]
fn a_host_path_is_checked_to_be_what_it_is_said_to_be() {
    let temp = testing::dir();
    let at = |name: &str| temp.path().join(name);
    fs::create_dir(at("dir")).expect("mkdir");
    fs::write(at("file"), "").expect("write");
    symlink(at("dir"), at("link")).expect("link");
    let _listener = UnixListener::bind(at("socket")).expect("socket");
    let check = |path: &Path, kind: &str| {
        prepare(&mut rig(temp.path(), json!({"name": "h", "hostPath": {"path": path, "type": kind}})))
    };
    let good = [
        ("absent", ""),
        ("dir", "Directory"),
        ("link", "Directory"),
        ("file", "File"),
        ("socket", "Socket"),
        ("made/deep", "DirectoryOrCreate"),
        ("dir", "DirectoryOrCreate"),
        ("made/file", "FileOrCreate"),
        ("file", "FileOrCreate"),
    ];
    for (name, kind) in good {
        assert_eq!(check(&at(name), kind).expect(kind), at(name), "{name} as {kind}");
    }
    assert!(at("made/deep").is_dir() && at("made/file").is_file() && !at("absent").exists());
    check(Path::new("/dev/null"), "CharDevice").expect("a character device");
    let bad = [
        ("file", "Directory"),
        ("file", "DirectoryOrCreate"),
        ("dir", "File"),
        ("dir", "FileOrCreate"),
        ("file", "Socket"),
        ("file", "CharDevice"),
        ("file", "BlockDevice"),
        ("absent", "Directory"),
        ("no/parent", "FileOrCreate"),
        ("dir", "Nonsense"),
        ("dir/../dir", "Directory"),
    ];
    for (name, kind) in bad {
        let error = check(&at(name), kind).expect_err(kind);
        assert!(error.contains("\"h\""), "{name} as {kind}: {error}");
    }
}

#[test]
fn other_kinds_are_refused_by_name() {
    let temp = testing::dir();
    let cases = [
        (json!({"name": "g", "gitRepo": {"repository": "r"}}), "gitRepo"),
        (json!({"name": "g", "nfs": {"server": "s", "path": "/"}}), "nfs"),
        (json!({"name": "g", "csi": {"driver": "d"}}), "csi"),
        (json!({"name": "g"}), "no source"),
        (json!({"name": "g", "configMap": {"name": "c"}}), "configmap \"c\" not found"),
        (json!({"name": "g", "emptyDir": {"medium": "Tape"}}), "Tape"),
        (json!({"name": "g", "emptyDir": {"medium": "HugePages"}}), "no container requests"),
        (json!({"name": "g", "image": {}}), "image.reference is empty"),
        (json!({"name": "../g", "emptyDir": {}}), "DNS label"),
    ];
    for (volume, expected) in cases {
        let error = prepare(&mut rig(temp.path(), volume)).expect_err(expected);
        assert!(error.contains(expected) && error.contains("g\""), "{expected}: {error}");
    }
}
