//! One layer as a tar stream. Times are zero and order is by name, so that the bytes only depend on what is in it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use super::spec::{Content, Entry, Layer};

/// A finished layer, waiting in an unnamed temporary file.
pub(super) struct Packed {
    pub digest: String,
    pub size: u64,
    file: fs::File,
}

impl Packed {
    pub fn reader(&mut self) -> io::Result<&mut fs::File> {
        self.file.seek(SeekFrom::Start(0))?;
        Ok(&mut self.file)
    }
}

/// `base` is what relative paths of this machine start at; `scratch` is where the temporary file goes.
pub(super) fn pack(layer: &Layer, base: &Path, scratch: &Path) -> anyhow::Result<Packed> {
    let file = tempfile::tempfile_in(scratch)
        .with_context(|| format!("cannot make a temporary file in {}", scratch.display()))?;
    let mut tar = Builder::new(Hashing { inner: file, digest: Sha256::new(), size: 0 });
    match &layer.directory {
        Some(directory) => tree(&mut tar, &base.join(directory), Path::new(""), &layer.exclude)?,
        None => files(&mut tar, layer, base)?,
    }
    let hashing = tar.into_inner().context("cannot finish a layer")?;
    Ok(Packed { digest: hex(&hashing.digest.finalize()), size: hashing.size, file: hashing.inner })
}

fn files<W: Write>(tar: &mut Builder<W>, layer: &Layer, base: &Path) -> anyhow::Result<()> {
    let mut made = BTreeSet::new();
    for (path, entry) in &layer.files {
        let path = path.trim_matches('/');
        for (end, _) in path.match_indices('/') {
            let parent = &path[..end];
            let described = layer.files.keys().any(|other| other.trim_matches('/') == parent);
            if !described && made.insert(parent) {
                append(tar, parent, EntryType::Directory, 0o755, &[])?;
            }
        }
        one(tar, path, entry, base).with_context(|| format!("cannot pack /{path}"))?;
    }
    Ok(())
}

fn one<W: Write>(tar: &mut Builder<W>, path: &str, entry: &Entry, base: &Path) -> anyhow::Result<()> {
    match &entry.content {
        Content::Directory => append(tar, path, EntryType::Directory, entry.mode.unwrap_or(0o755), &[]),
        Content::Text(text) => {
            append(tar, path, EntryType::Regular, entry.mode.unwrap_or(0o644), text.as_bytes())
        }
        Content::Link(target) => {
            Ok(tar.append_link(&mut header(EntryType::Symlink, 0o777, 0), path, target)?)
        }
        Content::File(host) => {
            let host = base.join(host);
            let named = || format!("cannot read {}", host.display());
            let mut file = fs::File::open(&host).with_context(named)?;
            let metadata = file.metadata().with_context(named)?;
            anyhow::ensure!(metadata.is_file(), "{} is not a file", host.display());
            let mode = entry.mode.unwrap_or(metadata.permissions().mode() & 0o7777);
            Ok(tar.append_data(&mut header(EntryType::Regular, mode, metadata.len()), path, &mut file)?)
        }
    }
}

/// A directory with everything below it; owners and modes are kept, devices and sockets are left out.
fn tree<W: Write>(
    tar: &mut Builder<W>,
    root: &Path,
    inside: &Path,
    exclude: &[String],
) -> anyhow::Result<()> {
    let directory = root.join(inside);
    let named = || format!("cannot read {}", directory.display());
    let mut names = fs::read_dir(&directory)
        .with_context(named)?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<Result<Vec<_>, _>>()
        .with_context(named)?;
    names.sort();
    for name in names {
        let path: PathBuf = inside.join(&name);
        if exclude.iter().any(|left_out| Path::new(left_out.trim_matches('/')) == path) {
            continue;
        }
        let host = root.join(&path);
        let named = || format!("cannot pack {}", host.display());
        let metadata = fs::symlink_metadata(&host).with_context(named)?;
        let kind = metadata.file_type();
        let mode = metadata.permissions().mode() & 0o7777;
        let mut header = header(EntryType::Regular, mode, 0);
        header.set_uid(metadata.uid().into());
        header.set_gid(metadata.gid().into());
        if kind.is_dir() {
            header.set_entry_type(EntryType::Directory);
            tar.append_data(&mut header, &path, io::empty()).with_context(named)?;
            tree(tar, root, &path, exclude)?;
        } else if kind.is_symlink() {
            header.set_entry_type(EntryType::Symlink);
            let target = fs::read_link(&host).with_context(named)?;
            tar.append_link(&mut header, &path, target).with_context(named)?;
        } else if kind.is_file() {
            header.set_size(metadata.len());
            let file = fs::File::open(&host).with_context(named)?;
            // Exactly as many bytes as the header says, should the file grow meanwhile.
            tar.append_data(&mut header, &path, file.take(metadata.len())).with_context(named)?;
        }
    }
    Ok(())
}

fn append<W: Write>(
    tar: &mut Builder<W>,
    path: &str,
    kind: EntryType,
    mode: u32,
    data: &[u8],
) -> anyhow::Result<()> {
    Ok(tar.append_data(&mut header(kind, mode, data.len() as u64), path, data)?)
}

pub(super) fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

struct Hashing {
    inner: fs::File,
    digest: Sha256,
    size: u64,
}

impl Write for Hashing {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(buffer)?;
        self.digest.update(&buffer[..written]);
        self.size += written as u64;
        Ok(written)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
