use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::{pack, spec};

const SPEC: &str = r#"
images:
- names: ["localhost/a:1", "localhost/b:2"]
  architecture: amd64
  layers:
  - directory: rootfs
    exclude: [etc/secret]
  - files:
      /bin/tool: {file: tool, mode: 0755}
      /bin/link: {link: tool}
      /etc/motd: {text: "hello\n"}
      /tmp: {directory: true, mode: 01777}
  config: {Entrypoint: [/bin/tool], User: "1000"}
"#;

fn prepare(directory: &Path) {
    fs::create_dir_all(directory.join("rootfs/etc/secret")).unwrap();
    fs::write(directory.join("rootfs/etc/hosts"), "127.0.0.1 localhost\n").unwrap();
    fs::write(directory.join("rootfs/etc/secret/key"), "no").unwrap();
    std::os::unix::fs::symlink("hosts", directory.join("rootfs/etc/also")).unwrap();
    fs::write(directory.join("tool"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(directory.join("tool"), fs::Permissions::from_mode(0o600)).unwrap();
}

fn entries(tar: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut archive = tar::Archive::new(tar);
    let mut found = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_string_lossy().into_owned();
        let mut bytes = vec![];
        entry.read_to_end(&mut bytes).unwrap();
        found.insert(name, bytes);
    }
    found
}

fn json(bytes: &[u8]) -> serde_json::Value {
    serde_json::from_slice(bytes).unwrap()
}

#[test]
fn the_same_input_gives_the_same_bytes_wherever_and_whenever_it_is_packed() {
    let mut results = vec![];
    for _ in 0..2 {
        let directory = tempfile::tempdir().unwrap();
        prepare(directory.path());
        let out = directory.path().join("out.tar");
        let images = spec::parse("spec.yaml", SPEC).unwrap();
        assert_eq!(pack::pack(&images, directory.path(), &out).unwrap(), ["localhost/a:1", "localhost/b:2"]);
        results.push(fs::read(&out).unwrap());
        let left: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left.len(), 3, "temporary files were left: {left:?}");
    }
    assert!(results[0] == results[1]);
}

#[test]
fn the_archive_is_a_consistent_oci_layout_that_containerd_finds_names_in() {
    let directory = tempfile::tempdir().unwrap();
    prepare(directory.path());
    let out = directory.path().join("out.tar");
    pack::pack(&spec::parse("spec.yaml", SPEC).unwrap(), directory.path(), &out).unwrap();
    let files = entries(&fs::read(&out).unwrap());
    for (name, bytes) in &files {
        if let Some(digest) = name.strip_prefix("blobs/sha256/") {
            assert_eq!(
                keelson_kit::hex::encode(Sha256::digest(bytes)),
                digest,
                "a blob is not what its name says"
            );
        }
    }
    let blob = |value: &serde_json::Value| {
        let digest = value["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        files[&format!("blobs/sha256/{digest}")].clone()
    };
    let index = json(&files["index.json"]);
    let names: Vec<_> = index["manifests"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["annotations"]["io.containerd.image.name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["localhost/a:1", "localhost/b:2"]);
    let manifest = json(&blob(&index["manifests"][0]));
    let config = json(&blob(&manifest["config"]));
    assert_eq!(config["config"]["Entrypoint"][0], "/bin/tool");
    assert!(config["config"]["Env"][0].as_str().unwrap().starts_with("PATH="));
    assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);

    let tree = entries(&blob(&manifest["layers"][0]));
    let names: Vec<_> = tree.keys().map(String::as_str).collect();
    assert_eq!(names, ["etc", "etc/also", "etc/hosts"]);
    let bytes = blob(&manifest["layers"][1]);
    let mut modes = BTreeMap::new();
    for entry in tar::Archive::new(bytes.as_slice()).entries().unwrap() {
        let entry = entry.unwrap();
        let header = entry.header();
        assert_eq!(header.mtime().unwrap(), 0);
        modes.insert(entry.path().unwrap().to_string_lossy().into_owned(), header.mode().unwrap());
    }
    assert_eq!(
        (modes["bin"], modes["bin/tool"], modes["etc/motd"], modes["tmp"]),
        (0o755, 0o755, 0o644, 0o1777)
    );
}

#[test]
fn a_bad_description_is_refused_naming_the_place() {
    for (case, text, expected) in [
        ("an unknown field", "images:\n- names: [a:1]\n  layer: []", "spec.yaml:3: "),
        (
            "no tag",
            "images: [{names: [localhost/a], layers: []}]",
            "spec.yaml: images[0]: \"localhost/a\" has no tag",
        ),
        ("no name", "images: [{names: [], layers: []}]", "spec.yaml: images[0] has no name"),
        (
            "a path that leaves the image",
            "images: [{names: [a:1], layers: [{files: {/../x: file}}]}]",
            "spec.yaml: images[0].layers[0]: \"/../x\" must be an absolute path",
        ),
        (
            "two contents",
            "images:\n- names: [a:1]\n  layers:\n  - files:\n      /x: {link: a, text: b}",
            "spec.yaml:5: ",
        ),
        (
            "a mode that is none",
            "images: [{names: [a:1], layers: [{files: {/x: {text: a, mode: 9999}}}]}]",
            "spec.yaml:1: ",
        ),
    ] {
        let error = spec::parse("spec.yaml", text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{case}: {error}");
    }
}

#[test]
fn a_missing_file_is_named_and_no_archive_appears() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out.tar");
    let images = spec::parse("s", "images: [{names: [a:1], layers: [{files: {/x: nowhere}}]}]").unwrap();
    let error = format!("{:#}", pack::pack(&images, directory.path(), &out).unwrap_err());
    assert!(error.contains("cannot pack /x") && error.contains("nowhere"), "{error}");
    assert!(!out.exists());
}
