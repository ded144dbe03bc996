//! The node's own credentials for registries, in the files that docker's client writes: the first of a kubelet's places where one
//! can be read, and read again when any of them has changed.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use keelson_core::image::DockerConfig;

/// Far more than anybody has registries.
const MOST_BYTES: u64 = 1 << 20;

pub(super) struct NodeCredentials(Arc<Mutex<Known>>);

struct Known {
    /// In the order in which they count.
    places: Vec<Place>,
    config: DockerConfig,
}

struct Place {
    path: PathBuf,
    parse: fn(&[u8]) -> Result<DockerConfig, String>,
    stamp: Option<Stamp>,
}

/// Tells a file from what it was before.
#[derive(Clone, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    bytes: u64,
    modified: Option<SystemTime>,
    changed: (i64, i64),
}

impl NodeCredentials {
    pub fn new(root_dir: &Path) -> Self {
        let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| !home.as_os_str().is_empty());
        Self::in_places(root_dir, Path::new(""), home.as_deref(), Path::new("/"))
    }

    fn in_places(root_dir: &Path, working: &Path, home: Option<&Path>, root: &Path) -> Self {
        let place = |path: PathBuf, parse: fn(&[u8]) -> _| Place { path, parse, stamp: None };
        let dirs = [Some(root_dir), Some(working), home, Some(root)];
        // All places of the newer kind come before the first of the older kind.
        let newer = dirs.iter().enumerate().filter_map(|(index, dir)| {
            let dir = if index < 2 { (*dir)?.to_owned() } else { (*dir)?.join(".docker") };
            Some(place(dir.join("config.json"), DockerConfig::framed))
        });
        let older = dirs.iter().flatten().map(|dir| place(dir.join(".dockercfg"), DockerConfig::plain));
        let known = Known { places: newer.chain(older).collect(), config: DockerConfig::default() };
        Self(Arc::new(Mutex::new(known)))
    }

    pub async fn read(&self) -> DockerConfig {
        let known = self.0.clone();
        let read = tokio::task::spawn_blocking(move || {
            let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
            known.refresh();
            known.config.clone()
        });
        read.await.unwrap_or_default()
    }
}

impl Known {
    fn refresh(&mut self) {
        let stamps: Vec<_> = self.places.iter().map(|place| stamp(&place.path)).collect();
        if self.places.iter().zip(&stamps).all(|(place, stamp)| place.stamp == *stamp) {
            return;
        }
        self.config = DockerConfig::default();
        let mut found = false;
        for (place, stamp) in self.places.iter_mut().zip(stamps) {
            let changed = place.stamp != stamp;
            let there = stamp.is_some();
            place.stamp = stamp;
            if found || !there {
                continue;
            }
            match read_bounded(&place.path).and_then(|text| (place.parse)(&text)) {
                Ok(config) => {
                    if changed {
                        tracing::info!(file = %place.path.display(), "the node's credentials for registries");
                    }
                    (self.config, found) = (config, true);
                }
                Err(error) if changed => {
                    let file = place.path.display();
                    tracing::warn!(%file, error, "the node's credentials for registries cannot be read");
                }
                Err(_) => {}
            }
        }
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let meta = fs::metadata(path).ok()?;
    let changed = (meta.ctime(), meta.ctime_nsec());
    Some(Stamp { inode: meta.ino(), bytes: meta.len(), modified: meta.modified().ok(), changed })
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, String> {
    let meta = fs::metadata(path).map_err(|e| e.to_string())?;
    if !meta.is_file() {
        return Err("is no file".into());
    }
    let mut text = vec![];
    let file = fs::File::open(path).map_err(|e| e.to_string())?;
    file.take(MOST_BYTES + 1).read_to_end(&mut text).map_err(|e| e.to_string())?;
    match text.len() as u64 > MOST_BYTES {
        true => Err(format!("is longer than {MOST_BYTES} bytes")),
        false => Ok(text),
    }
}

#[cfg(test)]
#[path = "node_credentials_tests.rs"]
mod tests;
