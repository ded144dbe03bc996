//! The way of one request: who is it, may they, what do they mean; then the endpoint.

use std::pin::Pin;
use std::sync::Arc;

use http::{Request, Response, StatusCode, header};
use hyper::body::Incoming;
use keelson_apiserver::User;
use keelson_core::node_api::{Endpoint, Query, Refusal, Segments, access, route};
use rustls::pki_types::CertificateDer;
use tokio_util::sync::CancellationToken;

use super::authenticate::{Authenticator, Credentials};
use super::authorize::Authorizer;
use super::seats::Seat;
use super::tls::Tls;
use crate::reply::{Reply, text};

/// A request that has passed both checks, as an endpoint gets it.
pub(crate) struct Call {
    pub endpoint: Endpoint,
    pub query: Query,
    pub user: User,
    /// For its headers and to be upgraded. Nothing that is served here has a body to be read.
    pub request: Request<Incoming>,
    /// Cancelled when the agent ends; a stream that goes on must end then.
    pub shutdown: CancellationToken,
}

/// What stands behind the checks.
pub(crate) type Endpoints =
    Arc<dyn Fn(Call) -> Pin<Box<dyn Future<Output = Response<Reply>> + Send>> + Send + Sync>;

/// Shared by all connections.
pub(super) struct Gate {
    pub tls: Arc<Tls>,
    pub authenticator: Authenticator,
    pub authorizer: Authorizer,
    pub endpoints: Endpoints,
    pub shutdown: CancellationToken,
}

/// The other end of a connection.
pub(super) struct Peer {
    pub certificates: Vec<CertificateDer<'static>>,
    pub seat: Seat,
}

impl Gate {
    pub async fn answer(&self, peer: &Peer, request: Request<Incoming>) -> Response<Reply> {
        // The authority may have been replaced since the connection was made.
        let loaded = self.tls.current().await;
        let credentials = Credentials {
            certificates: &peer.certificates,
            clients: loaded.clients.as_ref(),
            headers: request.headers(),
        };
        let Some(user) = self.authenticator.authenticate(credentials).await else {
            // A stranger does not keep the place.
            let mut refusal = text(StatusCode::UNAUTHORIZED, "Unauthorized");
            refusal.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
            return refusal;
        };
        let path = match Segments::parse(request.uri().path()) {
            Ok(path) => path,
            Err(bad) => return text(StatusCode::BAD_REQUEST, format!("{bad}\n")),
        };
        let method = request.method().as_str();
        let access = access(method, &path);
        let about = || {
            let subresources = access.subresources.join(" ");
            format!(
                "(user={}, verb={}, resource=nodes, subresource(s)=[{subresources}])",
                user.name, access.verb
            )
        };
        match self.authorizer.allows(&user, &access).await {
            // Not before: every pod has a token that says who it is, and may do nothing here with it.
            Ok(true) if peer.seat.becomes_known() => {}
            Ok(true) => return busy("too many connections"),
            Ok(false) => {
                tracing::info!(
                    user = user.name,
                    verb = access.verb,
                    path = request.uri().path(),
                    "forbidden"
                );
                return text(StatusCode::FORBIDDEN, format!("Forbidden {}\n", about()));
            }
            Err(error) => {
                tracing::warn!(user = user.name, %error, "what a caller of the node's API may do cannot be asked");
                return text(StatusCode::INTERNAL_SERVER_ERROR, format!("Authorization error {}\n", about()));
            }
        }
        let endpoint = match route(method, &path) {
            Ok(endpoint) => endpoint,
            Err(Refusal::NotFound) => return text(StatusCode::NOT_FOUND, "404 page not found\n"),
            Err(Refusal::Method(allowed)) => {
                let mut refusal = text(StatusCode::METHOD_NOT_ALLOWED, format!("use {allowed}\n"));
                refusal.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static(allowed));
                return refusal;
            }
        };
        let Some(query) = Query::parse(request.uri().query()) else {
            return text(
                StatusCode::BAD_REQUEST,
                "the query is not understood: it must be form-encoded UTF-8\n",
            );
        };
        tracing::debug!(user = user.name, method, path = request.uri().path(), "request");
        (self.endpoints)(Call { endpoint, query, user, request, shutdown: self.shutdown.clone() }).await
    }
}

/// 503: come back later.
pub(crate) fn busy(why: &str) -> Response<Reply> {
    let mut reply = text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"));
    reply.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
    reply
}
