use std::fs::File;
use std::os::unix::fs::symlink;

use tokio::sync::watch;

use super::*;
use crate::testing;

fn manifest_text(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: {image}}}]}}\n"
    )
}

fn manifests_in(dir: &Path) -> ManifestSet {
    scan(dir, "node", Timestamp::UNIX_EPOCH, &vec![]).set
}

fn names(set: &ManifestSet) -> Vec<String> {
    set.iter().flatten().map(|p| p.pod.metadata.name.clone().unwrap_or_default()).collect()
}

fn complaints(set: &ManifestSet) -> Vec<String> {
    set.iter().filter_map(|r| r.as_ref().err()).map(ToString::to_string).collect()
}

#[test]
fn files_are_read_and_what_is_no_manifest_is_left_out_or_named() {
    let temp = testing::dir();
    let dir = temp.path().join("manifests");
    assert!(manifests_in(&dir).is_empty(), "a missing directory is no error");
    fs::create_dir_all(dir.join("subdirectory")).expect("mkdir");
    fs::write(dir.join("b.yaml"), manifest_text("b", "x")).expect("write");
    fs::write(dir.join("a.json"), manifest_text("a", "x")).expect("write");
    fs::write(dir.join(".hidden.yaml"), manifest_text("h", "x")).expect("write");
    fs::write(dir.join("broken.yaml"), "kind: [").expect("write");
    fs::write(dir.join("huge.yaml"), vec![b'#'; MAX_MANIFEST_BYTES + 10]).expect("write");
    fs::write(temp.path().join("linked"), manifest_text("linked", "x")).expect("write");
    symlink("../linked", dir.join("link.yaml")).expect("link");
    symlink("../nowhere", dir.join("dead.yaml")).expect("link");
    symlink(".", dir.join("loop-dir")).expect("link");
    let set = manifests_in(&dir);
    assert_eq!(names(&set), ["a-node", "b-node", "linked-node"]);
    let complaints = complaints(&set);
    assert_eq!(complaints.len(), 3, "{complaints:?}");
    assert!(complaints[0].contains("broken.yaml"));
    assert!(complaints[1].contains("dead.yaml"));
    assert!(complaints[2].contains("huge.yaml") && complaints[2].contains("is larger than"));
}

#[test]
fn a_single_file_may_take_the_place_of_the_directory() {
    let temp = testing::dir();
    let file = temp.path().join("one.yaml");
    fs::write(&file, manifest_text("one", "x")).expect("write");
    assert_eq!(names(&manifests_in(&file)), ["one-node"]);
}

#[test]
fn of_two_manifests_with_one_name_the_last_write_counts() {
    let temp = testing::dir();
    let (first, second) = (temp.path().join("a.yaml"), temp.path().join("b.yaml"));
    fs::write(&first, manifest_text("web", "x:1")).expect("write");
    fs::write(&second, manifest_text("web", "x:2")).expect("write");
    let stamp = |path: &Path, seconds: u64| {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        File::options().write(true).open(path).expect("open").set_modified(time).expect("mtime");
    };
    for (times, winner) in [((2000, 1000), &first), ((1000, 2000), &second), ((1000, 1000), &second)] {
        stamp(&first, times.0);
        stamp(&second, times.1);
        let set = manifests_in(temp.path());
        let files: Vec<&str> = set.iter().flatten().map(|p| p.file.as_str()).collect();
        assert_eq!(files, [winner.to_str().expect("path")], "{times:?}");
        let complaints = complaints(&set);
        assert_eq!(complaints.len(), 1);
        assert!(
            complaints[0].contains("pod default/web-node") && complaints[0].contains("the one that counts"),
            "{complaints:?}"
        );
    }
}

#[test]
fn a_pod_keeps_the_time_at_which_it_was_first_seen() {
    let temp = testing::dir();
    fs::write(temp.path().join("a.yaml"), manifest_text("a", "x")).expect("write");
    let first = manifests_in(temp.path());
    let again = scan(temp.path(), "node", Timestamp::MAX, &first).set;
    assert_eq!(first, again);
}

#[test]
fn what_cannot_be_read_stays_as_it_was() {
    let temp = testing::dir();
    let dir = temp.path().join("manifests");
    fs::create_dir(&dir).expect("mkdir");
    for name in ["a", "b"] {
        fs::write(dir.join(name), manifest_text(name, "x")).expect("write");
    }
    let known = manifests_in(&dir);
    assert_eq!(names(&known), ["a-node", "b-node"]);
    let again = |known: &ManifestSet| scan(&dir, "node", Timestamp::UNIX_EPOCH, known).set;
    // Links in a circle are an error for everybody, root too.
    fs::remove_file(dir.join("a")).expect("remove");
    symlink("a", dir.join("a")).expect("link");
    let one = again(&known);
    assert_eq!(names(&one), ["a-node", "b-node"]);
    assert!(complaints(&one).concat().contains("manifests/a: cannot be read"), "{one:?}");
    assert_eq!(again(&one), one, "the same once more");

    fs::rename(&dir, temp.path().join("aside")).expect("rename");
    symlink("manifests", &dir).expect("link");
    let all = again(&one);
    assert_eq!(names(&all), ["a-node", "b-node"]);
    assert!(complaints(&all).concat().contains("cannot be read"), "{all:?}");
    assert_eq!(complaints(&all).len(), 1, "{all:?}");

    fs::remove_file(&dir).expect("remove");
    assert!(again(&all).is_empty(), "a directory that is gone holds nothing");
}

