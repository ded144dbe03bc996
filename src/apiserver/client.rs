//! One node's identity at one apiserver, and the connection that is made with it.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use tokio::time::Instant;

use crate::connection::Connection;
use crate::error::{ApiError, ErrorKind};
use crate::options::{ClientOptions, Timings};
use crate::rate_limit::RateLimits;

#[derive(Clone)]
pub struct Api {
    session: Arc<Session>,
}

/// What all clones of an [`Api`] have in common.
struct Session {
    kubeconfig: PathBuf,
    node_name: String,
    limits: RateLimits,
    timings: Timings,
    /// The connection, and when its identity's files were last checked.
    connection: RwLock<(Arc<Connection>, Instant)>,
}

impl Api {
    /// Reads the identity. Does not contact the server: an agent starts whether or not it is there.
    pub async fn connect(options: &ClientOptions) -> Result<Self, ApiError> {
        // Two TLS providers may be linked in; which one is used must not depend on that. Set already is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let connection = open(options.kubeconfig.clone()).await?;
        let session = Session {
            kubeconfig: options.kubeconfig.clone(),
            node_name: options.node_name.clone(),
            limits: RateLimits::new(options),
            timings: options.timings.clone(),
            connection: RwLock::new((Arc::new(connection), Instant::now())),
        };
        Ok(Self { session: Arc::new(session) })
    }

    pub fn node_name(&self) -> &str {
        &self.session.node_name
    }

    /// The server's URL, for messages.
    pub fn server(&self) -> String {
        self.connection().0.server.clone()
    }

    /// Where the identity comes from, for messages.
    pub(crate) fn kubeconfig(&self) -> std::path::Display<'_> {
        self.session.kubeconfig.display()
    }

    pub(crate) fn timings(&self) -> &Timings {
        &self.session.timings
    }

    pub(crate) fn limits(&self) -> &RateLimits {
        &self.session.limits
    }

    fn connection(&self) -> (Arc<Connection>, Instant) {
        self.session.connection.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The connection that requests share seems to lead nowhere: the next ones use a new one.
    pub(crate) fn distrust_connection(&self) {
        self.connection().0.renew_requests();
    }

    /// The connection, opened anew when the identity's files were replaced. Watches that are open keep the old one
    /// until they end, which they do within minutes.
    pub(crate) async fn fresh_connection(&self) -> Arc<Connection> {
        let (connection, checked_at) = self.connection();
        if checked_at.elapsed() < self.session.timings.identity_check {
            return connection;
        }
        let renewed =
            if connection.is_outdated() { Some(open(self.session.kubeconfig.clone()).await) } else { None };
        let mut current = self.session.connection.write().unwrap_or_else(PoisonError::into_inner);
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

async fn open(kubeconfig: PathBuf) -> Result<Connection, ApiError> {
    let operation = format!("read kubeconfig {}", kubeconfig.display());
    match tokio::task::spawn_blocking(move || Connection::open(&kubeconfig)).await {
        Ok(result) => result,
        Err(error) => Err(ApiError::new(ErrorKind::Config, &operation, error.to_string())),
    }
}
