use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use keelson_core::volumes::ChangePolicy;
use keelson_require::require;

use super::*;
use crate::testing;

const GROUP: u32 = 2000;

fn walk(path: &Path, policy: ChangePolicy) -> Walked {
    let interrupt = Interrupt::default();
    let group = FsGroup { id: GROUP, policy };
    let order = Walk {
        group,
        read_only: false,
        interrupt: &interrupt,
        progress: &|_| {},
        report_every: Duration::MAX,
    };
    give_to_group(path, &order).expect("a walk")
}

fn group_and_mode(path: &Path) -> (u32, u32) {
    let found = fs::symlink_metadata(path).expect("stat");
    (found.gid(), found.mode() & 0o7777)
}

#[test]
fn everything_in_a_volume_is_given_to_the_group_and_nothing_outside() {
    require!(keelson_require::root());
    let temp = testing::dir();
    let volume = temp.path().join("volume");
    let outside = temp.path().join("outside");
    fs::create_dir_all(volume.join("a/b")).expect("mkdir");
    fs::create_dir(&outside).expect("mkdir");
    for file in [volume.join("a/b/file"), outside.join("file")] {
        fs::write(&file, "x").expect("write");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("chmod");
    }
    symlink(outside.join("file"), volume.join("a/to-file")).expect("link");
    symlink(&outside, volume.join("to-directory")).expect("link");
    symlink("../../outside/file", volume.join("a/upwards")).expect("link");
    let before = (group_and_mode(&outside), group_and_mode(&outside.join("file")));

    let walked = walk(&volume, ChangePolicy::Always);
    assert_eq!(walked, Walked::All { entries: 7, failed: 0 });
    assert_eq!(group_and_mode(&volume.join("a/b/file")), (GROUP, 0o660));
    for dir in ["", "a", "a/b"] {
        assert_eq!(group_and_mode(&volume.join(dir)), (GROUP, 0o2775), "{dir}");
    }
    for link in ["a/to-file", "to-directory", "a/upwards"] {
        assert_eq!(group_and_mode(&volume.join(link)), (GROUP, 0o777), "{link}");
    }
    assert_eq!((group_and_mode(&outside), group_and_mode(&outside.join("file"))), before);
    symlink(&volume, temp.path().join("swapped")).expect("link");
    let interrupt = Interrupt::default();
    let group = FsGroup { id: 7, policy: ChangePolicy::Always };
    let order = Walk {
        group,
        read_only: false,
        interrupt: &interrupt,
        progress: &|_| {},
        report_every: Duration::MAX,
    };
    assert!(give_to_group(&temp.path().join("swapped"), &order).is_err(), "a link in place of the volume");
    assert_eq!(group_and_mode(&volume).0, GROUP);
}

#[test]
fn a_directory_that_turns_into_a_link_leads_nowhere() {
    require!(keelson_require::root());
    let temp = testing::dir();
    let (volume, outside) = (temp.path().join("volume"), temp.path().join("outside"));
    fs::create_dir(&volume).expect("mkdir");
    fs::create_dir(&outside).expect("mkdir");
    fs::write(outside.join("file"), "x").expect("write");
    fs::create_dir(volume.join("swapping")).expect("mkdir");
    symlink(&outside, volume.join("other")).expect("link");
    let stop = Interrupt::default();
    let (stopped, at) = (stop.clone(), volume.clone());
    let swapper = std::thread::spawn(move || {
        let flags = rustix::fs::RenameFlags::EXCHANGE;
        while !stopped.is_set() {
            let (a, b) = (at.join("swapping"), at.join("other"));
            rustix::fs::renameat_with(rustix::fs::CWD, &a, rustix::fs::CWD, &b, flags).expect("swap");
        }
    });
    for _ in 0..300 {
        walk(&volume, ChangePolicy::Always);
    }
    drop(stop.on_drop());
    swapper.join().expect("the swapper");
    assert_ne!(group_and_mode(&outside).0, GROUP);
    assert_ne!(group_and_mode(&outside.join("file")).0, GROUP);
}

