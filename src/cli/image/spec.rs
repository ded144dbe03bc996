//! The description of what to pack.
//!
//! ```yaml
//! images:
//! - names: [localhost/keelson/example:1]
//!   layers:
//!   - directory: ./rootfs            # a whole tree, with what to leave out of it
//!     exclude: [usr/share/doc]
//!   - files:
//!       /bin/busybox: /bin/busybox   # a file of this machine
//!       /bin/sh: {link: busybox}
//!       /etc/motd: {text: "hello\n", mode: 0644}
//!       /tmp: {directory: true, mode: 01777}
//!   config: {Entrypoint: [/bin/sh], Env: [A=b]}
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use anyhow::bail;
use keelson_image::{Arch, Config};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, value::MapAccessDeserializer};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    images: Vec<Image>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Image {
    /// With their tag, as the runtime will know them.
    pub names: Vec<String>,
    pub layers: Vec<Layer>,
    #[serde(default)]
    pub config: RunConfig,
    /// amd64, arm64 ...; this machine's when left out.
    #[serde(default = "this_architecture")]
    pub architecture: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Layer {
    #[serde(default)]
    pub directory: Option<PathBuf>,
    /// Paths inside the directory, each with all that is below it.
    #[serde(default)]
    pub exclude: Vec<String>,
    #[serde(default)]
    pub files: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub content: Content,
    pub mode: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Content {
    File(PathBuf),
    Link(String),
    Text(String),
    Directory,
}

/// The part of an OCI image configuration that says how to run it; names as in the specification. oci-spec's own reader would
/// pass over a name that is not one of them.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields, default)]
pub(super) struct RunConfig {
    user: Option<String>,
    exposed_ports: BTreeMap<String, Nothing>,
    env: Vec<String>,
    entrypoint: Vec<String>,
    cmd: Vec<String>,
    volumes: BTreeMap<String, Nothing>,
    working_dir: Option<String>,
    labels: BTreeMap<String, String>,
    stop_signal: Option<String>,
}

/// The `{}` that stands where OCI makes a set of a map.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

impl RunConfig {
    /// What is empty is left out.
    pub fn to_oci(&self) -> Config {
        let list = |list: &[String]| (!list.is_empty()).then(|| list.to_vec());
        let keys = |map: &BTreeMap<String, Nothing>| list(&map.keys().cloned().collect::<Vec<_>>());
        let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let mut config = Config::default();
        config
            .set_user(text(&self.user))
            .set_exposed_ports(keys(&self.exposed_ports))
            .set_env(list(&self.env))
            .set_entrypoint(list(&self.entrypoint))
            .set_cmd(list(&self.cmd))
            .set_volumes(keys(&self.volumes))
            .set_working_dir(text(&self.working_dir))
            .set_labels((!self.labels.is_empty()).then(|| self.labels.clone().into_iter().collect()))
            .set_stop_signal(text(&self.stop_signal));
        config
    }
}

pub(super) fn parse(name: &str, text: &str) -> anyhow::Result<Vec<Image>> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true, with_snippet: false };
    let document: Document = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let line = error.location().map_or(1, |at| at.line());
        anyhow::anyhow!("{name}:{line}: {}", error.without_snippet())
    })?;
    for (index, image) in document.images.iter().enumerate() {
        if image.names.is_empty() {
            bail!("{name}: images[{index}] has no name, write names: [localhost/thing:1]");
        }
        for image_name in &image.names {
            if !image_name.rsplit('/').next().is_some_and(|last| last.contains(':')) {
                bail!("{name}: images[{index}]: {image_name:?} has no tag, write {image_name}:TAG");
            }
        }
        for (number, layer) in image.layers.iter().enumerate() {
            let at = format!("{name}: images[{index}].layers[{number}]");
            if layer.directory.is_some() && !layer.files.is_empty() {
                bail!("{at} has both directory and files: make two layers of it");
            }
            for path in layer.files.keys() {
                let good = path.starts_with('/') && !path.split('/').any(|part| part == ".." || part == ".");
                if !good || path == "/" {
                    bail!("{at}: {path:?} must be an absolute path without . or ..");
                }
            }
        }
    }
    Ok(document.images)
}

fn this_architecture() -> String {
    Arch::default().to_string()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LongEntry {
    file: Option<PathBuf>,
    link: Option<String>,
    text: Option<String>,
    directory: Option<bool>,
    mode: Option<Mode>,
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Entry;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path of this machine, or one of {file: ...}, {link: ...}, {text: ...}, {directory: true}")
            }
            fn visit_str<E: de::Error>(self, path: &str) -> Result<Entry, E> {
                Ok(Entry { content: Content::File(path.into()), mode: None })
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Entry, A::Error> {
                let long = LongEntry::deserialize(MapAccessDeserializer::new(map))?;
                let mode = long.mode.map(|Mode(mode)| mode);
                let content = match (long.file, long.link, long.text, long.directory) {
                    (Some(path), None, None, None) => Content::File(path),
                    (None, Some(target), None, None) => Content::Link(target),
                    (None, None, Some(text), None) => Content::Text(text),
                    (None, None, None, Some(true)) => Content::Directory,
                    _ => {
                        return Err(de::Error::custom(
                            "give exactly one of file, link, text and directory: true",
                        ));
                    }
                };
                Ok(Entry { content, mode })
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Octal: 0755 in YAML, "0755" in JSON, which knows no octal numbers.
struct Mode(u32);

impl<'de> Deserialize<'de> for Mode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Mode;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a file mode such as 0755")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Mode, E> {
                let number = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
                number.map(Mode).ok_or_else(|| E::custom(format!("{text:?} is not a file mode such as 0755")))
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Mode, E> {
                let mode = u32::try_from(number).ok().filter(|mode| *mode <= 0o7777);
                mode.map(Mode).ok_or_else(|| E::custom(format!("{number} is not a file mode such as 0755")))
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Mode, E> {
                self.visit_u64(u64::try_from(number).unwrap_or(u64::MAX))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
