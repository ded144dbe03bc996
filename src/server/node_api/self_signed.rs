//! A certificate for a node that was given none. It proves nothing to strangers, but who saw it once knows it again, so it
//! is kept.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use keelson_kit::whole_file;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose,
};

/// The names that the kubelet gives these files.
const CERTIFICATE: &str = "kubelet.crt";
const KEY: &str = "kubelet.key";

/// Keys lie in it, so it is nobody else's to look into; what it lies in is not ours to close. One that is there stays as it
/// is.
fn make_directory(path: &Path) -> std::io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    fs::DirBuilder::new().mode(0o700).create(path)
}

/// The pair in `directory`, made if it is not there.
pub(super) fn ensure(directory: &Path, names: Vec<String>) -> Result<(PathBuf, PathBuf), String> {
    let (certificate, key) = (directory.join(CERTIFICATE), directory.join(KEY));
    if certificate.exists() && key.exists() {
        return Ok((certificate, key));
    }
    let failed = |what: &Path, why: String| format!("cannot make {}: {why}", what.display());
    let (certificate_pem, key_pem) = make(names).map_err(|e| failed(&certificate, e.to_string()))?;
    make_directory(directory).map_err(|e| failed(directory, e.to_string()))?;
    // The key first: a certificate without its key is made anew by the next start, and so is a key without certificate.
    place(&key, key_pem.as_bytes(), 0o600).map_err(|e| failed(&key, e.to_string()))?;
    place(&certificate, certificate_pem.as_bytes(), 0o644)
        .map_err(|e| failed(&certificate, e.to_string()))?;
    tracing::info!(certificate = %certificate.display(), "made a self-signed certificate for the node's API");
    Ok((certificate, key))
}

fn make(names: Vec<String>) -> Result<(String, String), rcgen::Error> {
    let common = names.first().cloned().unwrap_or_else(|| "node".into());
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

fn place(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    whole_file::replace(path, mode, |file| file.write_all(content).and_then(|()| file.sync_all()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_pair_is_made_once_and_its_key_is_the_owners_alone() {
        let directory = tempfile::tempdir().unwrap();
        let pki = directory.path().join("root/pki");
        let (certificate, key) = ensure(&pki, vec!["node-1".into(), "192.0.2.1".into()]).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&pki), mode(pki.parent().unwrap())), (0o700, 0o755));
        assert_eq!(certificate, pki.join("kubelet.crt"));
        assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
        let first = fs::read(&certificate).unwrap();
        ensure(&pki, vec!["other".into()]).unwrap();
        assert_eq!(fs::read(&certificate).unwrap(), first);
        assert_eq!(fs::read_dir(&pki).unwrap().count(), 2);
    }

    #[test]
    fn half_a_pair_is_made_anew() {
        let directory = tempfile::tempdir().unwrap();
        let (certificate, key) = ensure(directory.path(), vec!["node-1".into()]).unwrap();
        let first = fs::read(&key).unwrap();
        fs::remove_file(&certificate).unwrap();
        ensure(directory.path(), vec!["node-1".into()]).unwrap();
        assert_ne!(fs::read(&key).unwrap(), first);
    }
}
