//! One node's conversation with one apiserver.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use kube::client::Body;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout};

use crate::connection::{Connection, WatchPlace};
use crate::error::{ApiError, ErrorKind, chain, plain};
use crate::pace::{TokenBucket, random_fraction};
use crate::requests;

#[derive(Debug, Clone)]
pub struct ClientOptions {
    pub kubeconfig: PathBuf,
    pub node_name: String,
    pub qps: u32,
    pub burst: u32,
    /// Events have an allowance of their own: a crowd of them must not hold up statuses.
    pub event_qps: u32,
    pub event_burst: u32,
    pub timings: Timings,
}

impl ClientOptions {
    pub fn new(kubeconfig: impl Into<PathBuf>, node_name: impl Into<String>) -> Self {
        let (kubeconfig, node_name) = (kubeconfig.into(), node_name.into());
        Self {
            kubeconfig,
            node_name,
            qps: 50,
            burst: 100,
            event_qps: 50,
            event_burst: 100,
            timings: Timings::default(),
        }
    }
}

/// How long to wait for what. The defaults are for production; tests shorten them.
#[derive(Debug, Clone)]
pub struct Timings {
    /// For the whole answer to a request, and for the first byte of a watch.
    pub request: Duration,
    /// After this the server is asked to end a watch, so that no connection lives for ever.
    pub watch: Duration,
    /// A watch that brought nothing for this long, not even the bookmark that is due every minute, is reopened.
    pub watch_idle: Duration,
    /// Back-off after failures.
    pub retry_first: Duration,
    pub retry_cap: Duration,
    /// How often at most the identity's files are looked at for a rotation.
    pub identity_check: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            request: Duration::from_secs(30),
            watch: Duration::from_secs(290),
            watch_idle: Duration::from_secs(150),
            retry_first: Duration::from_millis(800),
            retry_cap: Duration::from_secs(30),
            identity_check: Duration::from_secs(10),
        }
    }
}

/// How often a request that the server asked to be sent later is sent again before the caller hears of it.
const PATIENCE: u32 = 5;
/// A Retry-After beyond this is not waited for on the spot.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Whether a request counts against the node's rate limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    Limited,
    Events,
    /// Questions that strangers cause.
    Reviews,
    /// For heartbeats, which must not wait behind a crowd of pods.
    Urgent,
}

#[derive(Clone)]
pub struct Api {
    shared: Arc<Shared>,
}

struct Shared {
    kubeconfig: PathBuf,
    node_name: String,
    bucket: TokenBucket,
    event_bucket: TokenBucket,
    review_bucket: TokenBucket,
    timings: Timings,
    connection: RwLock<(Arc<Connection>, Instant)>,
}

impl Api {
    /// Reads the identity. Does not contact the server: an agent starts whether or not it is there.
    pub async fn connect(options: &ClientOptions) -> Result<Self, ApiError> {
        // Two TLS providers may be linked in; which one is used must not depend on that. Set already is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let connection = open(options.kubeconfig.clone()).await?;
        Ok(Self {
            shared: Arc::new(Shared {
                kubeconfig: options.kubeconfig.clone(),
                node_name: options.node_name.clone(),
                bucket: TokenBucket::new(options.qps, options.burst),
                event_bucket: TokenBucket::new(options.event_qps, options.event_burst),
                review_bucket: TokenBucket::new(options.qps, options.burst),
                timings: options.timings.clone(),
                connection: RwLock::new((Arc::new(connection), Instant::now())),
            }),
        })
    }

    pub fn node_name(&self) -> &str {
        &self.shared.node_name
    }

    /// The server's URL, for messages.
    pub fn server(&self) -> String {
        self.connection().0.server.clone()
    }

    /// In words, when the client certificate ran out, so that the agent can bootstrap again.
    pub fn expired_certificate(&self) -> Option<String> {
        self.connection().0.expired(Timestamp::now())
    }

    pub(crate) fn timings(&self) -> &Timings {
        &self.shared.timings
    }

