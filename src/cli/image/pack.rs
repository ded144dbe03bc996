//! From the description to layers and images.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context;
use keelson_image::{Arch, Image, LayerBuilder};

use super::spec::{self, Content, Entry};

/// Writes the archive and returns the names of the images in it. `base` is what relative paths of this machine start at.
pub(super) fn pack(images: &[spec::Image], base: &Path, out: &Path) -> anyhow::Result<Vec<String>> {
    let scratch = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A layer that several images share is made once.
    let mut made: BTreeMap<&spec::Layer, keelson_image::Layer> = BTreeMap::new();
    for layer in images.iter().flat_map(|image| &image.layers) {
        if !made.contains_key(layer) {
            made.insert(layer, pack_layer(layer, base, scratch)?);
        }
    }
    let packed: Vec<Image<'_>> = images
        .iter()
        .map(|image| Image {
            names: image.names.clone(),
            architecture: Arch::from(image.architecture.as_str()),
            config: image.config.to_oci(),
            layers: image.layers.iter().filter_map(|layer| made.get(layer)).collect(),
        })
        .collect();
    keelson_image::write_archive(&packed, out)?;
    Ok(packed.into_iter().flat_map(|image| image.names).collect())
}

fn pack_layer(layer: &spec::Layer, base: &Path, scratch: &Path) -> anyhow::Result<keelson_image::Layer> {
    let mut builder = LayerBuilder::new_in(scratch)?;
    if let Some(directory) = &layer.directory {
        builder.host_tree(&base.join(directory), &layer.exclude)?;
    }
    let mut made = BTreeSet::new();
    for (path, entry) in &layer.files {
        let path = path.trim_matches('/');
        for (end, _) in path.match_indices('/') {
            let parent = &path[..end];
            let described = layer.files.keys().any(|other| other.trim_matches('/') == parent);
            if !described && made.insert(parent) {
                builder.directory(parent, 0o755)?;
            }
        }
        pack_entry(&mut builder, path, entry, base).with_context(|| format!("cannot pack /{path}"))?;
    }
    Ok(builder.finish()?)
}

fn pack_entry(builder: &mut LayerBuilder, path: &str, entry: &Entry, base: &Path) -> anyhow::Result<()> {
    match &entry.content {
        Content::Directory => builder.directory(path, entry.mode.unwrap_or(0o755))?,
        Content::Text(text) => builder.file(path, text.as_bytes(), entry.mode.unwrap_or(0o644))?,
        Content::Link(target) => builder.link(path, target)?,
        Content::File(host) => builder.host_file(path, &base.join(host), entry.mode)?,
    };
    Ok(())
}
