//! The connection to the runtime, and the one way in which every call is made.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;

use keelson_proto::runtime::v1::image_service_client::ImageServiceClient;
use keelson_proto::runtime::v1::runtime_service_client::RuntimeServiceClient;
use tokio::net::UnixStream;
use tokio::sync::OnceCell;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};
use tower::service_fn;

use crate::cache::StatusCache;
use crate::error::{CriError, ErrorKind};
use crate::operations;
use crate::status::CgroupDriver;

/// Where the kubelet keeps pod logs unless it is configured otherwise.
pub const DEFAULT_POD_LOGS: &str = "/var/log/pods";

/// A full node's lists pass the 4 MiB that gRPC libraries allow by default.
const LARGEST_ANSWER: usize = 16 << 20;

/// A client of one container runtime. Clones share the connection, which is made on first use and anew whenever it broke.
#[derive(Clone)]
pub struct Runtime(Arc<Inner>);

struct Inner {
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    endpoint: String,
    /// How often the runtime was reached anew.
    connections: Arc<AtomicU64>,
    request_timeout: Duration,
    pod_logs: PathBuf,
    cache: StatusCache,
    cgroup_driver: OnceCell<Option<CgroupDriver>>,
}

impl Runtime {
    /// Checks the endpoints (`unix:///path` or a plain absolute path) and prepares the connection. A socket that is not
    /// there yet is no error: calls fail with [`ErrorKind::Unavailable`] until it is.
    pub fn connect(
        endpoint: &str,
        image_endpoint: Option<&str>,
        request_timeout: Duration,
    ) -> Result<Self, CriError> {
        let connections = Arc::new(AtomicU64::new(0));
        let runtime = channel(endpoint, Arc::clone(&connections))?;
        let images = match image_endpoint {
            Some(other) if !other.is_empty() && other != endpoint => channel(other, Arc::default())?,
            _ => runtime.clone(),
        };
        Ok(Self(Arc::new(Inner {
            runtime: RuntimeServiceClient::new(runtime).max_decoding_message_size(LARGEST_ANSWER),
            images: ImageServiceClient::new(images).max_decoding_message_size(LARGEST_ANSWER),
            endpoint: endpoint.to_owned(),
            connections,
            request_timeout,
            pod_logs: PathBuf::from(DEFAULT_POD_LOGS),
            cache: StatusCache::default(),
            cgroup_driver: OnceCell::new(),
        })))
    }

    /// The same runtime with another root of pod logs; log paths outside of it are not used.
    pub fn with_pod_logs(self, root: &Path) -> Self {
        Self(Arc::new(Inner {
            runtime: self.0.runtime.clone(),
            images: self.0.images.clone(),
            endpoint: self.0.endpoint.clone(),
            connections: Arc::clone(&self.0.connections),
            request_timeout: self.0.request_timeout,
            pod_logs: root.to_owned(),
            cache: StatusCache::default(),
            cgroup_driver: OnceCell::new(),
        }))
    }

    pub fn endpoint(&self) -> &str {
        &self.0.endpoint
    }

    pub fn request_timeout(&self) -> Duration {
        self.0.request_timeout
    }

    pub fn pod_logs(&self) -> &Path {
        &self.0.pod_logs
    }

    /// Another number than before says that the runtime may have been restarted since, even if no call failed meanwhile.
    pub(crate) fn connections(&self) -> u64 {
        self.0.connections.load(Ordering::Acquire)
    }

    pub(crate) fn client(&self) -> RuntimeServiceClient<Channel> {
        self.0.runtime.clone()
    }

    pub(crate) fn images(&self) -> ImageServiceClient<Channel> {
        self.0.images.clone()
    }

    pub(crate) fn cache(&self) -> &StatusCache {
        &self.0.cache
    }

    pub(crate) fn known_cgroup_driver(&self) -> &OnceCell<Option<CgroupDriver>> {
        &self.0.cgroup_driver
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("endpoint", &self.0.endpoint).finish_non_exhaustive()
    }
}

/// A call that was named but not made yet.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub operation: &'static str,
    pub object: &'a str,
    pub limit: Duration,
}

impl<'a> Call<'a> {
    /// Tells the runtime the deadline too, so that it gives up the work when nobody waits for it any more.
    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.limit);
        request
    }

    pub async fn answer<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CriError> {
        let began = Instant::now();
        let answer = match tokio::time::timeout(self.limit, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(CriError::from_status(self.operation, self.object, &status)),
            Err(_) => Err(CriError::timeout(self.operation, self.object, self.limit)),
        };
        operations::record(self.operation, began.elapsed(), answer.is_err());
        answer
    }

    pub fn bad_answer(&self, message: String) -> CriError {
        CriError::bad_answer(self.operation, self.object, message)
    }
}

fn channel(endpoint: &str, connections: Arc<AtomicU64>) -> Result<Channel, CriError> {
    let refuse = |message: String| CriError {
        operation: "connect to",
        object: endpoint.to_owned(),
        code: Code::InvalidArgument,
        kind: ErrorKind::Other,
        message,
    };
    let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
    if !path.starts_with('/') {
        return Err(refuse("a runtime endpoint must be unix:///PATH with an absolute path".into()));
    }
    let to = PathBuf::from(path);
    let connector = service_fn(move |_| {
        let (to, connections) = (to.clone(), Arc::clone(&connections));
        async move {
            let stream = UnixStream::connect(to).await?;
            connections.fetch_add(1, Ordering::AcqRel);
            Ok::<_, std::io::Error>(TokioIo::new(stream))
        }
    });
    Ok(Endpoint::from_shared(format!("unix://{path}"))
        .map_err(|error| refuse(format!("not usable as an address: {error}")))?
        .connect_timeout(Duration::from_secs(5))
        .connect_with_connector_lazy(connector))
}
