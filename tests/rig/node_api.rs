//! Talks to a node's HTTPS API without an apiserver in between, in bytes, so that it can also say what no client would.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::certs::Pair;

pub type Stream = tokio_rustls::client::TlsStream<TcpStream>;

/// Who asks.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    pub pair: Option<Pair>,
    pub token: Option<String>,
}

impl Credentials {
    pub fn pair(pair: &Pair) -> Self {
        Self { pair: Some(pair.clone()), token: None }
    }

    pub fn token(token: &str) -> Self {
        Self { pair: None, token: Some(token.trim().to_owned()) }
    }
}

/// A node's API.
#[derive(Clone)]
pub struct NodeApi {
    host: &'static str,
    port: u16,
    roots: rustls::RootCertStore,
}

/// An answer read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Head and body.
    pub text: String,
}

impl NodeApi {
    /// At loopback. `ca` vouches for the node's certificate.
    pub fn new(port: u16, ca: &Path) -> Result<Self> {
        Self::at("127.0.0.1", port, ca)
    }

    pub fn at(host: &'static str, port: u16, ca: &Path) -> Result<Self> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(ca).context("no certificate in the CA's file")?)?;
        Ok(Self { host, port, roots })
    }

    pub async fn connect(&self, who: &Credentials) -> Result<Stream> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(self.roots.clone());
        let config = match &who.pair {
            Some(pair) => {
                let chain = CertificateDer::pem_file_iter(&pair.cert)?.collect::<Result<Vec<_>, _>>()?;
                builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(&pair.key)?)?
            }
            None => builder.with_no_client_auth(),
        };
        let stream = TcpStream::connect((self.host, self.port)).await?;
        // As kubectl, the apiserver and curl do.
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(self.host)?;
        Ok(tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await?)
    }

    pub async fn get(&self, who: &Credentials, path: &str) -> Result<Answer> {
        self.ask(who, "GET", path, &[("Connection", "close")]).await
    }

    pub async fn post(&self, who: &Credentials, path: &str) -> Result<Answer> {
        self.ask(who, "POST", path, &[("Connection", "close"), ("Content-Length", "0")]).await
    }

    /// One request on a connection of its own, and everything that comes back.
    pub async fn ask(
        &self,
        who: &Credentials,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<Answer> {
        let mut stream = self.connect(who).await?;
        stream.write_all(head(who, method, path, headers).as_bytes()).await?;
        let mut said = vec![];
        // A server that closes without a farewell has still answered.
        let _ = stream.read_to_end(&mut said).await;
        answer(&said)
    }

    /// As `ask`, but the connection stays: for a stream. Only the head is read.
    pub async fn open(
        &self,
        who: &Credentials,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<(Answer, Stream)> {
        let mut stream = self.connect(who).await?;
        stream.write_all(head(who, method, path, headers).as_bytes()).await?;
        let mut said = vec![];
        while !said.ends_with(b"\r\n\r\n") {
            said.push(stream.read_u8().await.context("the connection ended within the answer's head")?);
        }
        Ok((answer(&said)?, stream))
    }
}

fn head(who: &Credentials, method: &str, path: &str, headers: &[(&str, &str)]) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: node\r\n");
    if let Some(token) = &who.token {
        head.push_str(&format!("Authorization: Bearer {token}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head + "\r\n"
}

fn answer(said: &[u8]) -> Result<Answer> {
    let text = String::from_utf8_lossy(said).into_owned();
    let status = text.split(' ').nth(1).and_then(|s| s.parse().ok());
    Ok(Answer { status: status.with_context(|| format!("no answer but {text:?}"))?, text })
}
