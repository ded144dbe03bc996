//! On real sockets: what gets through the gate, and what happens at the door.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use keelson_core::config::KubeletConfiguration;
use keelson_core::node_api::{Exposure, exposure};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::authenticate::Authenticator;
use super::authorize::Authorizer;
use super::listener::{NodeApi, Patience};
use super::self_signed;
use super::tls::TlsSettings;
use crate::reply::text;

type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

struct Authority(Issuer<'static, KeyPair>, String);

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    Authority(Issuer::new(params, key), pem)
}

impl Authority {
    fn client(&self, user: &str, until: i32) -> Pair {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, user);
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        (vec![certificate.der().clone()], key)
    }
}

struct Served {
    address: SocketAddr,
    ca: Authority,
    directory: tempfile::TempDir,
    shutdown: CancellationToken,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

async fn served(change: impl FnOnce(&mut KubeletConfiguration)) -> Served {
    served_with(Patience::default(), change).await
}

async fn served_with(patience: Patience, change: impl FnOnce(&mut KubeletConfiguration)) -> Served {
    let directory = tempfile::tempdir().unwrap();
    let ca = authority("clients");
    let ca_file = directory.path().join("ca.crt");
    std::fs::write(&ca_file, &ca.1).unwrap();
    let mut config = KubeletConfiguration::default();
    config.authentication.x509.client_ca_file = ca_file.display().to_string();
    config.authorization.mode = keelson_core::config::AuthorizationMode::AlwaysAllow;
    change(&mut config);
    let (certificate, key) = self_signed::ensure(directory.path(), vec!["node-1".into()]).unwrap();
    let mut tls = TlsSettings::new(&config, certificate, key).unwrap();
    // A change counts for the very next connection and request, so that no test waits for it.
    tls.check_every = Duration::ZERO;
    let exposure = exposure(&config, false);
    let Exposure::Served { anonymous, .. } = exposure else { panic!("{exposure:?}") };
    let mut api = NodeApi::open("127.0.0.1:0".parse().unwrap(), tls, exposure, Duration::ZERO).await.unwrap();
    api.patience = patience;
    let (address, shutdown) = (api.address().unwrap(), CancellationToken::new());
    let endpoints: super::answer::Endpoints = Arc::new(|call| {
        Box::pin(async move { text(StatusCode::OK, format!("{} {:?}", call.user.name, call.endpoint)) })
    });
    let authenticator = Authenticator::new(None, anonymous);
    tokio::spawn(api.serve_with(authenticator, Authorizer::Everything, endpoints, shutdown.clone()));
    Served { address, ca, directory, shutdown }
}

type Stream = tokio_rustls::client::TlsStream<TcpStream>;

async fn connect(
    address: SocketAddr,
    trusted: &Path,
    identity: Option<Pair>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> std::io::Result<Stream> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(trusted).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        rustls::ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
    let builder = builder.with_root_certificates(roots);
    let config = match identity {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).unwrap(),
        None => builder.with_no_client_auth(),
    };
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("node-1").unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

const BOTH: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13, &rustls::version::TLS12];

impl Served {
    async fn stream(&self, identity: Option<Pair>) -> Stream {
        connect(self.address, &self.directory.path().join("kubelet.crt"), identity, BOTH).await.unwrap()
    }

    async fn ask(&self, identity: Option<Pair>, request: &str) -> String {
        exchange(&mut self.stream(identity).await, request).await
    }

    async fn get(&self, identity: Option<Pair>, path: &str) -> String {
        self.ask(identity, &format!("GET {path} HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n")).await
    }
}

async fn exchange(stream: &mut Stream, request: &str) -> String {
    // A server that refuses a request before it was read whole may reset the connection; what it said counts.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = vec![];
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn only_the_authority_s_own_get_in() {
    let served = served(|_| ()).await;
    let alice = served.ca.client("alice", 2100);
    let answer = served.get(Some(alice), "/pods").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("alice Pods"), "{answer}");
    for (case, identity) in [
        ("no certificate", None),
        ("another authority's", Some(authority("others").client("alice", 2100))),
        ("one of the same name", Some(authority("clients").client("alice", 2100))),
        ("one that ran out", Some(served.ca.client("alice", 2001))),
        ("one without a name", Some(served.ca.client("", 2100))),
    ] {
        for path in ["/pods", "/healthz", "/nothing", "/logs/../x", "/"] {
            let answer = served.get(identity.as_ref().map(|(c, k)| (c.clone(), k.clone_key())), path).await;
            assert!(answer.starts_with("HTTP/1.1 401"), "{case} {path}: {answer}");
        }
    }
}

