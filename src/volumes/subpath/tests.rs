use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};

use keelson_core::ids::PodUid;
use keelson_host::dirs::RootDirs;
use keelson_require::{Missing, require};

use super::*;
use crate::{VolumeManager, testing};

struct Fixture {
    temp: tempfile::TempDir,
    dirs: PodDirs,
}

/// Unmounts whatever the test has left, so that a failed one leaves nothing behind.
impl Drop for Fixture {
    fn drop(&mut self) {
        testing::wait(VolumeManager::new().teardown(&self.dirs)).ok();
    }
}

impl Fixture {
    fn new() -> Result<Self, Missing> {
        let temp = testing::mountable()?;
        let dirs = RootDirs::new(temp.path().join("root")).pod(&PodUid::try_from("u").expect("uid"));
        fs::create_dir_all(temp.path().join("volume/inner")).expect("mkdir");
        fs::create_dir(temp.path().join("outside")).expect("mkdir");
        fs::write(temp.path().join("outside/precious"), "secret").expect("write");
        Ok(Self { temp, dirs })
    }
    fn volume(&self) -> PathBuf {
        self.temp.path().join("volume")
    }
    fn prepare(&self, sub_path: &str) -> Result<PathBuf, SubPathError> {
        let volume_path = self.volume();
        prepare(
            &self.dirs,
            &SubPath { volume_path: &volume_path, volume: "data", container: "main", index: 3, sub_path },
        )
    }
}

#[test]
fn a_directory_a_file_and_what_is_missing_can_be_bound() {
    let fixture = require!(Fixture::new());
    fs::write(fixture.volume().join("file"), "text").expect("write");
    let target = fixture.prepare("file").expect("a file");
    assert_eq!(target, fixture.dirs.path().join("volume-subpaths/data/main/3"));
    assert_eq!(fs::read_to_string(&target).expect("read"), "text");
    assert_eq!(fixture.prepare("file").expect("again"), target);

    let target =
        fixture.prepare("made/on/demand").expect("what is missing is made, and the file before it let go");
    fs::write(target.join("x"), "y").expect("write");
    assert_eq!(fs::read_to_string(fixture.volume().join("made/on/demand/x")).expect("read"), "y");
    let mode = |p: &Path| fs::metadata(p).expect("stat").mode() & 0o777;
    assert_eq!(mode(&fixture.volume().join("made")), mode(&fixture.volume()));
    // More than any usual umask leaves of it.
    fs::set_permissions(fixture.volume(), fs::Permissions::from_mode(0o2777)).expect("chmod");
    fixture.prepare("open/to/all").expect("made");
    for made in ["open", "open/to", "open/to/all"] {
        let found = fs::metadata(fixture.volume().join(made)).expect("stat").mode() & 0o7777;
        assert_eq!(found, 0o2777, "{made}");
    }
    assert_eq!(mountinfo::mounts_under(&fixture.dirs.subpaths()).expect("mounts").len(), 1);

    testing::wait(VolumeManager::new().teardown(&fixture.dirs)).expect("teardown");
    fixture.dirs.remove().expect("remove");
    assert!(
        fixture.volume().join("made/on/demand/x").exists(),
        "the volume's content is not the sub-path's to remove"
    );
}

#[test]
fn a_link_that_stays_inside_is_followed() {
    let fixture = require!(Fixture::new());
    symlink("inner", fixture.volume().join("link")).expect("link");
    symlink("../link", fixture.volume().join("inner/up")).expect("link");
    fs::write(fixture.volume().join("inner/f"), "x").expect("write");
    let target = fixture.prepare("inner/up/f").expect("inside");
    assert_eq!(fs::read_to_string(target).expect("read"), "x");
}

#[test]
fn every_way_out_is_refused_and_nothing_is_left_mounted() {
    let fixture = require!(Fixture::new());
    let volume = fixture.volume();
    symlink("../outside", volume.join("relative-out")).expect("link");
    symlink(fixture.temp.path().join("outside"), volume.join("absolute-out")).expect("link");
    symlink("/proc/self/root", volume.join("magic")).expect("link");
    symlink("self", volume.join("self")).expect("link");
    symlink("nowhere", volume.join("dangling")).expect("link");
    fs::write(volume.join("file"), "x").expect("write");
    let cases = [
        ("../outside", "'..'"),
        ("inner/../../outside", "'..'"),
        ("/etc", "absolute"),
        ("relative-out", "out of the volume"),
        ("relative-out/precious", "out of the volume"),
        ("relative-out/made", "out of the volume"),
        ("absolute-out/precious", "out of the volume"),
        ("magic/etc", "out of the volume"),
        ("self", "link"),
        ("dangling", "volume \"data\""),
        ("file/below", "not a directory"),
    ];
    for (sub_path, expected) in cases {
        let error = fixture.prepare(sub_path).expect_err(sub_path).to_string();
        assert!(error.contains(expected) && error.contains(sub_path), "{sub_path}: {error}");
    }
    assert!(!fixture.temp.path().join("outside/made").exists());
    assert!(mountinfo::mounts_under(fixture.dirs.path()).expect("mounts").is_empty());
}

#[test]
fn a_directory_swapped_for_a_link_meanwhile_never_leads_out() {
    let fixture = require!(Fixture::new());
    let volume = fixture.volume();
    fs::write(volume.join("inner/precious"), "harmless").expect("write");
    symlink("../outside", volume.join("evil")).expect("link");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let exchange = rustix::fs::RenameFlags::EXCHANGE;
            while !stop.load(Ordering::Relaxed) {
                let (a, b) = (volume.join("inner"), volume.join("evil"));
                rustix::fs::renameat_with(rustix::fs::CWD, &a, rustix::fs::CWD, &b, exchange)
                    .expect("exchange");
            }
        });
        for _ in 0..300 {
            if let Ok(target) = fixture.prepare("inner/precious") {
                assert_eq!(fs::read_to_string(target).expect("read"), "harmless");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}
