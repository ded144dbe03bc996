//! The port, and the connections on it.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use keelson_agent::NodeHandle;
use keelson_core::config::Settings;
use keelson_core::node_api::{Exposure, exposure};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::answer::{Endpoints, Gate, Peer};
use super::authenticate::{Authenticator, by_certificate};
use super::authorize::Authorizer;
use super::seats::{Seat, Seats};
use super::tls::{Tls, TlsSettings};
use super::{endpoints, self_signed, traffic};
use crate::port;

/// How long a peer may take. Tests shorten it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// From the connection to the end of the TLS handshake.
    pub handshake: Duration,
    /// For a request's head, and for the pause before the next request on a connection.
    pub head: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { handshake: Duration::from_secs(10), head: Duration::from_secs(30) }
    }
}

/// An exec carries its command in the request line.
const HEAD_BYTES: usize = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("address {0:?} is not an IP address")]
    Address(String),
    #[error(
        "cannot listen on {address} for the node's API: {source}; another kubelet may be running, or set port"
    )]
    Listen { address: SocketAddr, source: io::Error },
    #[error("the node's API cannot be served: {0}")]
    Tls(String),
    #[error("tlsCertFile and tlsPrivateKeyFile belong together: give both or none")]
    HalfAPair,
}

/// The bound port with its certificates, ready to be served.
pub struct NodeApi {
    listener: TcpListener,
    tls: Arc<Tls>,
    exposure: Exposure,
    pub(super) patience: Patience,
}

/// None when there is nobody whom the API could be served to; the log says why.
pub async fn listen(settings: &Settings) -> Result<Option<NodeApi>, ListenError> {
    let config = &settings.kubelet;
    let exposure = exposure(config, !settings.standalone);
    match &exposure {
        Exposure::Off(why) => {
            tracing::info!(why, "the node's API is not served");
            return Ok(None);
        }
        Exposure::Served { anonymous: true, authorized: false, .. } => {
            tracing::warn!(
                "the node's API is open to everybody: anonymous access and AlwaysAllow are configured"
            );
        }
        Exposure::Served { .. } => {}
    }
    let ip: IpAddr = config.address.parse().map_err(|_| ListenError::Address(config.address.clone()))?;
    let address = SocketAddr::new(ip, u16::try_from(config.port).unwrap_or(10250));
    let (certificate, key) = match (config.tls_cert_file.as_str(), config.tls_private_key_file.as_str()) {
        ("", "") => {
            let ips = settings.node_ips.iter().filter(|ip| !ip.is_unspecified()).map(IpAddr::to_string);
            let names = std::iter::once(settings.node_name.clone()).chain(ips).collect();
            self_signed::ensure(&settings.paths.cert_dir, names).map_err(ListenError::Tls)?
        }
        ("", _) | (_, "") => return Err(ListenError::HalfAPair),
        (certificate, key) => (certificate.into(), key.into()),
    };
    let tls = TlsSettings::new(config, certificate, key).map_err(ListenError::Tls)?;
    NodeApi::open(address, tls, exposure, port::PATIENCE).await.map(Some)
}

/// 0.0.0.0 means everywhere, IPv6 too where there is any, as it does for the kubelet.
fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    if address.ip() == IpAddr::from([0, 0, 0, 0]) {
        match port::listener(SocketAddr::new(IpAddr::from([0u16; 8]), address.port())) {
            // Without IPv6 there is IPv4 alone. A port that is held is not: its holder may be gone a moment later, and half
            // of the port would be all that is served from then on.
            Err(e) if e.kind() != io::ErrorKind::AddrInUse => {}
            both => return both,
        }
    }
    port::listener(address)
}

