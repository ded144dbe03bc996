use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use keelson_require::require;
use serde_json::json;

use super::*;
use crate::plugin::{Gathered, NoProgress, PodSetup};
use crate::testing::{mountable, pod_dirs, wait};

struct Case {
    order: Prepare,
}

impl Case {
    fn new(root: &Path, source: &Path, options: &[&str], read_only: bool) -> Self {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [], "securityContext": {"fsGroup": 4321}}});
        let setup = PodSetup {
            pod: Arc::new(serde_json::from_value(pod).unwrap()),
            dirs: pod_dirs(root),
            node_allocatable: BTreeMap::new(),
            progress: Arc::new(NoProgress),
        };
        let backing = Backing::Local {
            path: source.to_string_lossy().into_owned(),
            mount_options: options.iter().map(|o| (*o).to_owned()).collect(),
        };
        let claimed = ClaimedVolume { name: "pv".into(), backing, read_only };
        let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": "c"}});
        let gathered = Gathered { claimed: Some(Arc::new(claimed)), ..Gathered::default() };
        let volume = serde_json::from_value(volume).unwrap();
        Self { order: Prepare { pod: Arc::new(setup), volume, gathered } }
    }

    fn prepare(&self) -> Result<PathBuf, String> {
        let prepared = wait(LocalVolume.prepare(self.order.clone())).map_err(|e| e.to_string())?;
        Ok(prepared.place.on_host().unwrap().into())
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        let _ = mounting::unmount(&self.order.pod.dirs.volume(DIRECTORY, "pv"));
    }
}

#[test]
fn it_is_shown_once_given_to_the_group_once_and_left_as_it_is() {
    let temp = require!(mountable());
    let (root, disk) = (temp.path().join("root"), temp.path().join("disk"));
    fs::create_dir(&disk).unwrap();
    fs::write(disk.join("file"), "kept").unwrap();
    let case = Case::new(&root, &disk, &[], false);
    let place = case.prepare().unwrap();
    assert_eq!(fs::read_to_string(place.join("file")).unwrap(), "kept");
    assert_eq!(fs::metadata(disk.join("file")).unwrap().gid(), 4321);
    // What the pod does to it afterwards is not undone.
    fs::set_permissions(disk.join("file"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(case.prepare().unwrap(), place);
    assert_eq!(fs::metadata(disk.join("file")).unwrap().mode() & 0o777, 0o600);
    let mounts = mountinfo::mounts_under(&root).unwrap();
    assert_eq!(mounts.len(), 1, "{mounts:?}");

    let found = LocalVolume.reconstruct(&case.order.pod.dirs).unwrap();
    assert_eq!(found, [Mounted { volume: "pv".into(), path: place.clone() }]);
    wait(LocalVolume.release(found.into_iter().next().unwrap())).unwrap();
    assert!(mountinfo::mounts_under(&root).unwrap().is_empty());
    assert_eq!(fs::read_to_string(disk.join("file")).unwrap(), "kept");
}

#[test]
fn another_directory_that_was_shown_there_goes() {
    let temp = require!(mountable());
    let (root, old, new) = (temp.path().join("root"), temp.path().join("old"), temp.path().join("new"));
    for (dir, text) in [(&old, "old"), (&new, "new")] {
        fs::create_dir(dir).unwrap();
        fs::write(dir.join("file"), text).unwrap();
    }
    let first = Case::new(&root, &old, &[], false);
    first.prepare().unwrap();
    let place = Case::new(&root, &new, &[], false).prepare().unwrap();
    let read = fs::read_to_string(place.join("file"));
    drop(first);
    assert!(read.is_err() || read.unwrap() == "new");
}

#[test]
fn options_hold_and_what_cannot_be_shown_is_named() {
    let temp = require!(mountable());
    let (root, disk) = (temp.path().join("root"), temp.path().join("disk"));
    fs::create_dir(&disk).unwrap();
    fs::write(temp.path().join("plain"), "").unwrap();
    let limited = Case::new(&root, &disk, &["noexec,nosuid"], true);
    let place = limited.prepare().unwrap();
    let options = mountinfo::mounts_under(&place).unwrap()[0].options.clone();
    assert!(
        ["ro", "noexec", "nosuid"].iter().all(|o| options.split(',').any(|held| held == *o)),
        "{options}"
    );
    assert!(fs::write(place.join("x"), "").is_err());
    drop(limited);
    for (source, options, words) in [
        ("nowhere", vec![], "nowhere\" of persistentvolume \"pv\" cannot be used: No such file"),
        ("plain", vec![], "is no directory; mount what it is"),
        ("disk", vec!["loop"], "mount option \"loop\" of local.path"),
    ] {
        let said = Case::new(&root, &temp.path().join(source), &options, false).prepare().unwrap_err();
        assert!(said.contains(words) && said.contains("volume \"data\""), "{said}");
    }
    assert!(mountinfo::mounts_under(&root).unwrap().is_empty());
}
