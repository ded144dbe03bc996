//! The JSON documents of an image: configuration, manifest and index.

use std::collections::HashMap;
use std::str::FromStr;

use keelson_kit::hex;
use oci_spec::OciSpecError;
use oci_spec::image::{
    ANNOTATION_REF_NAME, Arch, Descriptor, DescriptorBuilder, HistoryBuilder, ImageConfiguration,
    ImageConfigurationBuilder, ImageIndex, ImageIndexBuilder, ImageManifest, ImageManifestBuilder, MediaType,
    Os, PlatformBuilder, RootFsBuilder, SCHEMA_VERSION, Sha256Digest,
};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::{Image, ImageError, Layer};

const DEFAULT_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Where containerd looks for an image's name. It is containerd's own annotation.
const CONTAINERD_NAME: &str = "io.containerd.image.name";

/// A document as it lies in the archive.
pub(crate) struct Blob {
    pub digest: String,
    pub bytes: Vec<u8>,
}

impl Blob {
    pub fn of(document: &impl Serialize) -> Result<Self, ImageError> {
        let bytes = to_bytes(document)?;
        Ok(Self { digest: hex::encode(Sha256::digest(&bytes)), bytes })
    }

    pub fn descriptor(&self, media_type: MediaType) -> Result<Descriptor, OciSpecError> {
        descriptor(media_type, &self.digest, self.bytes.len() as u64)
    }
}

/// oci-spec keeps labels and annotations in maps without an order; here their keys are sorted.
pub(crate) fn to_bytes(document: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut value = serde_json::to_value(document)?;
    value.sort_all_objects();
    serde_json::to_vec(&value)
}

fn descriptor(media_type: MediaType, digest: &str, size: u64) -> Result<Descriptor, OciSpecError> {
    Ok(Descriptor::new(media_type, size, Sha256Digest::from_str(digest)?))
}

pub(crate) fn configuration(image: &Image<'_>) -> Result<ImageConfiguration, OciSpecError> {
    let mut config = image.config.clone();
    let mut env = config.env().clone().unwrap_or_default();
    if !env.iter().any(|variable| variable.starts_with("PATH=")) {
        env.insert(0, DEFAULT_PATH.into());
    }
    config.set_env(Some(env));
    let diff_ids: Vec<String> = image.layers.iter().map(|layer| format!("sha256:{}", layer.digest)).collect();
    let history = image
        .layers
        .iter()
        .map(|_| HistoryBuilder::default().created_by("keelson image pack").build())
        .collect::<Result<Vec<_>, _>>()?;
    ImageConfigurationBuilder::default()
        .architecture(image.architecture.clone())
        .os(Os::Linux)
        .config(config)
        .rootfs(RootFsBuilder::default().typ("layers").diff_ids(diff_ids).build()?)
        .history(history)
        .build()
}

pub(crate) fn manifest(config: &Blob, layers: &[&Layer]) -> Result<ImageManifest, OciSpecError> {
    let layers = layers
        .iter()
        .map(|layer| descriptor(MediaType::ImageLayer, &layer.digest, layer.size))
        .collect::<Result<Vec<_>, _>>()?;
    ImageManifestBuilder::default()
        .schema_version(SCHEMA_VERSION)
        .media_type(MediaType::ImageManifest)
        .config(config.descriptor(MediaType::ImageConfig)?)
        .layers(layers)
        .build()
}

/// The entry of the index for one name of an image. containerd takes the name from its own annotation; others read the standard
/// one, which is only the tag.
pub(crate) fn named(name: &str, manifest: &Blob, architecture: &Arch) -> Result<Descriptor, OciSpecError> {
    let tag = name.rsplit(':').next().unwrap_or(name);
    let annotations = [(CONTAINERD_NAME, name), (ANNOTATION_REF_NAME, tag)];
    let platform = PlatformBuilder::default().architecture(architecture.clone()).os(Os::Linux).build()?;
    let plain = manifest.descriptor(MediaType::ImageManifest)?;
    DescriptorBuilder::default()
        .media_type(plain.media_type().clone())
        .digest(plain.digest().clone())
        .size(plain.size())
        .platform(platform)
        .annotations(
            annotations
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into_iter()
                .collect::<HashMap<_, _>>(),
        )
        .build()
}

pub(crate) fn index(manifests: Vec<Descriptor>) -> Result<ImageIndex, OciSpecError> {
    ImageIndexBuilder::default()
        .schema_version(SCHEMA_VERSION)
        .media_type(MediaType::ImageIndex)
        .manifests(manifests)
        .build()
}
