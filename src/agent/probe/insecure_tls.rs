//! TLS for probes and hooks: the answer matters, not who gives it, so no certificate is verified. A pod's endpoint has a
//! certificate for its service name at best, and the kubelet's contract is to accept any.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

#[derive(Debug, thiserror::Error)]
pub enum TlsFailure {
    #[error("http: server gave HTTP response to HTTPS client")]
    PlainHttp,
    #[error("{0}")]
    Other(String),
}

pub async fn connect(host: &str, stream: TcpStream) -> Result<TlsStream<FirstBytes>, TlsFailure> {
    static CONFIG: OnceLock<Result<Arc<ClientConfig>, String>> = OnceLock::new();
    let config = CONFIG.get_or_init(config).clone().map_err(TlsFailure::Other)?;
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|e| TlsFailure::Other(format!("host {host:?}: {e}")))?;
    let connecting = TlsConnector::from(config).connect(name, FirstBytes::of(stream)).into_fallible();
    connecting.await.map_err(|(error, stream)| match &stream.first {
        b"HTTP/" => TlsFailure::PlainHttp,
        _ => TlsFailure::Other(format!("TLS: {error}")),
    })
}

/// A connection that remembers the beginning of what the server said: where that is no TLS, it tells what it is.
pub struct FirstBytes {
    stream: TcpStream,
    first: [u8; 5],
    known: usize,
}

impl FirstBytes {
    fn of(stream: TcpStream) -> Self {
        Self { stream, first: [0; 5], known: 0 }
    }
}

impl AsyncRead for FirstBytes {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        let known = self.known;
        if known < self.first.len() {
            let new = buf.filled().get(before..).unwrap_or_default();
            let new = &new[..new.len().min(self.first.len() - known)];
            self.first[known..known + new.len()].copy_from_slice(new);
            self.known += new.len();
        }
        read
    }
}

impl AsyncWrite for FirstBytes {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

fn config() -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| format!("TLS: {e}"))?;
    let verifier = Arc::new(AcceptAny(provider));
    Ok(Arc::new(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()))
}

#[derive(Debug)]
struct AcceptAny(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
