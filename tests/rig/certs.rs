//! A certificate authority for one control plane, and kubeconfig files of those it vouches for.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde_json::json;

pub struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

/// The two files of a key and the certificate for it.
#[derive(Debug, Clone)]
pub struct Pair {
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    /// Makes the authority; its certificate lies in `dir/ca.crt`, its key in `dir/ca.key`.
    pub fn new(dir: &Path) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "keelson-test-ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let cert = params.self_signed(&key)?;
        write_pair(dir, "ca", &cert, &key)?;
        Ok(Self { dir: dir.into(), issuer: Issuer::new(params, key) })
    }

    pub fn ca_file(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// A certificate that serves and that authenticates as user `name` in `groups`.
    pub fn pair(&self, file: &str, name: &str, groups: &[&str], hosts: &[&str]) -> Result<Pair> {
        let hosts: Vec<String> = hosts.iter().map(|h| (*h).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).with_context(|| format!("names of {file}"))?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        for group in groups {
            params.distinguished_name.push(DnType::OrganizationName, *group);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &self.issuer).with_context(|| format!("cannot sign {file}"))?;
        write_pair(&self.dir, file, &cert, &key)
    }

    /// A kubeconfig file that reaches `server` with `pair`.
    pub fn kubeconfig(&self, file: &str, server: &str, pair: &Pair) -> Result<PathBuf> {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "rig",
            "contexts": [{"name": "rig", "context": {"cluster": "rig", "user": "rig"}}],
            "clusters": [{"name": "rig", "cluster": {"server": server, "certificate-authority": self.ca_file()}}],
            "users": [{"name": "rig", "user": {"client-certificate": pair.cert, "client-key": pair.key}}],
        });
        let path = self.dir.join(format!("{file}.kubeconfig"));
        fs::write(&path, config.to_string())?;
        Ok(path)
    }

    /// A key for signing service account tokens: the private and the public file.
    pub fn token_key(&self) -> Result<(PathBuf, PathBuf)> {
        let key = KeyPair::generate()?;
        let (private, public) = (self.dir.join("sa.key"), self.dir.join("sa.pub"));
        fs::write(&private, key.serialize_pem())?;
        fs::write(&public, key.public_key_pem())?;
        Ok((private, public))
    }
}

fn write_pair(dir: &Path, file: &str, cert: &Certificate, key: &KeyPair) -> Result<Pair> {
    let pair = Pair { cert: dir.join(format!("{file}.crt")), key: dir.join(format!("{file}.key")) };
    fs::write(&pair.cert, cert.pem())?;
    fs::write(&pair.key, key.serialize_pem())?;
    Ok(pair)
}
