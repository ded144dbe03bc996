//! The one way in which this crate says that an operation on a path failed.

use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {}: {source}", path.display())]
pub struct PathError {
    pub operation: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

impl PathError {
    pub fn new(operation: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self { operation, path: path.to_owned(), source: source.into() }
    }

    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }
}

/// Names the operation and the path of an error where it happens.
pub trait At<T> {
    fn at(self, operation: &'static str, path: &Path) -> Result<T, PathError>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, operation: &'static str, path: &Path) -> Result<T, PathError> {
        self.map_err(|e| PathError::new(operation, path, e))
    }
}

/// An absence is as good as a success when something was to go away.
pub(crate) fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
