//! One layer as a tar stream. Times are zero and order is by name, so that the bytes only depend on what is in it.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use keelson_kit::hex;
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use crate::ImageError;

/// A finished layer, waiting in an unnamed temporary file.
#[derive(Debug)]
pub struct Layer {
    /// SHA-256 of the stream, in hexadecimal digits.
    pub digest: String,
    pub size: u64,
    file: fs::File,
}

impl Layer {
    /// A layer that is a tar stream already.
    pub fn from_tar(stream: &mut impl Read, scratch: &Path) -> Result<Self, ImageError> {
        let mut hashing = Hashing::new_in(scratch)?;
        io::copy(stream, &mut hashing).map_err(ImageError::file("write a layer in", scratch))?;
        Ok(hashing.layer())
    }

    /// The stream from its beginning. Two readers of one layer disturb each other.
    pub(crate) fn reader(&self) -> io::Result<impl Read> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(0))?;
        Ok(file.take(self.size))
    }
}

/// A layer in the making. Paths in it are relative to its root.
pub struct LayerBuilder {
    tar: Builder<Hashing>,
    scratch: PathBuf,
}

impl LayerBuilder {
    /// `scratch` is where the temporary file goes.
    pub fn new_in(scratch: &Path) -> Result<Self, ImageError> {
        Ok(Self { tar: Builder::new(Hashing::new_in(scratch)?), scratch: scratch.to_owned() })
    }

    pub fn directory(&mut self, path: &str, mode: u32) -> Result<&mut Self, ImageError> {
        let header = &mut header(EntryType::Directory, mode, 0);
        self.tar.append_data(header, path, io::empty()).map_err(ImageError::file("pack", Path::new(path)))?;
        Ok(self)
    }

    pub fn file(&mut self, path: &str, data: &[u8], mode: u32) -> Result<&mut Self, ImageError> {
        let header = &mut header(EntryType::Regular, mode, data.len() as u64);
        self.tar.append_data(header, path, data).map_err(ImageError::file("pack", Path::new(path)))?;
        Ok(self)
    }

    pub fn link(&mut self, path: &str, target: &str) -> Result<&mut Self, ImageError> {
        let header = &mut header(EntryType::Symlink, 0o777, 0);
        self.tar.append_link(header, path, target).map_err(ImageError::file("pack", Path::new(path)))?;
        Ok(self)
    }

    /// A file of this machine; without `mode`, with its own.
    pub fn host_file(&mut self, path: &str, host: &Path, mode: Option<u32>) -> Result<&mut Self, ImageError> {
        let file = fs::File::open(host).map_err(ImageError::file("read", host))?;
        let metadata = file.metadata().map_err(ImageError::file("read", host))?;
        if !metadata.is_file() {
            return Err(ImageError::file("pack", host)(io::Error::other("it is not a file")));
        }
        let mode = mode.unwrap_or(metadata.permissions().mode() & 0o7777);
        let header = &mut header(EntryType::Regular, mode, metadata.len());
        // Exactly as many bytes as the header says, should the file grow meanwhile.
        self.tar
            .append_data(header, path, file.take(metadata.len()))
            .map_err(ImageError::file("pack", host))?;
        Ok(self)
    }

    /// Everything below a directory of this machine; owners and modes are kept, devices and sockets are left out.
    pub fn host_tree(&mut self, root: &Path, exclude: &[String]) -> Result<&mut Self, ImageError> {
        self.host_directory(root, Path::new(""), exclude)?;
        Ok(self)
    }

    fn host_directory(&mut self, root: &Path, inside: &Path, exclude: &[String]) -> Result<(), ImageError> {
        let directory = root.join(inside);
        let mut names = fs::read_dir(&directory)
            .and_then(|entries| entries.map(|e| e.map(|e| e.file_name())).collect::<Result<Vec<_>, _>>())
            .map_err(ImageError::file("read", &directory))?;
        names.sort();
        for name in names {
            let path = inside.join(&name);
            if exclude.iter().any(|left_out| Path::new(left_out.trim_matches('/')) == path) {
                continue;
            }
            let host = root.join(&path);
            let directory = self.host_entry(&host, &path).map_err(ImageError::file("pack", &host))?;
            if directory {
                self.host_directory(root, &path, exclude)?;
            }
        }
        Ok(())
    }

    /// Whether it is a directory, whose entries are still to be packed.
    fn host_entry(&mut self, host: &Path, path: &Path) -> io::Result<bool> {
        let metadata = fs::symlink_metadata(host)?;
        let kind = metadata.file_type();
        let mut header = header(EntryType::Regular, metadata.permissions().mode() & 0o7777, 0);
        header.set_uid(metadata.uid().into());
        header.set_gid(metadata.gid().into());
        if kind.is_dir() {
            header.set_entry_type(EntryType::Directory);
            self.tar.append_data(&mut header, path, io::empty())?;
        } else if kind.is_symlink() {
            header.set_entry_type(EntryType::Symlink);
            self.tar.append_link(&mut header, path, fs::read_link(host)?)?;
        } else if kind.is_file() {
            header.set_size(metadata.len());
            self.tar.append_data(&mut header, path, fs::File::open(host)?.take(metadata.len()))?;
        }
        Ok(kind.is_dir())
    }

    pub fn finish(self) -> Result<Layer, ImageError> {
        let hashing = self.tar.into_inner().map_err(ImageError::file("finish a layer in", &self.scratch))?;
        Ok(hashing.layer())
    }
}

pub(crate) fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// A temporary file that knows the digest of what was written to it.
struct Hashing {
    file: fs::File,
    digest: Sha256,
    size: u64,
}

impl Hashing {
    fn new_in(scratch: &Path) -> Result<Self, ImageError> {
        let file =
            tempfile::tempfile_in(scratch).map_err(ImageError::file("make a temporary file in", scratch))?;
        Ok(Self { file, digest: Sha256::new(), size: 0 })
    }

    fn layer(self) -> Layer {
        Layer { digest: hex::encode(self.digest.finalize()), size: self.size, file: self.file }
    }
}

impl Write for Hashing {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.file.write(buffer)?;
        self.digest.update(&buffer[..written]);
        self.size += written as u64;
        Ok(written)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
