//! Several volumes of one pod: each fares for itself, and all of them go at the end.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Volume;
use keelson_core::backoff::VOLUMES;
use keelson_core::volumes::{Change, VolumesState};
use keelson_host::mountinfo;
use keelson_require::require;
use rustix::mount::MountFlags;
use serde_json::{Value, json};

use crate::testing::{self, Rig, pod_dirs, wait};
use crate::{
    Mounted, Prepare, Prepared, TeardownError, VolumeError, VolumeFuture, VolumeManager, VolumePlugin,
};

fn after(start: Timestamp, pause: Duration) -> Timestamp {
    start + SignedDuration::try_from(pause).expect("a pause")
}

/// The pod has a good volume before and behind one that shows an object which is not there yet.
fn one_of_several_fails(root: &Path, late: Value, message: &str) {
    let volumes =
        json!([{"name": "scratch", "emptyDir": {}}, late, {"name": "conf", "configMap": {"name": "conf"}}]);
    let mut rig = Rig::new(root, volumes, json!({}));
    rig.objects.set("conf", "text");
    let start = Timestamp::from_second(1_800_000_000).expect("time");
    let failure = format!("MountVolume.SetUp failed for volume \"late\" : {message}");

    let (plan, failures) = rig.round(start);
    assert_eq!(plan.prepare, ["scratch", "late", "conf"]);
    assert_eq!(failures, std::slice::from_ref(&failure));
    assert_eq!(rig.states.state, VolumesState::Failed(failure.clone()));
    assert_eq!(rig.objects.take_asked(), ["late", "conf"]);
    let paths = rig.states.paths();
    assert_eq!(fs::read_to_string(Path::new(&paths["conf"]).join("key")).expect("read"), "text");
    // Whoever prepared these again would make them anew.
    fs::remove_dir(&paths["scratch"]).expect("rmdir");
    fs::remove_dir_all(&paths["conf"]).expect("rmdir");

    let mut now = start;
    for pause in [VOLUMES.first, VOLUMES.first * 2, VOLUMES.first * 4] {
        let just_before = after(now, pause - Duration::from_millis(1));
        assert_eq!(rig.round(just_before).0, Default::default(), "tried before its back-off was over");
        now = after(now, pause);
        assert_eq!(rig.states.next_review(), Some(now));
        let (plan, failures) = rig.round(now);
        assert_eq!(plan.prepare, ["late"]);
        assert_eq!(failures, std::slice::from_ref(&failure));
        assert_eq!(rig.objects.take_asked(), ["late"]);
    }

    rig.objects.set("late", "there");
    let name = if message.starts_with("secret") { Change::Secret("late") } else { Change::ConfigMap("late") };
    rig.states.invalidate(&rig.volumes(), name);
    let (plan, failures) = rig.round(now);
    assert_eq!((plan.prepare, failures), (vec!["late".to_owned()], vec![]));
    assert_eq!(rig.states.state, VolumesState::Ready);
    let written = Path::new(&rig.states.paths()["late"]).join("key");
    assert_eq!(fs::read_to_string(written).expect("read"), "there");
    assert!(!Path::new(&paths["scratch"]).exists() && !Path::new(&paths["conf"]).exists());
    assert_eq!(rig.states.next_review(), None, "nothing is waited for any more");
}

#[test]
fn a_missing_config_map_is_waited_for_alone() {
    let late = json!({"name": "late", "configMap": {"name": "late"}});
    one_of_several_fails(testing::dir().path(), late, "configmap \"late\" not found");
}

#[test]
fn a_missing_secret_is_waited_for_alone() {
    let temp = require!(testing::mountable());
    let late = json!({"name": "late", "secret": {"secretName": "late"}});
    one_of_several_fails(temp.path(), late, "secret \"late\" not found");
}