    /// Sends a request and reads its answer. A server that says when to come back is obeyed here.
    pub(crate) async fn call<T>(&self, operation: &str, pace: Pace, request: Built) -> Result<T, ApiError>
    where
        T: DeserializeOwned,
    {
        let request = built(operation, request)?;
        let mut waits = 0;
        let mut broken_off = false;
        loop {
            match pace {
                Pace::Limited => self.shared.bucket.take().await,
                Pace::Events => self.shared.event_bucket.take().await,
                Pace::Reviews => self.shared.review_bucket.take().await,
                Pace::Urgent => {}
            }
            let error = match self.once(operation, request.clone()).await {
                Ok(bytes) => return read_answer(operation, &bytes),
                Err(error) => error,
            };
            match error {
                Failure::Told(ApiError { kind: ErrorKind::TooManyRequests { retry_after }, .. })
                    if waits < PATIENCE && retry_after <= LONGEST_WAIT =>
                {
                    waits += 1;
                    tokio::time::sleep(retry_after.mul_f64(1.0 + 0.1 * random_fraction())).await;
                }
                // A kept-alive connection that the server had closed: that is noticed only by using it.
                Failure::BrokenOff(_) if !broken_off => broken_off = true,
                Failure::Told(error) | Failure::BrokenOff(error) => return Err(error),
            }
        }
    }

    /// As [`Self::call`], for what a node may do only because of a pod that is bound to it. The Node authorizer learns of
    /// that pod from a watch of its own, a moment later than this node may have: what it forbids in that moment is asked
    /// for again before it counts.
    pub(crate) async fn call_past_authorizer_lag<T>(
        &self,
        operation: &str,
        request: Built,
    ) -> Result<T, ApiError>
    where
        T: DeserializeOwned,
    {
        let request = built(operation, request)?;
        for delay in [20, 50, 100, 200, 400] {
            match self.call(operation, Pace::Limited, Ok(request.clone())).await {
                Err(error) if error.kind == ErrorKind::Forbidden => {
                    tokio::time::sleep(Duration::from_millis(delay)).await;
                }
                other => return other,
            }
        }
        self.call(operation, Pace::Limited, Ok(request)).await
    }

    async fn once(&self, operation: &str, request: Request<Vec<u8>>) -> Result<Bytes, Failure> {
        let connection = self.fresh_connection().await;
        let exchange = async {
            let response = self.exchange(operation, &connection, connection.requests(), request).await?;
            let collected = response.into_body().collect().await;
            collected.map(|body| body.to_bytes()).map_err(|e| self.transport(operation, &connection, &e))
        };
        match timeout(self.shared.timings.request, exchange).await {
            Ok(result) => result,
            Err(_) => Err(Failure::Told(self.timed_out(operation, &connection))),
        }
    }

    /// Opens a stream: the answer's head is there, its body is still coming. The place must live as long as the body.
    pub(crate) async fn open_stream(
        &self,
        operation: &str,
        request: Built,
    ) -> Result<(Body, WatchPlace), ApiError> {
        let request = built(operation, request)?;
        self.shared.bucket.take().await;
        let connection = self.fresh_connection().await;
        let place =
            connection.place_watch().map_err(|e| ApiError::new(ErrorKind::Config, operation, chain(&e)))?;
        let opening = self.exchange(operation, &connection, &place.client, request);
        match timeout(self.shared.timings.request, opening).await {
            Ok(Ok(response)) => Ok((response.into_body(), place)),
            Ok(Err(Failure::Told(error) | Failure::BrokenOff(error))) => Err(error),
            Err(_) => Err(self.timed_out(operation, &connection)),
        }
    }

