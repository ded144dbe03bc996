use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::PathBuf;

use super::*;
use crate::testing;

fn payload<'a>(files: &[(&str, &'a str)]) -> Payload<'a> {
    let file = |text: &'a str| PayloadFile { data: text.as_bytes().into(), mode: 0o644, uid: None };
    Payload { files: files.iter().map(|(name, text)| ((*name).to_owned(), file(text))).collect() }
}

fn listing(path: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(path)
        .expect("list")
        .map(|e| e.expect("entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    names
}

fn live(path: &Path) -> PathBuf {
    path.join(fs::read_link(path.join("..data")).expect("..data"))
}

/// What a reader must find: these files, and nothing but the writer's own names beside them.
fn assert_holds(path: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        assert_eq!(&fs::read_to_string(path.join(name)).expect(name), text, "{name}");
    }
    let visible: BTreeSet<&str> =
        files.iter().map(|(name, _)| name.split('/').next().expect("part")).collect();
    let names = listing(path);
    let plain: BTreeSet<&str> = names.iter().map(String::as_str).filter(|n| !n.starts_with("..")).collect();
    assert_eq!(plain, visible);
    assert_eq!(names.iter().filter(|n| n.starts_with("..")).count(), 2, "{names:?}");
}

#[test]
fn files_are_written_updated_and_removed() {
    // Files of a volume belong to root, and one that does not is written again.
    keelson_require::require!(keelson_require::root());
    let temp = testing::dir();
    let path = temp.path();
    let first = [("a", "1"), ("b/c", "2"), ("b/d", "3")];
    assert!(write(path, &payload(&first), None).expect("first"));
    assert_holds(path, &first);
    let before = live(path);
    assert!(!write(path, &payload(&first), None).expect("again"), "the same content is not written twice");
    assert_eq!(live(path), before);
    let second = [("a", "new"), ("e", "4")];
    assert!(write(path, &payload(&second), None).expect("second"));
    assert_holds(path, &second);
    assert!(write(path, &payload(&[]), None).expect("nothing"));
    assert_holds(path, &[]);
}

#[test]
fn a_changed_mode_and_a_stray_file_count_as_changes() {
    let temp = testing::dir();
    let mut wanted = payload(&[("a", "1")]);
    write(temp.path(), &wanted, None).expect("first");
    wanted.files.get_mut("a").expect("a").mode = 0o400;
    assert!(write(temp.path(), &wanted, None).expect("mode"));
    assert_eq!(fs::metadata(temp.path().join("a")).expect("stat").mode() & 0o7777, 0o400);
    fs::write(live(temp.path()).join("stray"), "x").expect("write");
    assert!(write(temp.path(), &wanted, None).expect("stray"));
    assert_holds(temp.path(), &[("a", "1")]);
}

#[test]
fn a_crash_after_any_step_is_repaired() {
    let old = [("a", "old"), ("gone", "old")];
    let new = [("a", "new"), ("b", "new")];
    type Crash = (&'static str, fn(&Path));
    let crashes: [Crash; 5] = [
        ("after making the new directory", |p| fs::create_dir(p.join("..new")).expect("mkdir")),
        ("while writing into it", |p| {
            fs::create_dir(p.join("..new")).expect("mkdir");
            fs::write(p.join("..new/a"), "ne").expect("write");
        }),
        ("after making the new link", |p| {
            fs::create_dir(p.join("..new")).expect("mkdir");
            fs::write(p.join("..new/a"), "new").expect("write");
            symlink("..new", p.join("..data_tmp")).expect("link");
        }),
        ("after the swap", |p| {
            fs::create_dir(p.join("..new")).expect("mkdir");
            fs::write(p.join("..new/a"), "new").expect("write");
            fs::write(p.join("..new/b"), "new").expect("write");
            symlink("..new", p.join("..data_tmp")).expect("link");
            fs::rename(p.join("..data_tmp"), p.join("..data")).expect("rename");
        }),
        ("with ..data leading nowhere", |p| {
            fs::remove_dir_all(live(p)).expect("remove");
        }),
    ];
    for (case, crash) in crashes {
        let temp = testing::dir();
        write(temp.path(), &payload(&old), None).expect("old");
        crash(temp.path());
        write(temp.path(), &payload(&new), None).unwrap_or_else(|e| panic!("{case}: {e}"));
        assert_holds(temp.path(), &new);
    }
}

#[test]
fn hostile_entries_are_replaced_and_never_followed() {
    let outside = testing::dir();
    fs::write(outside.path().join("precious"), "untouched").expect("write");
    type Attack = (&'static str, fn(&Path, &Path));
    let attacks: [Attack; 6] = [
        ("a link out in place of a file", |v, out| {
            fs::remove_file(v.join("precious")).expect("remove");
            symlink(out.join("precious"), v.join("precious")).expect("link");
        }),
        ("..data leading out", |v, out| {
            fs::remove_file(v.join("..data")).expect("remove");
            symlink(out, v.join("..data")).expect("link");
        }),
        ("..data leading up", |v, _| {
            fs::remove_file(v.join("..data")).expect("remove");
            symlink("..", v.join("..data")).expect("link");
        }),
        ("..data being a directory", |v, _| {
            fs::remove_file(v.join("..data")).expect("remove");
            fs::create_dir_all(v.join("..data/x/y")).expect("mkdir");
        }),
        ("a link out inside of the live directory", |v, out| {
            let live = live(v);
            fs::remove_file(live.join("precious")).expect("remove");
            symlink(out.join("precious"), live.join("precious")).expect("link");
        }),
        ("a directory with a link out in place of a file, and ..data_tmp as a directory", |v, out| {
            fs::remove_file(v.join("precious")).expect("remove");
            fs::create_dir(v.join("precious")).expect("mkdir");
            symlink(out, v.join("precious/link")).expect("link");
            fs::create_dir_all(v.join("..data_tmp/z")).expect("mkdir");
        }),
    ];
    for (case, attack) in attacks {
        for content in ["mine", "changed"] {
            let volume = testing::dir();
            write(volume.path(), &payload(&[("precious", "mine")]), None).expect("first");
            attack(volume.path(), outside.path());
            let wanted = [("precious", content)];
            write(volume.path(), &payload(&wanted), None).unwrap_or_else(|e| panic!("{case}: {e}"));
            assert_holds(volume.path(), &wanted);
            assert_eq!(
                fs::read_to_string(outside.path().join("precious")).expect("read"),
                "untouched",
                "{case}"
            );
            assert_eq!(listing(outside.path()), ["precious"], "{case}");
        }
    }
}

#[test]
fn names_that_leave_the_volume_are_refused() {
    for name in ["../x", "/etc/x", "a/../../x", "..data", "..x", "", "a//b", "a/./b", "a\0b"] {
        let temp = testing::dir();
        let error = write(temp.path(), &payload(&[(name, "x")]), None).expect_err(name);
        assert!(error.to_string().contains("no path inside"), "{error}");
        assert!(listing(temp.path()).is_empty(), "{name:?} left something behind");
    }
}

#[test]
fn with_an_fs_group_the_group_can_read() {
    keelson_require::require!(keelson_require::root());
    let temp = testing::dir();
    let mut wanted = payload(&[("d/a", "1"), ("token", "t")]);
    *wanted.files.get_mut("token").expect("token") =
        PayloadFile { data: b"t"[..].into(), mode: 0o600, uid: Some(1000) };
    assert!(write(temp.path(), &wanted, Some(2000)).expect("write"));
    let stat = |name: &str| fs::metadata(temp.path().join(name)).expect("stat");
    assert_eq!((stat("d/a").gid(), stat("d/a").mode() & 0o7777), (2000, 0o644));
    assert_eq!((stat("d").gid(), stat("d").mode() & 0o7777), (2000, 0o2755));
    assert_eq!(
        (stat("token").uid(), stat("token").gid(), stat("token").mode() & 0o7777),
        (1000, 2000, 0o640)
    );
    assert!(!write(temp.path(), &wanted, Some(2000)).expect("again"));
}