#[test]
fn a_changed_object_reaches_the_volumes_that_show_it_and_no_others() {
    let temp = testing::dir();
    let volumes =
        json!([{"name": "a", "configMap": {"name": "one"}}, {"name": "b", "configMap": {"name": "two"}}]);
    let mut rig = Rig::new(temp.path(), volumes, json!({}));
    rig.objects.set("one", "1");
    rig.objects.set("two", "2");
    let now = Timestamp::UNIX_EPOCH;
    rig.round(now);
    rig.objects.set("one", "new");
    rig.objects.set("two", "new");
    rig.states.invalidate(&rig.volumes(), Change::ConfigMap("two"));
    let (plan, _) = rig.round(now);
    assert_eq!(plan.refresh, ["b"]);
    let paths = rig.states.paths();
    let read = |volume: &str| fs::read_to_string(Path::new(&paths[volume]).join("key")).expect("read");
    assert_eq!((read("a").as_str(), read("b").as_str()), ("1", "new"));
}

#[test]
fn without_the_pods_directories_no_volume_is_tried() {
    let temp = testing::dir();
    fs::write(temp.path().join("pods"), "in the way").expect("write");
    let mut rig = Rig::new(temp.path(), json!([{"name": "a", "configMap": {"name": "one"}}]), json!({}));
    let (plan, failures) = rig.round(Timestamp::UNIX_EPOCH);
    assert!(plan.directories);
    assert!(failures.len() == 1 && failures[0].contains("make the directory"), "{failures:?}");
    assert!(rig.objects.take_asked().is_empty());
}

#[test]
fn what_the_pod_does_not_name_any_more_is_given_back() {
    let temp = require!(testing::mountable());
    let memory = |name: &str| json!({"name": name, "emptyDir": {"medium": "Memory"}});
    let mut before = Rig::new(temp.path(), json!([memory("old"), memory("kept")]), json!({}));
    before.round(Timestamp::UNIX_EPOCH);
    let mut now = Rig::new(temp.path(), json!([memory("kept")]), json!({}));
    now.states = before.states.clone();
    let paths = now.states.paths();
    let (plan, failures) = now.round(Timestamp::UNIX_EPOCH);
    assert_eq!((plan.release, failures), (vec!["old".to_owned()], vec![]));
    assert!(!mountinfo::is_mountpoint(paths["old"].as_ref()).expect("mountinfo"));
    assert!(mountinfo::is_mountpoint(paths["kept"].as_ref()).expect("mountinfo"));
    assert_eq!(now.states.paths().into_keys().collect::<Vec<_>>(), ["kept"]);
}

/// Mounts a tmpfs as an agent that is gone would have.
fn left(path: &Path) {
    fs::create_dir_all(path).expect("mkdir");
    rustix::mount::mount("tmpfs", path, "tmpfs", MountFlags::empty(), None).expect("mount");
}

#[test]
fn what_an_earlier_agent_left_is_found_and_given_back() {
    let temp = require!(testing::mountable());
    let dirs = pod_dirs(temp.path());
    let secret = dirs.volume("kubernetes.io~secret", "s");
    let memory = dirs.volume("kubernetes.io~empty-dir", "m");
    left(&secret);
    left(&memory);
    // Twice at one place, inside of a volume, of a kind that is not known here, and a part of a volume.
    left(&memory);
    left(&memory.join("inside"));
    left(&dirs.volume("kubernetes.io~nfs", "n"));
    left(&dirs.subpaths().join("m/main/0"));
    fs::create_dir_all(dirs.volume("kubernetes.io~configmap", "c")).expect("mkdir");
    fs::write(dirs.volume("kubernetes.io~configmap", "stray-file"), "").expect("write");

    let manager = VolumeManager::new();
    let (found, failures) = wait(manager.reconstruct(&dirs));
    let found: Vec<_> = found.into_iter().map(|(_, mounted)| (mounted.volume, mounted.path)).collect();
    let map = dirs.volume("kubernetes.io~configmap", "c");
    let expected = [("m".to_owned(), memory), ("c".to_owned(), map), ("s".to_owned(), secret)];
    let torn_down = wait(manager.teardown(&dirs));
    let still = mountinfo::mounts_under(dirs.path()).expect("mounts");
    assert_eq!((found.as_slice(), failures), (expected.as_slice(), vec![]));
    torn_down.expect("teardown");
    assert!(still.is_empty(), "{still:?}");
    dirs.remove().expect("and the directories can go");
    wait(manager.teardown(&dirs)).expect("nothing left to do");
}

