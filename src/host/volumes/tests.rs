use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use keelson_core::ids::PodUid;
use keelson_core::volumes::PayloadFile;

use super::*;
use crate::dirs::RootDirs;
use crate::testing;

fn pod_dirs(root: &Path) -> PodDirs {
    RootDirs::new(root).pod(&PodUid::try_from("u-1").expect("uid"))
}

fn volume(json: &str) -> Volume {
    serde_json::from_str(json).expect("the test's volume")
}

fn with(dirs: &PodDirs) -> Setup<'_> {
    Setup { dirs, payload: None, fs_group: None, memory_limit: None }
}

fn payload(files: &[(&str, &str)]) -> Payload {
    let file = |text: &str| PayloadFile { data: text.as_bytes().to_vec(), mode: 0o640, uid: None };
    Payload { files: files.iter().map(|(name, text)| ((*name).to_owned(), file(text))).collect() }
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("left out: changing a file's group needs root");
    }
    root
}

#[test]
fn an_empty_dir_is_open_to_everybody() {
    let temp = testing::dir();
    let dirs = pod_dirs(temp.path());
    let path = setup(&volume(r#"{"name":"data","emptyDir":{}}"#), &with(&dirs)).expect("setup");
    assert_eq!(path, dirs.path().join("volumes/kubernetes.io~empty-dir/data"));
    assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o777);
    fs::write(path.join("kept"), "x").expect("write");
    setup(&volume(r#"{"name":"data","emptyDir":{}}"#), &with(&dirs)).expect("again");
    assert!(path.join("kept").exists());
}

#[test]
fn an_empty_dir_belongs_to_the_fs_group() {
    if !is_root() {
        return;
    }
    let temp = testing::dir();
    let dirs = pod_dirs(temp.path());
    let grouped = Setup { fs_group: Some(2000), ..with(&dirs) };
    let path = setup(&volume(r#"{"name":"data","emptyDir":{}}"#), &grouped).expect("setup");
    let stat = fs::metadata(&path).expect("stat");
    assert_eq!((stat.gid(), stat.mode() & 0o7777), (2000, 0o2777));
}

#[test]
fn a_volume_in_memory_is_mounted_once_sized_and_unmounted() {
    let Some(temp) = testing::mountable() else { return };
    let dirs = pod_dirs(temp.path());
    let wanted = volume(r#"{"name":"mem","emptyDir":{"medium":"Memory","sizeLimit":"1Mi"}}"#);
    let path = setup(&wanted, &Setup { memory_limit: Some(64 << 20), ..with(&dirs) }).expect("setup");
    fs::write(path.join("kept"), "x").expect("write");
    setup(&wanted, &with(&dirs)).expect("again");
    assert!(path.join("kept").exists(), "a second mount lies over the first");
    let mounts = mountinfo::mounts_under(dirs.path()).expect("mounts");
    let size = rustix::fs::statvfs(&path).expect("statvfs");
    let found = (mounts.len(), mounts[0].fs_type.clone(), size.f_blocks * size.f_frsize);
    teardown_all(&dirs).expect("teardown");
    assert_eq!(found, (1, "tmpfs".to_owned(), 1 << 20));
    assert!(mountinfo::mounts_under(dirs.path()).expect("mounts").is_empty());
    teardown_all(&dirs).expect("nothing left to do");
    dirs.remove().expect("and the directory can go");
}

#[test]
fn a_busy_mount_is_detached() {
    let Some(temp) = testing::mountable() else { return };
    let dirs = pod_dirs(temp.path());
    let path =
        setup(&volume(r#"{"name":"mem","emptyDir":{"medium":"Memory"}}"#), &with(&dirs)).expect("setup");
    let held = fs::File::create(path.join("held")).expect("create");
    teardown_all(&dirs).expect("teardown");
    assert!(mountinfo::mounts_under(dirs.path()).expect("mounts").is_empty());
    drop(held);
}

#[test]
fn secrets_are_written_into_memory_and_config_maps_to_disk() {
    let Some(temp) = testing::mountable() else { return };
    let dirs = pod_dirs(temp.path());
    let files = payload(&[("user", "u"), ("nested/key", "k")]);
    let filled = Setup { payload: Some(&files), ..with(&dirs) };
    let secret = setup(&volume(r#"{"name":"s","secret":{"secretName":"x"}}"#), &filled).expect("secret");
    let map = setup(&volume(r#"{"name":"c","configMap":{"name":"x"}}"#), &filled).expect("config map");
    let read = |path: &Path| fs::read_to_string(path.join("nested/key")).expect("read");
    let (in_secret, in_map) = (read(&secret), read(&map));
    let points: Vec<PathBuf> =
        mountinfo::mounts_under(dirs.path()).expect("mounts").into_iter().map(|m| m.point).collect();
    teardown_all(&dirs).expect("teardown");
    assert_eq!((in_secret.as_str(), in_map.as_str()), ("k", "k"));
    assert_eq!(points, std::slice::from_ref(&secret));
    assert!(!secret.join("user").exists(), "the secret stayed behind");
}

#[test]
fn a_host_path_is_checked_to_be_what_it_is_said_to_be() {
    let temp = testing::dir();
    let at = |name: &str| temp.path().join(name);
    fs::create_dir(at("dir")).expect("mkdir");
    fs::write(at("file"), "").expect("write");
    symlink(at("dir"), at("link")).expect("link");
    let _listener = UnixListener::bind(at("socket")).expect("socket");
    let dirs = pod_dirs(temp.path());
    let check = |path: &Path, kind: &str| {
        let json = serde_json::json!({"name": "h", "hostPath": {"path": path, "type": kind}});
        setup(&volume(&json.to_string()), &with(&dirs))
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
        let error = check(&at(name), kind).expect_err(kind).to_string();
        assert!(error.contains("\"h\""), "{name} as {kind}: {error}");
    }
}

#[test]
fn other_kinds_are_refused_by_name() {
    let temp = testing::dir();
    let dirs = pod_dirs(temp.path());
    let cases = [
        (r#"{"name":"g","gitRepo":{"repository":"r"}}"#, "gitRepo"),
        (r#"{"name":"g","nfs":{"server":"s","path":"/"}}"#, "nfs"),
        (r#"{"name":"g","persistentVolumeClaim":{"claimName":"c"}}"#, "persistentVolumeClaim"),
        (r#"{"name":"g"}"#, "no source"),
        (r#"{"name":"g","configMap":{"name":"c"}}"#, "no content"),
        (r#"{"name":"g","emptyDir":{"medium":"Tape"}}"#, "Tape"),
        (r#"{"name":"../g","emptyDir":{}}"#, "DNS label"),
    ];
    for (json, expected) in cases {
        let error = setup(&volume(json), &with(&dirs)).expect_err(json).to_string();
        assert!(error.contains(expected) && error.contains("g\""), "{json}: {error}");
    }
}
