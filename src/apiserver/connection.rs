//! From a kubeconfig to open connections, and again when one of its files was replaced.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use jiff::Timestamp;
use keelson_kit::error_chain::chain;
use kube::client::{Body, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig};
use tower::{BoxError, ServiceBuilder};

use crate::certificate;
use crate::error::{ApiError, ErrorKind};

/// Streams that one HTTP/2 connection may carry. Go's server allows 250 and some proxies 100; a request beyond the
/// limit would wait for a watch to end, which it never does.
const WATCHES_PER_CONNECTION: usize = 80;

/// The identity that the kubeconfig gives, and the connections made with it.
pub(crate) struct Connection {
    pub(crate) server: String,
    requests: RwLock<kube::Client>,
    /// Watches never share a connection with requests: see [`WATCHES_PER_CONNECTION`].
    watches: Mutex<Vec<(kube::Client, Arc<()>)>>,
    config: kube::Config,
    /// Path (or "the kubeconfig") of the client certificate, and when it ends.
    certificate: Option<(String, Timestamp)>,
    fingerprint: Fingerprint,
}

/// Holds a watch's place on its connection.
pub(crate) struct WatchPlace {
    pub(crate) client: kube::Client,
    _place: Arc<()>,
}

impl Connection {
    /// Reads the kubeconfig and every file that it names. May run its exec plugin, so it blocks: to be called where
    /// the runtime allows that.
    pub(crate) fn open(kubeconfig: &Path) -> Result<Self, ApiError> {
        let operation = format!("read kubeconfig {}", kubeconfig.display());
        let failed = |error: &(dyn std::error::Error + 'static)| {
            ApiError::new(ErrorKind::Config, &operation, chain(error))
        };
        let parsed = Kubeconfig::read_from(kubeconfig).map_err(|e| failed(&e))?;
        let options = KubeConfigOptions::default();
        let loading = kube::Config::from_custom_kubeconfig(parsed, &options);
        let config = tokio::runtime::Handle::current().block_on(loading).map_err(|e| failed(&e))?;
        let fingerprint = Fingerprint::of(kubeconfig, &config);
        let certificate = certificate_expiry(&config);
        let requests = client(&config).map_err(|e| failed(&e))?;
        Ok(Self {
            server: config.cluster_url.to_string().trim_end_matches('/').to_owned(),
            requests: RwLock::new(requests),
            watches: Mutex::new(Vec::new()),
            certificate,
            fingerprint,
            config,
        })
    }

    /// True when the kubeconfig or a certificate was replaced since this was opened.
    pub(crate) fn is_outdated(&self) -> bool {
        self.fingerprint != self.fingerprint.again()
    }

    pub(crate) fn requests(&self) -> kube::Client {
        self.requests.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has requests go over a new connection from now on: the old one may lead nowhere, which it takes pings three quarters
    /// of a minute to find out. What is under way stays on it.
    pub(crate) fn renew_requests(&self) {
        match client(&self.config) {
            Ok(new) => *self.requests.write().unwrap_or_else(PoisonError::into_inner) = new,
            Err(error) => {
                tracing::debug!(error = %chain(&error), "going on with the old connection");
            }
        }
    }

    /// A client with room for one more watch.
    pub(crate) fn place_watch(&self) -> Result<WatchPlace, kube::Error> {
        let mut shards = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        // The count of an Arc is the count of its watches, plus the one kept here.
        let free = shards.iter().position(|(_, places)| Arc::strong_count(places) <= WATCHES_PER_CONNECTION);
        let index = match free {
            Some(index) => index,
            None => {
                shards.push((client(&self.config)?, Arc::new(())));
                shards.len() - 1
            }
        };
        let (client, places) = &shards[index];
        Ok(WatchPlace { client: client.clone(), _place: places.clone() })
    }

    /// A message, when the client certificate ran out; what the server says about that is no help.
    pub(crate) fn expired(&self, now: Timestamp) -> Option<String> {
        let (path, not_after) = self.certificate.as_ref().filter(|(_, not_after)| *not_after <= now)?;
        Some(format!(
            "the client certificate in {path} expired at {not_after}; renew it or bootstrap this node again"
        ))
    }
}

fn client(config: &kube::Config) -> Result<kube::Client, kube::Error> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(Duration::from_secs(10)));
    tcp.set_keepalive(Some(Duration::from_secs(30)));
    let mut tls = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    if let Some(name) = config.tls_server_name.clone() {
        let name = name.try_into().map_err(kube::client::RustlsTlsError::InvalidServerName);
        let name = name.map_err(kube::Error::RustlsTls)?;
        tls = tls.with_server_name_resolver(hyper_rustls::FixedServerNameResolver::new(name));
    }
    let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(Duration::from_secs(90))
        .pool_max_idle_per_host(4)
        // A peer that vanished silently is noticed within three quarters of a minute.
        .http2_keep_alive_interval(Duration::from_secs(30))
        .http2_keep_alive_timeout(Duration::from_secs(15))
        .build::<_, Body>(tls.enable_http1().enable_http2().wrap_connector(tcp));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(kube::Client::new(service, config.default_namespace.clone()))
}

fn certificate_expiry(config: &kube::Config) -> Option<(String, Timestamp)> {
    let auth = &config.auth_info;
    let (path, pem) = match (&auth.client_certificate_data, &auth.client_certificate) {
        (Some(data), _) => {
            ("the kubeconfig".to_owned(), base64::engine::general_purpose::STANDARD.decode(data).ok()?)
        }
        (None, Some(path)) => (path.clone(), std::fs::read(path).ok()?),
        (None, None) => return None,
    };
    Some((path, certificate::expiry_of_pem(&pem)?))
}

/// Which files the identity came from and what state they were in, so that a rotation is noticed. A rotated certificate is a
/// symbolic link that now points elsewhere; the time of the file behind it differs.
#[derive(PartialEq)]
struct Fingerprint(Vec<(PathBuf, Option<(SystemTime, u64)>)>);

impl Fingerprint {
    fn of(kubeconfig: &Path, config: &kube::Config) -> Self {
        let auth = &config.auth_info;
        let named = [auth.client_certificate.as_ref(), auth.client_key.as_ref()];
        let root = config.root_cert_file.clone();
        let paths =
            std::iter::once(kubeconfig.to_owned()).chain(named.into_iter().flatten().map(PathBuf::from));
        Self(paths.chain(root).map(|path| (path.clone(), stamp(&path))).collect())
    }

    fn again(&self) -> Self {
        Self(self.0.iter().map(|(path, _)| (path.clone(), stamp(path))).collect())
    }
}

fn stamp(path: &Path) -> Option<(SystemTime, u64)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}