    async fn exchange(
        &self,
        operation: &str,
        connection: &Connection,
        client: &kube::Client,
        request: Request<Vec<u8>>,
    ) -> Result<Response<Body>, Failure> {
        let mut request = request.map(Body::from);
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
        request
            .headers_mut()
            .insert(USER_AGENT, HeaderValue::from_static(concat!("keelson/", env!("CARGO_PKG_VERSION"))));
        let method = request.method().clone();
        let sent = client.send(request).await;
        let code = sent.as_ref().map(|r| r.status());
        let host = connection.server.split("://").last().unwrap_or_default().trim_end_matches('/');
        requests::record(code.as_ref().map_or("<error>", |c| c.as_str()), host, method.as_str());
        let response = sent.map_err(|error| self.transport(operation, connection, &error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let code = response.status();
        let header = response.headers().get(RETRY_AFTER).and_then(|v| v.to_str().ok()?.parse().ok());
        let body = response.into_body().collect().await.map(|b| b.to_bytes()).unwrap_or_default();
        let mut error = ApiError::from_answer(operation, code, &body, header.map(Duration::from_secs));
        if error.kind == ErrorKind::Unauthorized {
            let why = connection.expired(Timestamp::now());
            let server = &connection.server;
            error.message = match why {
                Some(why) => format!("{server} does not accept this node's identity: {why}"),
                None => format!(
                    "{server} does not accept the identity in {}: {}",
                    self.shared.kubeconfig.display(),
                    error.message
                ),
            };
        }
        Err(Failure::Told(error))
    }

    fn transport(
        &self,
        operation: &str,
        connection: &Connection,
        error: &(dyn std::error::Error + 'static),
    ) -> Failure {
        let chain = chain(error);
        let cause = plain(&chain);
        let server = &connection.server;
        let message = match connection.expired(Timestamp::now()) {
            // Some servers end the TLS handshake at once instead of answering 401.
            Some(why) if cause.contains("ertificate") => {
                format!("{server} refused the connection: {why} ({cause})")
            }
            _ => format!("cannot reach {server}: {cause}"),
        };
        let error = ApiError::new(ErrorKind::Unreachable, operation, message);
        if chain.contains("(Connect)") { Failure::Told(error) } else { Failure::BrokenOff(error) }
    }

    pub(crate) fn broken_stream(
        &self,
        operation: &str,
        error: &(dyn std::error::Error + 'static),
    ) -> ApiError {
        let message = format!("{} broke the stream off: {}", self.server(), plain(&chain(error)));
        ApiError::new(ErrorKind::Unreachable, operation, message)
    }

    fn timed_out(&self, operation: &str, connection: &Connection) -> ApiError {
        let waited = self.shared.timings.request.as_secs_f32();
        let message = format!("{} did not answer within {waited} s", connection.server);
        ApiError::new(ErrorKind::Unreachable, operation, message)
    }

    fn connection(&self) -> (Arc<Connection>, Instant) {
        self.shared.connection.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The connection, opened anew when the identity's files were replaced. Watches that are open keep the old one
    /// until they end, which they do within minutes.
    async fn fresh_connection(&self) -> Arc<Connection> {
        let (connection, checked_at) = self.connection();
        if checked_at.elapsed() < self.shared.timings.identity_check {
            return connection;
        }
        let renewed =
            if connection.is_outdated() { Some(open(self.shared.kubeconfig.clone()).await) } else { None };
        let mut current = self.shared.connection.write().unwrap_or_else(PoisonError::into_inner);
        current.1 = Instant::now();
        match renewed {
            Some(Ok(renewed)) => {
                tracing::info!(server = %renewed.server, "the node's identity was replaced; connecting with the new one");
                current.0 = Arc::new(renewed);
            }
            // Half of a rotation, or a mistake: the old one may still be good, and this is tried again.
            Some(Err(error)) => {
                tracing::warn!(%error, "the node's identity was replaced by one that cannot be used")
            }
            None => {}
        }
        current.0.clone()
    }
}

pub(crate) type Built = Result<Request<Vec<u8>>, kube::core::request::Error>;

enum Failure {
    Told(ApiError),
    /// The connection ended in the middle; the server may never have seen the request.
    BrokenOff(ApiError),
}

fn built(operation: &str, request: Built) -> Result<Request<Vec<u8>>, ApiError> {
    request.map_err(|error| ApiError::new(ErrorKind::Invalid, operation, chain(&error)))
}

fn read_answer<T: DeserializeOwned>(operation: &str, bytes: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| {
        ApiError::new(ErrorKind::Other, operation, format!("the answer is not understood: {error}"))
    })
}

async fn open(kubeconfig: PathBuf) -> Result<Connection, ApiError> {
    let operation = format!("read kubeconfig {}", kubeconfig.display());
    match tokio::task::spawn_blocking(move || Connection::open(&kubeconfig)).await {
        Ok(result) => result,
        Err(error) => Err(ApiError::new(ErrorKind::Config, &operation, error.to_string())),
    }
}
