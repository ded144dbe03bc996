//! The connection to the runtime, and the one way in which every call is made.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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

/// Is told about the mutating calls (sandboxes and containers: create, start, stop, remove), so that they can be waited for
/// when this process is gone.
pub trait CallTracker: Send + Sync {
    /// The connection of mutating calls was made, for the first time or anew.
    fn connected(&self, connection: BorrowedFd<'_>);
    /// How many calls have no response yet.
    fn in_flight(&self, calls: u64);
}

/// Tracks nothing.
struct Untracked;

impl CallTracker for Untracked {
    fn connected(&self, _: BorrowedFd<'_>) {}
    fn in_flight(&self, _: u64) {}
}

/// A client of one container runtime. Clones share its connections, which are made on first use and anew whenever they broke.
#[derive(Clone)]
pub struct Runtime(Arc<Inner>);

struct Inner {
    runtime: RuntimeServiceClient<Channel>,
    /// On a connection of their own: a runtime cancels the calls of a client that is gone, wherever they stand, and this
    /// connection can be held open by somebody else meanwhile.
    mutating: MutatingCalls,
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
    ///
    /// Every call has a deadline that the runtime knows; that of a mutating call is at most
    /// [`Runtime::longest_mutating_call`], beyond the grace of a container that is stopped.
    pub fn connect(
        endpoint: &str,
        image_endpoint: Option<&str>,
        request_timeout: Duration,
    ) -> Result<Self, CriError> {
        Self::connect_with(endpoint, image_endpoint, request_timeout, Arc::new(Untracked))
    }

    /// The same, with a tracker of mutating calls.
    pub fn connect_with(
        endpoint: &str,
        image_endpoint: Option<&str>,
        request_timeout: Duration,
        tracker: Arc<dyn CallTracker>,
    ) -> Result<Self, CriError> {
        let connections = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&connections);
        let runtime = channel(endpoint, move |_| {
            counted.fetch_add(1, Ordering::AcqRel);
        })?;
        let images = match image_endpoint {
            Some(other) if !other.is_empty() && other != endpoint => channel(other, |_| ())?,
            _ => runtime.clone(),
        };
        let told = Arc::clone(&tracker);
        let mutating = channel(endpoint, move |connection| told.connected(connection))?;
        Ok(Self(Arc::new(Inner {
            runtime: RuntimeServiceClient::new(runtime).max_decoding_message_size(LARGEST_ANSWER),
            mutating: MutatingCalls {
                client: RuntimeServiceClient::new(mutating),
                in_flight: Arc::default(),
                tracker,
            },
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
            mutating: self.0.mutating.clone(),
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

    /// How long the slowest mutating call may take, that for a sandbox with its network.
    pub fn longest_mutating_call(request_timeout: Duration) -> Duration {
        request_timeout.saturating_mul(2)
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

    /// Makes a call that changes something, on the connection of those.
    pub(crate) async fn mutate<T>(
        &self,
        call: &Call<'_>,
        ask: impl AsyncFnOnce(RuntimeServiceClient<Channel>) -> Result<Response<T>, Status>,
    ) -> Result<T, CriError> {
        let _counted = self.0.mutating.begin();
        call.answer(ask(self.0.mutating.client.clone())).await
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

#[derive(Clone)]
struct MutatingCalls {
    client: RuntimeServiceClient<Channel>,
    in_flight: Arc<Mutex<u64>>,
    tracker: Arc<dyn CallTracker>,
}

impl MutatingCalls {
    fn begin(&self) -> InFlight<'_> {
        self.count(|n| n + 1);
        InFlight(self)
    }

    /// Under the lock, so that the tracker is told the numbers in their order.
    fn count(&self, next: impl FnOnce(u64) -> u64) {
        let mut in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        *in_flight = next(*in_flight);
        self.tracker.in_flight(*in_flight);
    }
}

/// A call from its request to its response, or until it is given up.
struct InFlight<'a>(&'a MutatingCalls);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.count(|n| n.saturating_sub(1));
    }
}

pub(crate) fn channel(
    endpoint: &str,
    on_connect: impl Fn(BorrowedFd<'_>) + Send + Sync + 'static,
) -> Result<Channel, CriError> {
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
    let (to, on_connect) = (PathBuf::from(path), Arc::new(on_connect));
    let connector = service_fn(move |_| {
        let (to, on_connect) = (to.clone(), Arc::clone(&on_connect));
        async move {
            let stream = UnixStream::connect(to).await?;
            on_connect(stream.as_fd());
            Ok::<_, std::io::Error>(TokioIo::new(stream))
        }
    });
    Ok(Endpoint::from_shared(format!("unix://{path}"))
        .map_err(|error| refuse(format!("not usable as an address: {error}")))?
        .connect_timeout(Duration::from_secs(5))
        .connect_with_connector_lazy(connector))
}