/// A kind that has to ask somebody else, who does not answer.
struct Unanswered;

impl VolumePlugin for Unanswered {
    fn directory(&self) -> &'static str {
        "example.com~unanswered"
    }
    fn claims(&self, volume: &Volume) -> bool {
        volume.csi.is_some()
    }
    fn prepare(&self, order: Prepare) -> VolumeFuture<'_, Prepared> {
        Box::pin(
            async move { Err(VolumeError::Gather(format!("volume {:?}: no answer", order.volume.name))) },
        )
    }
    fn release(&self, mounted: Mounted) -> VolumeFuture<'_, ()> {
        Box::pin(async move { Err(VolumeError::Gather(format!("volume {:?}: no answer", mounted.volume))) })
    }
}

#[test]
fn what_its_kind_cannot_give_back_is_not_pulled_from_under_it() {
    let temp = require!(testing::mountable());
    let volumes =
        json!([{"name": "far", "csi": {"driver": "d"}}, {"name": "near", "emptyDir": {"medium": "Memory"}}]);
    let mut rig = Rig::new(temp.path(), volumes, json!({}));
    rig.manager.plugins.push(Arc::new(Unanswered));
    let (_, failures) = rig.round(Timestamp::UNIX_EPOCH);
    assert_eq!(failures, ["volume \"far\": no answer"]);
    let far = rig.dirs().volume("example.com~unanswered", "far");
    left(&far);
    left(&far.join("inside"));
    let error = wait(rig.manager.teardown(rig.dirs())).expect_err("it stays").to_string();
    let points: Vec<_> = mountinfo::mounts_under(rig.dirs().path()).expect("mounts");
    // Without its kind, a mount is as good as any other.
    rig.manager.plugins.pop();
    rig.teardown();
    assert_eq!(error, "pod u-1: volume \"far\": no answer");
    assert_eq!(points.into_iter().map(|m| m.point).collect::<Vec<_>>(), [far]);
    assert!(mountinfo::mounts_under(rig.dirs().path()).expect("mounts").is_empty());
}

#[test]
fn volumes_are_measured_where_their_files_lie() {
    let temp = require!(testing::mountable());
    let volumes = json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
        {"name": "host", "hostPath": {"path": temp.path()}},
    ]);
    let mut rig = Rig::new(temp.path(), volumes, json!({}));
    rig.round(Timestamp::UNIX_EPOCH);
    let paths = rig.states.paths();
    for volume in ["disk", "memory"] {
        fs::write(Path::new(&paths[volume]).join("file"), vec![1; 1 << 20]).expect("write");
    }
    let measure = rig.manager.measure(temp.path(), Duration::from_secs(3600));
    let stats = wait(rig.manager.stats(rig.dirs(), &measure));
    let names: Vec<_> = stats.iter().map(|s| (s.volume.as_str(), s.ephemeral)).collect();
    assert_eq!(names, [("disk", true), ("memory", false)], "what is the host's does not count");
    assert_eq!(stats[1].fs.capacity, Some(8 << 20), "a tmpfs knows its own size");
    for of in &stats {
        assert!((1 << 20..4 << 20).contains(&of.fs.used.expect("used")), "{of:?}");
    }
    fs::write(Path::new(&paths["disk"]).join("more"), vec![1; 1 << 20]).expect("write");
    let again = wait(rig.manager.stats(rig.dirs(), &measure));
    assert_eq!(again[0].fs.used, stats[0].fs.used, "a size that was counted lately is not counted again");
}

#[test]
fn a_teardown_names_the_pod_and_everything_that_stays() {
    let failures = vec!["cannot unmount /a: busy".to_owned(), "cannot unmount /b: busy".to_owned()];
    let error = TeardownError { uid: pod_dirs(Path::new("/r")).uid().clone(), failures };
    assert_eq!(error.to_string(), "pod u-1: cannot unmount /a: busy; cannot unmount /b: busy");
}
