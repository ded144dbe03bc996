//! One request and its answer: limited, timed, counted, and tried again where the server never saw it.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use keelson_kit::error_chain::chain;
use kube::client::Body;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::client::Api;
use crate::connection::{Connection, WatchPlace};
use crate::error::{ApiError, ErrorKind, plain};
use crate::jitter::random_fraction;
use crate::rate_limit::Priority;
use crate::requests;

/// How often a request that the server asked to be sent later is sent again before the caller gets the error.
const PATIENCE: u32 = 5;
/// A Retry-After beyond this is not waited for on the spot.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

impl Api {
    /// Sends a request and reads its answer. A server that asks to be left alone for a while is obeyed here.
    pub(crate) async fn call<T>(
        &self,
        operation: &str,
        priority: Priority,
        request: Built,
    ) -> Result<T, ApiError>
    where
        T: DeserializeOwned,
    {
        let request = built(operation, request)?;
        let mut waits = 0;
        let mut broken_off = false;
        loop {
            self.limits().admit(priority).await;
            let error = match self.once(operation, request.clone()).await {
                Ok(bytes) => return read_answer(operation, &bytes),
                Err(error) => error,
            };
            match error {
                Failure::Final(ApiError { kind: ErrorKind::TooManyRequests { retry_after }, .. })
                    if waits < PATIENCE && retry_after <= LONGEST_WAIT =>
                {
                    waits += 1;
                    tokio::time::sleep(retry_after.mul_f64(1.0 + 0.1 * random_fraction())).await;
                }
                // A kept-alive connection that the server had closed: that is noticed only by using it.
                Failure::BrokenOff(_) if !broken_off => broken_off = true,
                Failure::Final(error) | Failure::BrokenOff(error) => return Err(error),
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
            match self.call(operation, Priority::Normal, Ok(request.clone())).await {
                Err(error) if error.kind == ErrorKind::Forbidden => {
                    tokio::time::sleep(Duration::from_millis(delay)).await;
                }
                other => return other,
            }
        }
        self.call(operation, Priority::Normal, Ok(request)).await
    }

    async fn once(&self, operation: &str, request: Request<Vec<u8>>) -> Result<Bytes, Failure> {
        let connection = self.fresh_connection().await;
        let exchange = async {
            let response = self.exchange(operation, &connection, &connection.requests(), request).await?;
            let collected = response.into_body().collect().await;
            collected.map(|body| body.to_bytes()).map_err(|e| self.transport(operation, &connection, &e))
        };
        match timeout(self.timings().request, exchange).await {
            Ok(result) => result,
            Err(_) => Err(Failure::Final(self.timed_out(operation, &connection))),
        }
    }

    /// Opens a stream: the answer's head is there, its body is still coming. The place must live as long as the body.
    pub(crate) async fn open_stream(
        &self,
        operation: &str,
        request: Built,
    ) -> Result<(Body, WatchPlace), ApiError> {
        let request = built(operation, request)?;
        self.limits().admit(Priority::Normal).await;
        let connection = self.fresh_connection().await;
        let place =
            connection.place_watch().map_err(|e| ApiError::new(ErrorKind::Config, operation, chain(&e)))?;
        let opening = self.exchange(operation, &connection, &place.client, request);
        match timeout(self.timings().request, opening).await {
            Ok(Ok(response)) => Ok((response.into_body(), place)),
            Ok(Err(Failure::Final(error) | Failure::BrokenOff(error))) => Err(error),
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
                    self.kubeconfig(),
                    error.message
                ),
            };
        }
        Err(Failure::Final(error))
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
        if chain.contains("(Connect)") { Failure::Final(error) } else { Failure::BrokenOff(error) }
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
        let waited = self.timings().request.as_secs_f32();
        let message = format!("{} did not answer within {waited} s", connection.server);
        ApiError::new(ErrorKind::Unreachable, operation, message)
    }
}

pub(crate) type Built = Result<Request<Vec<u8>>, kube::core::request::Error>;

enum Failure {
    Final(ApiError),
    /// The connection ended in the middle; the server may never have seen the request.
    BrokenOff(ApiError),
}

fn built(operation: &str, request: Built) -> Result<Request<Vec<u8>>, ApiError> {
    request.map_err(|error| ApiError::new(ErrorKind::Invalid, operation, chain(&error)))
}

/// What is sent as the body of a request.
pub(crate) fn body<T: serde::Serialize>(operation: &str, object: &T) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(object)
        .map_err(|error| ApiError::new(ErrorKind::Invalid, operation, error.to_string()))
}

fn read_answer<T: DeserializeOwned>(operation: &str, bytes: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| {
        ApiError::new(ErrorKind::Other, operation, format!("the answer is not understood: {error}"))
    })
}