#[tokio::test]
async fn who_is_in_is_told_what_is_wrong() {
    let served = served(|_| ()).await;
    for (request, expected) in [
        ("GET /nothing HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n", "404"),
        ("GET /pods/../x HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n", "400"),
        ("GET /logs/%2e%2e/x HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n", "400"),
        ("GET /pods?%f HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n", "400"),
        ("DELETE /pods HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n", "405"),
        ("GET  HTTP/1.1\r\n\r\n", "400"),
        ("\0\0\0\r\n\r\n", "400"),
    ] {
        let answer = served.ask(Some(served.ca.client("alice", 2100)), request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected}")), "{request:?}: {answer}");
    }
    let huge = format!("GET /pods HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(1 << 20));
    let answer = served.ask(Some(served.ca.client("alice", 2100)), &huge).await;
    assert!(!answer.starts_with("HTTP/1.1 200"), "a head of 1 MiB was read");
}

#[tokio::test]
async fn anonymous_is_nobody_unless_configured() {
    let served = served(|c| c.authentication.anonymous.enabled = true).await;
    let answer = served.get(None, "/pods").await;
    assert!(answer.ends_with("system:anonymous Pods"), "{answer}");
    let stranger = authority("others").client("alice", 2100);
    let answer = served.get(Some(stranger), "/pods").await;
    assert!(answer.starts_with("HTTP/1.1 401"), "bad credentials are not none: {answer}");
}

#[tokio::test]
async fn a_replaced_authority_counts_for_open_connections_too() {
    let served = served(|_| ()).await;
    let mut open = served.stream(Some(served.ca.client("alice", 2100))).await;
    let request = "GET /pods HTTP/1.1\r\nHost: n\r\n\r\n";
    let ask = async |open: &mut Stream| {
        open.write_all(request.as_bytes()).await.unwrap();
        let mut answer = [0; 4096];
        let length = open.read(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer[..length]).into_owned()
    };
    assert!(ask(&mut open).await.starts_with("HTTP/1.1 200"));
    let other = authority("newcomers, with a longer name");
    std::fs::write(served.directory.path().join("ca.crt"), &other.1).unwrap();
    let answer = ask(&mut open).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    let answer = served.get(Some(other.client("bob", 2100)), "/pods").await;
    assert!(answer.ends_with("bob Pods"), "{answer}");
}

#[tokio::test]
async fn a_new_certificate_is_shown_and_a_broken_one_is_not() {
    let served = served(|_| ()).await;
    let directory = served.directory.path();
    let (certificate, key, first) =
        (directory.join("kubelet.crt"), directory.join("kubelet.key"), directory.join("first.crt"));
    std::fs::copy(&certificate, &first).unwrap();
    let shows = async |expected: &Path| connect(served.address, expected, None, BOTH).await.map(drop);
    shows(&first).await.unwrap();
    // Each of these connections checks the files first, as the last two show.
    std::fs::write(&certificate, "half a rotation").unwrap();
    shows(&first).await.unwrap();
    std::fs::remove_file(&certificate).unwrap();
    std::fs::remove_file(&key).unwrap();
    self_signed::ensure(directory, vec!["node-1".into()]).unwrap();
    shows(&certificate).await.unwrap();
    assert!(shows(&first).await.is_err(), "the old certificate is still shown");
}

#[tokio::test]
async fn the_least_version_is_held() {
    let served = served(|c| c.tls_min_version = keelson_core::config::TlsVersion::Tls13).await;
    let trusted = served.directory.path().join("kubelet.crt");
    assert!(connect(served.address, &trusted, None, &[&rustls::version::TLS12]).await.is_err());
    assert!(connect(served.address, &trusted, None, &[&rustls::version::TLS13]).await.is_ok());
}

#[tokio::test]
async fn a_crowd_of_silent_strangers_leaves_room_for_the_known() {
    let served = served(|_| ()).await;
    let mut known = served.stream(Some(served.ca.client("alice", 2100))).await;
    known.write_all(b"GET /pods HTTP/1.1\r\nHost: n\r\n\r\n").await.unwrap();
    let mut answer = [0; 4096];
    let length = known.read(&mut answer).await.unwrap();
    assert!(answer[..length].starts_with(b"HTTP/1.1 200"));
    // 64 are let in to shake hands, 512 wait; the others find the door closed.
    let mut crowd = tokio::task::JoinSet::new();
    for _ in 0..700 {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        crowd.spawn(async move { stream.read(&mut [0]).await.unwrap_or(0) });
    }
    let closed = async {
        for _ in 0..700 - 64 - 512 {
            assert_eq!(crowd.join_next().await.unwrap().unwrap(), 0);
        }
    };
    tokio::time::timeout(Duration::from_secs(30), closed).await.unwrap();
    let answer = exchange(&mut known, "GET /pods HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn slow_peers_are_not_waited_for() {
    let patience = Patience { handshake: Duration::from_millis(300), head: Duration::from_millis(300) };
    let served = served_with(patience, |_| ()).await;
    let limit = Duration::from_secs(20);
    let mut silent = TcpStream::connect(served.address).await.unwrap();
    silent.write_all(&[0x16, 0x03]).await.unwrap();
    let ended = tokio::time::timeout(limit, silent.read(&mut [0])).await.expect("half a handshake is kept");
    assert!(matches!(ended, Ok(0) | Err(_)));
    for (case, said) in [
        ("no request", &b""[..]),
        ("half a head", b"GET /pods HTTP/1.1\r\nHo"),
        ("a second request that does not come", b"GET /pods HTTP/1.1\r\nHost: n\r\n\r\n"),
    ] {
        let mut open = served.stream(Some(served.ca.client("alice", 2100))).await;
        open.write_all(said).await.unwrap();
        let mut rest = vec![];
        let ended = tokio::time::timeout(limit, open.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "{case}: the connection is kept");
    }
}
