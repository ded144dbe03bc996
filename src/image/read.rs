//! Reads an OCI archive, from anybody: where everything in it lies, what it names, and what belongs to each image. Nothing of it
//! is believed before its digest has been computed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use keelson_kit::hex;
use oci_spec::image::{Descriptor, ImageIndex, ImageManifest};
use sha2::{Digest, Sha256};

/// An index or a manifest has a line for each of its parts.
const LARGEST_DOCUMENT: u64 = 8 << 20;
const MOST_ENTRIES: usize = 100_000;
/// An index may hold indexes; no builder nests them deeper.
const DEEPEST: usize = 4;
/// Where tools write an image's full name, the first that is there.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

#[derive(Debug, thiserror::Error)]
pub enum BadArchive {
    #[error("it cannot be read: {0}")]
    Read(#[from] io::Error),
    #[error("it holds the path {0:?}, which leads out of it")]
    Path(String),
    #[error("it is cut off: {0} is not whole")]
    Truncated(String),
    #[error("it has more than {MOST_ENTRIES} entries")]
    Entries,
    #[error("it is no OCI archive: it has no index.json")]
    NoIndex,
    #[error("none of its images has a full name, such as registry/name:tag")]
    NoNames,
    #[error("{what} cannot be understood: {problem}")]
    Document { what: String, problem: String },
    #[error("{0} is missing in it")]
    Missing(String),
    #[error("what it has as {0} is something else")]
    Digest(String),
}

pub struct Archive {
    file: File,
    index: Place,
    blobs: BTreeMap<String, Place>,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    offset: u64,
    size: u64,
}

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub media_type: String,
    pub digest: String,
    pub size: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedImage {
    pub name: String,
    pub target: Target,
}

/// A blob of an image, and those that it refers to by the labels that containerd collects garbage by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub digest: String,
    pub size: u64,
    pub references: BTreeMap<String, String>,
    offset: u64,
}