impl NodeApi {
    pub(super) async fn open(
        address: SocketAddr,
        tls: TlsSettings,
        exposure: Exposure,
        patience: Duration,
    ) -> Result<Self, ListenError> {
        let tls = Arc::new(Tls::open(tls).map_err(ListenError::Tls)?);
        let listener = port::open(address, patience, || bind(address)).await;
        let listener = listener.map_err(|source| ListenError::Listen { address, source })?;
        Ok(Self { listener, tls, exposure, patience: Patience::default() })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `shutdown`.
    pub async fn serve(self, node: NodeHandle, shutdown: CancellationToken) {
        let api = node.api().cloned();
        let endpoints = endpoints::of(node.clone());
        let (authenticator, authorizer) = checks(&self.exposure, api, node.settings());
        self.serve_with(authenticator, authorizer, endpoints, shutdown).await;
    }

    pub(super) async fn serve_with(
        self,
        authenticator: Authenticator,
        authorizer: Authorizer,
        endpoints: Endpoints,
        shutdown: CancellationToken,
    ) {
        let gate = Arc::new(Gate {
            tls: self.tls,
            authenticator,
            authorizer,
            endpoints,
            shutdown: shutdown.clone(),
        });
        let seats = Seats::default();
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = shutdown.cancelled() => return,
            };
            match accepted {
                // Whoever must wait for a seat does so on their own; nobody else waits with them.
                Ok((stream, peer)) => match seats.queue(peer.ip()) {
                    Some(place) => {
                        let (gate, patience) = (gate.clone(), self.patience);
                        tokio::spawn(async move {
                            match place.seat(patience.handshake).await {
                                Some(seat) => connection(gate, stream, seat, patience).await,
                                None => traffic::rejected(),
                            }
                        });
                    }
                    None => traffic::rejected(),
                },
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection to the node's API");
                    // Out of descriptors: room comes back as connections end, not by asking again at once.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

fn checks(
    exposure: &Exposure,
    api: Option<keelson_apiserver::Api>,
    settings: &Settings,
) -> (Authenticator, Authorizer) {
    let Exposure::Served { tokens, anonymous, authorized, .. } = exposure else {
        // Never listened to; and if it were, nobody would get in.
        return (Authenticator::new(None, false), Authorizer::Nothing);
    };
    let (authentication, authorization) = (&settings.kubelet.authentication, &settings.kubelet.authorization);
    let reviewed = api.clone().filter(|_| *tokens).map(|api| (api, authentication.webhook.cache_ttl.get()));
    let authorizer = match (authorized, api) {
        (false, _) => Authorizer::Everything,
        (true, Some(api)) => Authorizer::ask(
            api,
            authorization.webhook.cache_authorized_ttl.get(),
            authorization.webhook.cache_unauthorized_ttl.get(),
        ),
        (true, None) => Authorizer::Nothing,
    };
    (Authenticator::new(reviewed, *anonymous), authorizer)
}

/// A peer that is gone without a word is found out within three minutes, and not by the system's default of two hours: a
/// stream of it would hold one of the places for streams until then. The numbers are those of Go's servers, and so the
/// kubelet's. A peer that only reads slowly answers the probes and stays.
fn keep_alive(stream: &TcpStream) -> rustix::io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(15))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(15))?;
    sockopt::set_tcp_keepcnt(stream, 9)
}

async fn connection(gate: Arc<Gate>, stream: TcpStream, seat: Seat, patience: Patience) {
    let _counted = traffic::connection();
    let _ = stream.set_nodelay(true);
    let _ = keep_alive(&stream);
    let shutdown = gate.shutdown.clone();
    let loaded = gate.tls.current().await;
    let acceptor = tokio_rustls::TlsAcceptor::from(loaded.server.clone());
    let handshake = tokio::select! {
        handshake = tokio::time::timeout(patience.handshake, acceptor.accept(stream)) => handshake,
        () = seat.displaced() => return traffic::rejected(),
        () = shutdown.cancelled() => return,
    };
    let Ok(Ok(stream)) = handshake else { return };
    // Nothing of ours follows the handshake that could carry its acknowledgement, and a client that does not send before it
    // has one would wait for the kernel's 40 ms.
    let _ = rustix::net::sockopt::set_tcp_quickack(stream.get_ref().0, true);
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let certificates: Vec<_> = certificates.iter().map(|c| c.clone().into_owned()).collect();
    // Whoever holds a certificate of the authority, as the apiserver does, keeps the seat from here on. It decides nothing
    // else: each request is authenticated.
    if loaded.clients.as_ref().is_some_and(|clients| by_certificate(&certificates, clients).is_some()) {
        seat.becomes_known();
    }
    let peer = Arc::new(Peer { certificates, seat });
    let service = service_fn(|request: Request<Incoming>| {
        let (gate, peer) = (gate.clone(), peer.clone());
        async move {
            let (_counted, began) = (traffic::request(), Instant::now());
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            let answer = gate.answer(&peer, request).await;
            traffic::answered(method.as_str(), &path, answer.status(), began.elapsed());
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience.head)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::select! {
        result = connection => {
            if let Err(error) = result {
                tracing::debug!(%error, "a connection to the node's API ended early");
            }
        }
        () = peer.seat.displaced() => traffic::rejected(),
        () = shutdown.cancelled() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_vanished_peer_is_found_out_within_minutes() {
        use rustix::net::sockopt;
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let _peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        keep_alive(&stream).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        let idle = sockopt::tcp_keepidle(&stream).unwrap();
        let probes = sockopt::tcp_keepintvl(&stream).unwrap() * sockopt::tcp_keepcnt(&stream).unwrap();
        assert!(idle + probes <= Duration::from_secs(180), "{idle:?} and {probes:?}");
    }
}
