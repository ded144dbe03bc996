//! The OCI archive: layout, index, manifests, configurations and layers, in a fixed order.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::Path;

use anyhow::Context;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType};

use super::layer::{self, Packed, header, hex};
use super::spec::{Image, Layer};

const DEFAULT_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Writes the archive and returns the names of the images in it. `out` appears whole or not at all.
pub(super) fn pack(images: &[Image], base: &Path, out: &Path) -> anyhow::Result<Vec<String>> {
    let directory = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut layers: BTreeMap<&Layer, Packed> = BTreeMap::new();
    let mut blobs: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut index = vec![];
    for image in images {
        for layer in &image.layers {
            if !layers.contains_key(layer) {
                layers.insert(layer, layer::pack(layer, base, directory)?);
            }
        }
        let packed: Vec<&Packed> = image.layers.iter().filter_map(|layer| layers.get(layer)).collect();
        let config = blob(&mut blobs, &configuration(image, &packed))?;
        let manifest = blob(&mut blobs, &manifest(&config, &packed))?;
        for name in &image.names {
            index.push(entry(name, &manifest, &image.architecture));
        }
    }
    let temporary = tempfile::NamedTempFile::new_in(directory)
        .with_context(|| format!("cannot write to {}", directory.display()))?;
    let writing = || format!("cannot write {}", out.display());
    let mut tar = Builder::new(io::BufWriter::new(temporary));
    add(&mut tar, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#).with_context(writing)?;
    let index = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": index});
    add(&mut tar, "index.json", &serde_json::to_vec(&index)?).with_context(writing)?;
    for (digest, bytes) in &blobs {
        add(&mut tar, &format!("blobs/sha256/{digest}"), bytes).with_context(writing)?;
    }
    let mut ordered: Vec<&mut Packed> = layers.values_mut().collect();
    ordered.sort_by(|a, b| a.digest.cmp(&b.digest));
    // Two descriptions may give the same bytes; the archive holds them once.
    ordered.dedup_by(|a, b| a.digest == b.digest);
    for packed in ordered {
        let (name, size) = (format!("blobs/sha256/{}", packed.digest), packed.size);
        let reader = packed.reader().with_context(writing)?;
        tar.append_data(&mut header(EntryType::Regular, 0o644, size), name, reader.take(size))
            .with_context(writing)?;
    }
    let temporary = tar.into_inner().and_then(|buffered| buffered.into_inner().map_err(|e| e.into_error()));
    let temporary = temporary.with_context(writing)?;
    temporary
        .as_file()
        .set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .with_context(writing)?;
    temporary.persist(out).map_err(|failed| failed.error).with_context(writing)?;
    Ok(images.iter().flat_map(|image| image.names.clone()).collect())
}

struct Blob {
    digest: String,
    size: usize,
}

fn blob(blobs: &mut BTreeMap<String, Vec<u8>>, value: &Value) -> anyhow::Result<Blob> {
    let bytes = serde_json::to_vec(value)?;
    let digest = hex(&Sha256::digest(&bytes));
    let size = bytes.len();
    blobs.insert(digest.clone(), bytes);
    Ok(Blob { digest, size })
}

fn configuration(image: &Image, layers: &[&Packed]) -> Value {
    let mut config = image.config.clone();
    if !config.env.iter().any(|variable| variable.starts_with("PATH=")) {
        config.env.insert(0, DEFAULT_PATH.into());
    }
    let ids: Vec<String> = layers.iter().map(|layer| format!("sha256:{}", layer.digest)).collect();
    let history: Vec<Value> = layers.iter().map(|_| json!({"created_by": "keelson image pack"})).collect();
    json!({
        "architecture": image.architecture,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": ids},
        "history": history,
    })
}

fn manifest(config: &Blob, layers: &[&Packed]) -> Value {
    let layers: Vec<Value> = layers
        .iter()
        .map(|layer| {
            json!({
                "mediaType": "application/vnd.oci.image.layer.v1.tar",
                "digest": format!("sha256:{}", layer.digest),
                "size": layer.size,
            })
        })
        .collect();
    json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": format!("sha256:{}", config.digest),
            "size": config.size,
        },
        "layers": layers,
    })
}

/// containerd takes the image's name from its own annotation; others read the standard one, which is only the tag.
fn entry(name: &str, manifest: &Blob, architecture: &str) -> Value {
    json!({
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": format!("sha256:{}", manifest.digest),
        "size": manifest.size,
        "platform": {"architecture": architecture, "os": "linux"},
        "annotations": {
            "io.containerd.image.name": name,
            "org.opencontainers.image.ref.name": name.rsplit(':').next().unwrap_or(name),
        },
    })
}

fn add<W: Write>(tar: &mut Builder<W>, name: &str, data: &[u8]) -> io::Result<()> {
    tar.append_data(&mut header(EntryType::Regular, 0o644, data.len() as u64), name, data)
}