impl Archive {
    /// Finds out where everything lies; the contents are passed over.
    pub fn open(path: &Path) -> Result<Self, BadArchive> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let (mut index, mut blobs) = (None, BTreeMap::new());
        let mut tar = tar::Archive::new(&file);
        for (count, entry) in tar.entries_with_seek()?.enumerate() {
            let entry = match entry {
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(BadArchive::Truncated("the list of its entries".into()));
                }
                entry => entry?,
            };
            if count >= MOST_ENTRIES {
                return Err(BadArchive::Entries);
            }
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            let inside = !name.starts_with('/') && name.split('/').all(|part| part != "..");
            if !inside || name.contains('\0') {
                return Err(BadArchive::Path(name));
            }
            if !entry.header().entry_type().is_file() {
                continue;
            }
            let place = Place { offset: entry.raw_file_position(), size: entry.size() };
            if place.offset.checked_add(place.size).is_none_or(|end| end > length) {
                return Err(BadArchive::Truncated(name));
            }
            match name.strip_prefix("./").unwrap_or(&name) {
                "index.json" => index = Some(place),
                other => {
                    if let Some(hex) = other.strip_prefix("blobs/sha256/") {
                        blobs.insert(format!("sha256:{hex}"), place);
                    }
                }
            }
        }
        Ok(Self { index: index.ok_or(BadArchive::NoIndex)?, blobs, file })
    }

    /// The images that have names. Their contents have not been looked at.
    pub fn images(&self) -> Result<Vec<NamedImage>, BadArchive> {
        let text = self.document("index.json", self.index)?;
        let index = ImageIndex::from_reader(&*text).map_err(|e| unreadable("index.json", &e))?;
        let named = index.manifests().iter().filter_map(|descriptor| {
            let annotations = descriptor.annotations().as_ref()?;
            let name = NAMES.iter().find_map(|key| annotations.get(*key)).filter(|name| is_full(name))?;
            Some(NamedImage { name: name.clone(), target: target(descriptor) })
        });
        let named: Vec<_> = named.collect();
        if named.is_empty() { Err(BadArchive::NoNames) } else { Ok(named) }
    }

    /// Everything that belongs to an image, what is referred to before what refers to it, each once. All of it is read and
    /// compared with its digest.
    pub fn parts(&self, image: &Target) -> Result<Vec<Part>, BadArchive> {
        let (mut parts, mut seen) = (vec![], BTreeSet::new());
        self.gather(image, 0, &mut seen, &mut parts)?;
        Ok(parts)
    }

    /// A piece of a part's content, from `from` on; empty at its end.
    pub fn read(&self, part: &Part, from: u64, most: usize) -> io::Result<Vec<u8>> {
        let left = usize::try_from(part.size.saturating_sub(from)).unwrap_or(usize::MAX);
        let mut piece = vec![0; most.min(left)];
        self.file.read_exact_at(&mut piece, part.offset + from)?;
        Ok(piece)
    }

    fn gather(
        &self,
        target: &Target,
        depth: usize,
        seen: &mut BTreeSet<String>,
        parts: &mut Vec<Part>,
    ) -> Result<(), BadArchive> {
        let digest = &target.digest;
        if !seen.insert(digest.clone()) {
            return Ok(());
        }
        let place = *self.blobs.get(digest).ok_or_else(|| BadArchive::Missing(digest.clone()))?;
        if place.size != target.size || self.digest(place)? != *digest {
            return Err(BadArchive::Digest(digest.clone()));
        }
        let mut references = BTreeMap::new();
        for (label, child) in self.children(target, place, depth)? {
            self.gather(&child, depth + 1, seen, parts)?;
            references.insert(format!("containerd.io/gc.ref.content.{label}"), child.digest);
        }
        parts.push(Part { digest: digest.clone(), size: place.size, references, offset: place.offset });
        Ok(())
    }

    fn children(
        &self,
        target: &Target,
        place: Place,
        depth: usize,
    ) -> Result<Vec<(String, Target)>, BadArchive> {
        let what = &target.digest;
        match target.media_type.as_str() {
            "application/vnd.oci.image.index.v1+json"
            | "application/vnd.docker.distribution.manifest.list.v2+json" => {
                if depth >= DEEPEST {
                    let problem = format!("indexes are nested deeper than {DEEPEST}");
                    return Err(BadArchive::Document { what: what.clone(), problem });
                }
                let text = self.document(what, place)?;
                let index = ImageIndex::from_reader(&*text).map_err(|e| unreadable(what, &e))?;
                // An archive for one kind of machine leaves the others out.
                let all = index.manifests().iter().map(self::target).enumerate();
                let there: Vec<_> = all
                    .filter(|(_, child)| self.blobs.contains_key(&child.digest))
                    .map(|(index, child)| (format!("m.{index}"), child))
                    .collect();
                match there.is_empty() {
                    true => Err(BadArchive::Missing(format!("every image of {what}"))),
                    false => Ok(there),
                }
            }
            "application/vnd.oci.image.manifest.v1+json"
            | "application/vnd.docker.distribution.manifest.v2+json" => {
                let text = self.document(what, place)?;
                let manifest = ImageManifest::from_reader(&*text).map_err(|e| unreadable(what, &e))?;
                let layers = manifest.layers().iter().map(self::target).enumerate();
                let layers = layers.map(|(index, layer)| (format!("l.{index}"), layer));
                Ok([("config".to_owned(), self::target(manifest.config()))]
                    .into_iter()
                    .chain(layers)
                    .collect())
            }
            _ => Ok(vec![]),
        }
    }

    fn document(&self, what: &str, place: Place) -> Result<Vec<u8>, BadArchive> {
        if place.size > LARGEST_DOCUMENT {
            let problem = format!("it is longer than {LARGEST_DOCUMENT} bytes");
            return Err(BadArchive::Document { what: what.to_owned(), problem });
        }
        let mut text = vec![];
        self.reader(place).read_to_end(&mut text)?;
        Ok(text)
    }

    fn digest(&self, place: Place) -> io::Result<String> {
        let (mut hash, mut piece) = (Sha256::new(), vec![0; 1 << 18]);
        let mut from = self.reader(place);
        loop {
            match from.read(&mut piece)? {
                0 => return Ok(format!("sha256:{}", hex::encode(hash.finalize()))),
                bytes => hash.update(&piece[..bytes]),
            }
        }
    }

    fn reader(&self, place: Place) -> impl Read {
        Section { file: &self.file, at: place.offset, end: place.offset + place.size }
    }
}

/// A part of a file, read without moving anybody's position in it.
struct Section<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let most = into.len().min(left);
        let read = self.file.read_at(&mut into[..most], self.at)?;
        if read == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += read as u64;
        Ok(read)
    }
}

/// A tag alone is no name: it does not say of what.
fn is_full(name: &str) -> bool {
    name.contains(['/', ':'])
}

fn target(descriptor: &Descriptor) -> Target {
    Target {
        media_type: descriptor.media_type().to_string(),
        digest: descriptor.digest().to_string(),
        size: descriptor.size(),
    }
}

fn unreadable(what: &str, error: &oci_spec::OciSpecError) -> BadArchive {
    BadArchive::Document { what: what.to_owned(), problem: error.to_string() }
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
