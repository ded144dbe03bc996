//! The OCI archive: layout, index, manifests, configurations and layers, in a fixed order.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::Path;

use oci_spec::image::OciLayoutBuilder;
use tar::{Builder, EntryType};

use crate::document::{self, Blob};
use crate::layer::header;
use crate::{Image, ImageError, Layer};

/// Writes the archive. `out` appears whole or not at all.
pub fn write_archive(images: &[Image<'_>], out: &Path) -> Result<(), ImageError> {
    let directory = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut blobs: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    // By digest: two layers of the same bytes are in the archive once.
    let mut layers: BTreeMap<&str, &Layer> = BTreeMap::new();
    let mut manifests = vec![];
    for image in images {
        layers.extend(image.layers.iter().map(|layer| (layer.digest.as_str(), *layer)));
        let config = Blob::of(&document::configuration(image)?)?;
        let manifest = Blob::of(&document::manifest(&config, &image.layers)?)?;
        for name in &image.names {
            manifests.push(document::named(name, &manifest, &image.architecture)?);
        }
        blobs.extend([config, manifest].map(|blob| (blob.digest, blob.bytes)));
    }
    let layout = OciLayoutBuilder::default().image_layout_version("1.0.0").build()?;
    let head = [
        ("oci-layout", document::to_bytes(&layout)?),
        ("index.json", document::to_bytes(&document::index(manifests)?)?),
    ];

    let temporary =
        tempfile::NamedTempFile::new_in(directory).map_err(ImageError::file("write to", directory))?;
    let write = || -> io::Result<()> {
        let mut tar = Builder::new(io::BufWriter::new(temporary.as_file()));
        for (name, bytes) in &head {
            add(&mut tar, name, bytes.len() as u64, bytes.as_slice())?;
        }
        for (digest, bytes) in &blobs {
            add(&mut tar, &format!("blobs/sha256/{digest}"), bytes.len() as u64, bytes.as_slice())?;
        }
        for (digest, layer) in &layers {
            add(&mut tar, &format!("blobs/sha256/{digest}"), layer.size, layer.reader()?)?;
        }
        tar.into_inner()?.flush()?;
        temporary.as_file().set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
    };
    write().map_err(ImageError::file("write", out))?;
    temporary.persist(out).map_err(|failed| ImageError::file("write", out)(failed.error))?;
    Ok(())
}

fn add<W: Write>(tar: &mut Builder<W>, name: &str, size: u64, data: impl Read) -> io::Result<()> {
    tar.append_data(&mut header(EntryType::Regular, 0o644, size), name, data)
}
