use std::fs;

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::{Arch, Image, LayerBuilder, write_archive};

const NAME: &str = "docker.io/library/x:1";

fn archive(dir: &TempDir) -> std::path::PathBuf {
    let mut layer = LayerBuilder::new_in(dir.path()).unwrap();
    layer.directory("tmp", 0o755).unwrap();
    let layer = layer.finish().unwrap();
    let image = Image {
        names: vec![NAME.into()],
        architecture: Arch::default(),
        config: serde_json::from_value(json!({"Cmd": ["sh"]})).unwrap(),
        layers: vec![&layer],
    };
    let path = dir.path().join("good.tar");
    write_archive(&[image], &path).unwrap();
    path
}

/// The archive's files with one of them changed, left out (None) or added.
fn changed(dir: &TempDir, good: &Path, name: &str, content: Option<&[u8]>) -> std::path::PathBuf {
    let path = dir.path().join("bad.tar");
    let mut out = tar::Builder::new(File::create(&path).unwrap());
    let mut add = |name: &str, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        // Past the library's own check of names.
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        out.append(&header, bytes).unwrap();
    };
    let mut tar = tar::Archive::new(File::open(good).unwrap());
    for entry in tar.entries().unwrap() {
        let mut entry = entry.unwrap();
        let of = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
        let mut bytes = vec![];
        entry.read_to_end(&mut bytes).unwrap();
        if of != name {
            add(&of, &bytes);
        }
    }
    if let Some(bytes) = content {
        add(name, bytes);
    }
    drop(out);
    path
}

fn read(path: &Path) -> Result<(Archive, Vec<NamedImage>, Vec<Part>), BadArchive> {
    let archive = Archive::open(path)?;
    let images = archive.images()?;
    let parts = archive.parts(&images[0].target)?;
    Ok((archive, images, parts))
}

#[test]
fn an_image_is_read_with_what_belongs_to_it_the_innermost_first() {
    let dir = tempfile::tempdir().unwrap();
    let (archive, images, parts) = read(&archive(&dir)).unwrap();
    assert_eq!(images.iter().map(|i| &*i.name).collect::<Vec<_>>(), [NAME]);
    let [config, layer, manifest] = &parts[..] else { panic!("{parts:?}") };
    assert_eq!(manifest.digest, images[0].target.digest);
    let references: Vec<_> = manifest.references.iter().map(|(k, v)| (&**k, v)).collect();
    let expected = [
        ("containerd.io/gc.ref.content.config", &config.digest),
        ("containerd.io/gc.ref.content.l.0", &layer.digest),
    ];
    assert_eq!(references, expected);
    assert!(config.references.is_empty() && layer.references.is_empty());
    let (mut whole, mut from) = (vec![], 0);
    while from < config.size {
        let piece = archive.read(config, from, 7).unwrap();
        from += piece.len() as u64;
        whole.extend(piece);
    }
    assert_eq!(format!("sha256:{}", hex::encode(Sha256::digest(whole))), config.digest);
}

#[test]
fn what_is_wrong_with_an_archive_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let good = archive(&dir);
    let (_, images, parts) = read(&good).unwrap();
    let blob = |part: &Part| part.digest.replace("sha256:", "blobs/sha256/");
    let index = |change: &dyn Fn(&mut serde_json::Value)| {
        let archive = Archive::open(&good).unwrap();
        let mut index = serde_json::from_slice(&archive.document("", archive.index).unwrap()).unwrap();
        change(&mut index);
        index.to_string().into_bytes()
    };
    let (config, layer) = (blob(&parts[0]), blob(&parts[1]));
    let nameless = index(&|i| i["manifests"][0]["annotations"] = json!({NAMES[1]: "1"}));
    for (case, name, content, expected) in [
        ("a path upwards", "../../etc/passwd", Some(&b"x"[..]), "it holds the path \"../../etc/passwd\""),
        ("a path upwards within", "blobs/../../x", Some(b"x"), "it holds the path \"blobs/../../x\""),
        ("a path from the root", "/etc/passwd", Some(b"x"), "it holds the path \"/etc/passwd\""),
        ("no index", "index.json", None, "it is no OCI archive"),
        ("an index of rubbish", "index.json", Some(b"{"), "index.json cannot be understood"),
        ("no name", "index.json", Some(&nameless), "none of its images has a full name"),
        ("no configuration", &config, None, "is missing in it"),
        ("another layer", &layer, Some(b"x"), "is something else"),
    ] {
        let error = read(&changed(&dir, &good, name, content)).err().unwrap().to_string();
        assert!(error.contains(expected), "{case}: {error}");
    }
    let whole = fs::read(&good).unwrap();
    let path = dir.path().join("cut.tar");
    // Whatever is cut off of it beyond the padding at its end, it is noticed.
    let content = Archive::open(&good).unwrap().blobs.values().map(|p| p.offset + p.size).max().unwrap();
    for length in (0..usize::try_from(content).unwrap()).step_by(257) {
        fs::write(&path, &whole[..length]).unwrap();
        assert!(read(&path).is_err(), "the first {length} bytes of {}", whole.len());
    }
    fs::write(&path, &whole[..usize::try_from(content).unwrap() - 1]).unwrap();
    let error = Archive::open(&path).err().unwrap().to_string();
    assert!(error.starts_with("it is cut off: blobs/sha256/"), "{error}");
    assert!(!images.is_empty());
}
