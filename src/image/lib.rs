//! OCI image archives, made where there is no registry, no builder and no network. The same input gives the same bytes.
//!
//! [`LayerBuilder`] makes layers, [`write_archive`] puts images of them into one archive, and [`Archive`] reads one that anybody
//! has made. What the documents in it look like is
//! the business of `oci-spec`.

mod archive;
mod document;
mod layer;
mod read;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub use archive::write_archive;
pub use layer::{Layer, LayerBuilder};
pub use oci_spec::image::{Arch, Config};
pub use read::{Archive, BadArchive, NamedImage, Part, Target};

/// An image to be written: layers from the lowest up, and how to run them.
#[derive(Debug, Clone)]
pub struct Image<'a> {
    /// With their tag, as the runtime will know them.
    pub names: Vec<String>,
    pub architecture: Arch,
    pub config: Config,
    pub layers: Vec<&'a Layer>,
}

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("cannot {operation} {}", path.display())]
    File { operation: &'static str, path: PathBuf, source: std::io::Error },
    #[error("cannot describe an image: {0}")]
    Document(#[from] oci_spec::OciSpecError),
    #[error("cannot describe an image: {0}")]
    Json(#[from] serde_json::Error),
}

impl ImageError {
    fn file(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { operation, path, source }
    }
}
