use std::collections::HashMap;
use std::fs;
use std::path::Path;

use oci_spec::image::ImageIndex;

use super::*;

fn layer(scratch: &Path, word: &str) -> Layer {
    let mut builder = LayerBuilder::new_in(scratch).unwrap();
    builder.directory("etc", 0o755).unwrap();
    builder.file("etc/motd", word.as_bytes(), 0o644).unwrap().link("motd", "etc/motd").unwrap();
    builder.finish().unwrap()
}

fn config(labels: impl Iterator<Item = usize>) -> Config {
    let labels: HashMap<_, _> = labels.map(|n| (format!("label-{n}"), n.to_string())).collect();
    let mut config = Config::default();
    config.set_labels(Some(labels)).set_volumes(Some(vec!["/b".into(), "/a".into()]));
    config
}

fn packed(directory: &Path, labels: impl Iterator<Item = usize>) -> Vec<u8> {
    let (one, two) = (layer(directory, "one"), layer(directory, "two"));
    let out = directory.join("out.tar");
    let image = Image {
        names: vec!["localhost/a:1".into()],
        architecture: Arch::ARM64,
        config: config(labels),
        layers: vec![&one, &two, &one],
    };
    write_archive(&[image], &out).unwrap();
    fs::read(out).unwrap()
}

/// oci-spec keeps labels and annotations in hash maps, each of which has an order of its own.
#[test]
fn the_bytes_do_not_depend_on_the_order_of_a_map() {
    let directory = tempfile::tempdir().unwrap();
    let first = packed(directory.path(), 0..50);
    for _ in 0..5 {
        assert!(packed(directory.path(), (0..50).rev()) == first);
    }
    assert!(packed(directory.path(), 0..51) != first, "labels are not in the archive");
}

#[test]
fn a_layer_used_twice_is_in_the_archive_once_and_in_the_image_twice() {
    let directory = tempfile::tempdir().unwrap();
    let tar = packed(directory.path(), 0..1);
    let mut names = vec![];
    let mut documents = HashMap::new();
    for entry in tar::Archive::new(tar.as_slice()).entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut bytes = vec![];
        std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
        let name = entry.path().unwrap().to_string_lossy().into_owned();
        names.push(name.clone());
        documents.insert(name, bytes);
    }
    let mut once = names.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), names.len(), "{names:?}");
    assert_eq!(names[..2], ["oci-layout", "index.json"]);

    let index: ImageIndex = serde_json::from_slice(&documents["index.json"]).unwrap();
    let [entry] = index.manifests().as_slice() else { panic!("one image has one entry: {index:?}") };
    let digest = entry.as_digest_sha256().unwrap();
    let manifest: oci_spec::image::ImageManifest =
        serde_json::from_slice(&documents[&format!("blobs/sha256/{digest}")]).unwrap();
    assert_eq!(manifest.layers().len(), 3);
    assert_eq!(manifest.layers()[0], manifest.layers()[2]);
    assert!(manifest.layers().iter().all(|layer| {
        let blob = &documents[&format!("blobs/sha256/{}", layer.as_digest_sha256().unwrap())];
        blob.len() as u64 == layer.size()
    }));
}

#[test]
fn a_tar_stream_that_is_there_already_becomes_the_same_layer() {
    let directory = tempfile::tempdir().unwrap();
    let built = layer(directory.path(), "x");
    let copied = Layer::from_tar(&mut built.reader().unwrap(), directory.path()).unwrap();
    assert_eq!((copied.digest, copied.size), (built.digest, built.size));
}