#[test]
fn a_file_that_is_being_written_is_left_until_it_is_closed() {
    keelson_require::require!(testing::leases());
    let temp = testing::dir();
    let path = temp.path().join("a.yaml");
    let scanned = |known: &ManifestSet| scan(temp.path(), "node", Timestamp::UNIX_EPOCH, known);
    let writer = File::create(&path).expect("create");
    let first = scanned(&vec![]);
    assert!(first.set.is_empty() && first.unfinished, "{first:?}");
    fs::write(&path, manifest_text("a", "x:1")).expect("write");
    drop(writer);
    let whole = scanned(&first.set);
    assert!(names(&whole.set) == ["a-node"] && !whole.unfinished, "{whole:?}");

    let writer = File::create(&path).expect("open again, and empty it");
    let rewriting = scanned(&whole.set);
    assert!(
        rewriting.set == whole.set && rewriting.unfinished,
        "the pod is not stopped for it: {rewriting:?}"
    );
    let long_ago = SystemTime::now() - WRITING * 2;
    writer.set_modified(long_ago).expect("mtime");
    let given_up = scanned(&whole.set);
    assert!(!given_up.unfinished, "a writer that never closes is not waited for");
    assert!(complaints(&given_up.set).concat().contains("is empty"), "{given_up:?}");
}

async fn next(sets: &mut watch::Receiver<Option<Arc<ManifestSet>>>, wanted: impl Fn(&ManifestSet) -> bool) {
    let wait = sets.wait_for(|set| set.as_ref().is_some_and(|s| wanted(s)));
    tokio::time::timeout(Duration::from_secs(30), wait)
        .await
        .expect("the change was not reported")
        .expect("open");
}

#[tokio::test]
async fn changes_are_reported_from_before_the_directory_is_there() {
    let temp = testing::dir();
    let dir = temp.path().join("not/yet");
    let (sender, mut sets) = watch::channel(None);
    // No rescan within the test: only reported changes can make it pass.
    let settings =
        ManifestSettings { path: dir.clone(), node_name: "node".into(), rescan: Duration::from_secs(3600) };
    let task = tokio::spawn(run(settings, sender));
    next(&mut sets, Vec::is_empty).await;

    fs::create_dir_all(&dir).expect("mkdir");
    fs::write(dir.join("a.yaml"), manifest_text("a", "x:1")).expect("write");
    next(&mut sets, |s| names(s) == ["a-node"]).await;
    let uid = sets.borrow().as_ref().expect("set")[0].as_ref().expect("pod").uid.clone();

    fs::write(temp.path().join("new"), manifest_text("a", "x:2")).expect("write");
    fs::rename(temp.path().join("new"), dir.join("a.yaml")).expect("replace");
    next(&mut sets, |s| s.iter().flatten().any(|p| p.uid != uid)).await;

    fs::remove_file(dir.join("a.yaml")).expect("remove");
    next(&mut sets, Vec::is_empty).await;

    // Never as the half that it is for a while: nothing is reported until it is closed.
    let mut slow = File::create(dir.join("slow.yaml")).expect("create");
    std::io::Write::write_all(&mut slow, b"apiVersion: v1\nkind: Pod\n").expect("write");
    fs::write(dir.join("other.yaml"), manifest_text("other", "x:1")).expect("write");
    next(&mut sets, |s| names(s) == ["other-node"] && complaints(s).is_empty()).await;
    std::io::Write::write_all(
        &mut slow,
        b"metadata: {name: slow}\nspec: {containers: [{name: c, image: i}]}\n",
    )
    .expect("write");
    drop(slow);
    next(&mut sets, |s| names(s) == ["other-node", "slow-node"]).await;
    for file in ["slow.yaml", "other.yaml"] {
        fs::remove_file(dir.join(file)).expect("remove");
    }
    next(&mut sets, Vec::is_empty).await;

    fs::remove_dir(&dir).expect("remove");
    fs::create_dir(&dir).expect("make again");
    fs::write(dir.join("b.yaml"), manifest_text("b", "x:1")).expect("write");
    next(&mut sets, |s| names(s) == ["b-node"]).await;

    drop(sets);
    tokio::time::timeout(Duration::from_secs(30), task)
        .await
        .expect("must end when nobody listens")
        .expect("no panic");
}