#[test]
fn a_volume_whose_top_is_right_is_gone_through_only_if_that_is_asked_for() {
    require!(keelson_require::root());
    let temp = testing::dir();
    let volume = temp.path().join("volume");
    fs::create_dir(&volume).expect("mkdir");
    assert_eq!(walk(&volume, ChangePolicy::OnRootMismatch), Walked::All { entries: 1, failed: 0 });
    fs::write(volume.join("late"), "x").expect("write");
    std::os::unix::fs::chown(volume.join("late"), None, Some(0)).expect("chown");
    assert_eq!(walk(&volume, ChangePolicy::OnRootMismatch), Walked::Skipped);
    assert_eq!(group_and_mode(&volume.join("late")).0, 0);
    assert_eq!(walk(&volume, ChangePolicy::Always), Walked::All { entries: 2, failed: 0 });
    assert_eq!(group_and_mode(&volume.join("late")).0, GROUP);
}

#[test]
fn a_walk_that_is_broken_off_leaves_the_top_for_the_next_one() {
    require!(keelson_require::root());
    let temp = testing::dir();
    let volume = temp.path().join("volume");
    fs::create_dir(&volume).expect("mkdir");
    for file in 0..100 {
        fs::write(volume.join(format!("file-{file}")), "").expect("write");
    }
    let interrupt = Interrupt::default();
    let told = Cell::new(0);
    let progress = |entries| {
        told.set(entries);
        if entries == 50 {
            drop(interrupt.on_drop());
        }
    };
    let group = FsGroup { id: GROUP, policy: ChangePolicy::OnRootMismatch };
    let (interrupt, report_every) = (&interrupt, Duration::ZERO);
    let order = Walk { group, read_only: false, interrupt, progress: &progress, report_every };
    assert_eq!(give_to_group(&volume, &order).expect("a walk"), Walked::Interrupted);
    assert_eq!(told.get(), 50, "it went on");
    let given = || (0..100).filter(|n| group_and_mode(&volume.join(format!("file-{n}"))).0 == GROUP).count();
    assert_eq!(given(), 50);
    assert_ne!(group_and_mode(&volume).0, GROUP, "the top says that all was done");
    assert_eq!(walk(&volume, ChangePolicy::OnRootMismatch), Walked::All { entries: 101, failed: 0 });
    assert_eq!(given(), 100);
}

#[test]
fn another_filesystem_inside_of_a_volume_is_not_entered() {
    let temp = require!(testing::mountable());
    let (volume, kept) = (temp.path().join("volume"), temp.path().join("kept"));
    fs::create_dir_all(volume.join("mounted")).expect("mkdir");
    fs::create_dir(&kept).expect("mkdir");
    fs::write(kept.join("file"), "x").expect("write");
    rustix::mount::mount_bind(&kept, volume.join("mounted")).expect("bind mount");
    walk(&volume, ChangePolicy::Always);
    rustix::mount::unmount(volume.join("mounted"), rustix::mount::UnmountFlags::DETACH).ok();
    assert_ne!(group_and_mode(&kept).0, GROUP);
    assert_ne!(group_and_mode(&kept.join("file")).0, GROUP);
}

#[test]
fn what_lies_deeper_than_is_gone_is_counted_as_left() {
    require!(keelson_require::root());
    let temp = testing::dir();
    let top = temp.path().join("volume");
    fs::create_dir(&top).expect("mkdir");
    let mut dir = tree::open_dir(&top).expect("open");
    for _ in 0..MAX_DEPTH + 10 {
        rustix::fs::mkdirat(&dir, c"nested-directory", Mode::RWXU).expect("mkdir");
        dir = tree::open_subdir(&dir, c"nested-directory").expect("open");
    }
    assert_eq!(walk(&top, ChangePolicy::Always), Walked::All { entries: MAX_DEPTH as u64, failed: 1 });
    tree::remove(&top).expect("removal");
}
