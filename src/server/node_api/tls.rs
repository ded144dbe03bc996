//! The certificate that is shown, the authority that callers' certificates are held against, and both again when their
//! files change.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use keelson_core::config::{KubeletConfiguration, TlsVersion};
use keelson_kit::blocking::BlockingLimit;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme};

use super::ciphers;

/// Files are checked when somebody connects, but not more often than this.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// No certificate file is larger; a mistaken path may lead to anything.
const LARGEST_FILE: u64 = 1 << 20;

/// Where things lie and what is allowed.
#[derive(Debug, Clone)]
pub(super) struct TlsSettings {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub client_ca: Option<PathBuf>,
    pub provider: Arc<CryptoProvider>,
    pub versions: Vec<&'static rustls::SupportedProtocolVersion>,
    /// How often at most the files are checked for a change.
    pub check_every: Duration,
}

pub(super) struct Tls {
    settings: TlsSettings,
    state: Mutex<TlsState>,
    /// Files are read by one thread at a time: on a disk that hangs, each check would hold another one.
    reading: BlockingLimit,
}

struct TlsState {
    loaded: Arc<LoadedTls>,
    checked_at: Instant,
    /// The state of the files that `loaded` was made of, or that could not be used.
    seen: Vec<Option<(SystemTime, u64)>>,
}

pub(super) struct LoadedTls {
    pub server: Arc<ServerConfig>,
    /// Holds a caller's certificate against the client authority.
    pub clients: Option<Arc<dyn ClientCertVerifier>>,
}

impl TlsSettings {
    pub fn new(config: &KubeletConfiguration, certificate: PathBuf, key: PathBuf) -> Result<Self, String> {
        let versions = match config.tls_min_version {
            TlsVersion::Tls13 => vec![&rustls::version::TLS13],
            TlsVersion::Unset | TlsVersion::Tls12 => vec![&rustls::version::TLS13, &rustls::version::TLS12],
        };
        let provider = ciphers::restrict(ring::default_provider(), &config.tls_cipher_suites)?;
        let client_ca = Some(config.authentication.x509.client_ca_file.as_str()).filter(|f| !f.is_empty());
        Ok(Self {
            certificate,
            key,
            client_ca: client_ca.map(Into::into),
            provider: Arc::new(provider),
            versions,
            check_every: CHECK_EVERY,
        })
    }

    fn files(&self) -> impl Iterator<Item = &Path> {
        [Some(&self.certificate), Some(&self.key), self.client_ca.as_ref()]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
    }

    fn stamps(&self) -> Vec<Option<(SystemTime, u64)>> {
        let stamp = |path: &Path| {
            let found = fs::metadata(path).ok()?;
            Some((found.modified().ok()?, found.len()))
        };
        self.files().map(stamp).collect()
    }

    fn load(&self) -> Result<LoadedTls, String> {
        let certificates = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&read(&self.key)?)
            .map_err(|e| format!("{} holds no private key: {e}", self.key.display()))?;
        let clients = match &self.client_ca {
            Some(path) => Some(self.client_verifier(path)?),
            None => None,
        };
        let builder = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&self.versions)
            .map_err(|e| format!("tlsMinVersion and tlsCipherSuites leave nothing to talk with: {e}"))?;
        let builder = match &clients {
            Some(clients) => builder.with_client_cert_verifier(Arc::new(AnyCertificate {
                hints: clients.root_hint_subjects().to_vec(),
                algorithms: self.provider.signature_verification_algorithms,
            })),
            None => builder.with_no_client_auth(),
        };
        let mut server = builder.with_single_cert(certificates, key).map_err(|e| {
            format!("{} and {} cannot be used together: {e}", self.certificate.display(), self.key.display())
        })?;
        server.alpn_protocols = vec![b"http/1.1".to_vec()];
        // Nothing is kept of a connection that ended; the few clients there are stay connected.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(LoadedTls { server: Arc::new(server), clients })
    }

    fn client_verifier(&self, path: &Path) -> Result<Arc<dyn ClientCertVerifier>, String> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(path)? {
            roots
                .add(certificate)
                .map_err(|e| format!("{}: a certificate cannot be used: {e}", path.display()))?;
        }
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), self.provider.clone())
            .build()
            .map_err(|e| format!("{} cannot vouch for clients: {e}", path.display()))
    }
}

impl Tls {
    pub fn open(settings: TlsSettings) -> Result<Self, String> {
        let seen = settings.stamps();
        let loaded = Arc::new(settings.load()?);
        let state = Mutex::new(TlsState { loaded, checked_at: Instant::now(), seen });
        Ok(Self { settings, state, reading: BlockingLimit::new(1) })
    }

    /// What is in the files now. While they cannot be used, what was in them before.
    pub async fn current(self: &Arc<Self>) -> Arc<LoadedTls> {
        {
            let mut state = self.lock();
            if state.checked_at.elapsed() < self.settings.check_every {
                return state.loaded.clone();
            }
            state.checked_at = Instant::now();
        }
        let this = self.clone();
        // Reading files blocks; a hung disk must not hold up more than this one connection.
        if let Some(permit) = self.reading.try_acquire() {
            let _ = permit.run(move || this.reload_if_changed()).await;
        }
        self.lock().loaded.clone()
    }

    fn reload_if_changed(&self) {
        let now = self.settings.stamps();
        if self.lock().seen == now {
            return;
        }
        let loaded = self.settings.load();
        let mut state = self.lock();
        state.seen = now;
        match loaded {
            Ok(loaded) => {
                tracing::info!(certificate = %self.settings.certificate.display(), "certificates of the node's API read again");
                state.loaded = Arc::new(loaded);
            }
            // Perhaps half of a rotation; the next change is read again.
            Err(error) => tracing::warn!(
                error,
                "the certificates of the node's API changed to something that cannot be used; the old ones stay"
            ),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, TlsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let cannot = |e: std::io::Error| format!("cannot read {}: {e}", path.display());
    let found = fs::metadata(path).map_err(cannot)?;
    if !found.is_file() || found.len() > LARGEST_FILE {
        return Err(format!("{} is no PEM file of at most {LARGEST_FILE} bytes", path.display()));
    }
    fs::read(path).map_err(cannot)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(format!("{} holds no certificate", path.display())),
        Err(e) => Err(format!("{} is no PEM file: {e}", path.display())),
    }
}

/// Lets everybody through the handshake who holds the key to what they show. Whether that is worth anything is decided for
/// each request: a caller with a bad certificate is owed a 401 instead of a broken connection, may still have a good token,
/// and one whose certificate runs out, or whose authority is replaced, is not let in for as long as the connection lasts.
#[derive(Debug)]
struct AnyCertificate {
    hints: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
