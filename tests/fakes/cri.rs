//! A container runtime that runs nothing: it answers CRI on a unix socket from memory, and misbehaves on request.
//!
//! It lives on a thread of its own, so that stopping it ends every connection at once, as the death of a process would.

mod faults;
mod image_service;
mod runtime_service;
mod world;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use keelson_proto::runtime::v1::image_service_server::ImageServiceServer;
use keelson_proto::runtime::v1::runtime_service_server::RuntimeServiceServer;
use keelson_proto::runtime::v1::{
    ContainerConfig, ExecSyncResponse, PodSandboxConfig, RuntimeHandlerFeatures,
};
use tokio::net::UnixListener;
use tokio::sync::{broadcast, oneshot};
use tokio_stream::wrappers::UnixListenerStream;

pub use faults::{Fault, Lie, Rpc};

use faults::Faults;
use world::World;

/// A running fake. Dropping it stops it and removes its socket; what it holds in memory survives [`FakeCri::restart`].
pub struct FakeCri {
    path: PathBuf,
    shared: Shared,
    server: Option<Server>,
}

struct Server {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

#[derive(Clone)]
struct Shared {
    world: Arc<Mutex<World>>,
    faults: Arc<Faults>,
    /// Sent to make every open event stream end.
    cut: broadcast::Sender<()>,
}

impl FakeCri {
    /// Listens once this returns.
    pub fn start(path: &Path) -> io::Result<Self> {
        let shared = Shared { world: Arc::default(), faults: Arc::default(), cut: broadcast::channel(1).0 };
        let mut fake = Self { path: path.to_owned(), shared, server: None };
        fake.restart()?;
        Ok(fake)
    }

    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.path.display())
    }

    /// Ends every connection and removes the socket, as if the process was killed. Sandboxes and containers live on.
    pub fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            // The thread may be gone already; either way it is not running afterwards.
            let _ = server.stop.send(());
            let _ = server.thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }

    /// Stops, and serves the same sandboxes and containers again.
    pub fn restart(&mut self) -> io::Result<()> {
        self.stop();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(&self.path)?
        };
        let (stop, stopped) = oneshot::channel();
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name("fake-cri".into()).spawn(move || {
            runtime.block_on(async {
                let serving = tonic::transport::Server::builder()
                    .add_service(RuntimeServiceServer::new(shared.clone()))
                    .add_service(ImageServiceServer::new(shared))
                    .serve_with_incoming(UnixListenerStream::new(listener));
                tokio::select! {
                    served = serving => drop(served),
                    asked = stopped => drop(asked),
                }
            });
        })?;
        self.server = Some(Server { stop, thread });
        Ok(())
    }

    /// From now on this call goes wrong in this way, until [`FakeCri::clear`].
    pub fn fault(&self, rpc: Rpc, fault: Fault) {
        self.shared.faults.set(rpc, fault);
    }

    /// All calls go well again; those that hang go on.
    pub fn clear(&self) {
        self.shared.faults.clear();
    }

    /// How often this call was received, faulty or not.
    pub fn calls(&self, rpc: Rpc) -> usize {
        self.shared.faults.calls(rpc)
    }

    /// How many calls of any kind were received.
    pub fn all_calls(&self) -> usize {
        self.shared.faults.all_calls()
    }

    /// Ends the open event streams with an error; new ones may be opened.
    pub fn cut_events(&self) {
        // Nobody listening is fine: then there is nothing to cut.
        let _ = self.shared.cut.send(());
    }

    pub fn add_image(&self, name: &str) {
        self.shared.world().add_image(name);
    }

    /// Reports one more handler from now on.
    pub fn add_handler(&self, name: &str, features: RuntimeHandlerFeatures) {
        self.shared.world().handlers.push((name.to_owned(), features));
    }

    /// What it was told last of pods' addresses.
    pub fn pod_ranges(&self) -> String {
        self.shared.world().pod_ranges.clone()
    }

    pub fn images(&self) -> Vec<String> {
        self.shared.world().images.keys().cloned().collect()
    }

    /// Containers of this name exit with this code as soon as they are started.
    pub fn exits_at_once(&self, container_name: &str, code: i32) {
        self.shared.world().exits_at_once.insert(container_name.to_owned(), code);
    }

    /// What every command run in a container answers.
    pub fn exec_answers(&self, exit_code: i32, stdout: &[u8]) {
        let answer = ExecSyncResponse { stdout: stdout.to_vec(), stderr: vec![], exit_code };
        self.shared.world().exec_answer = answer;
    }

    /// The container's process ends by itself. False when there is no such running container.
    pub fn exit_container(&self, id: &str, code: i32) -> bool {
        self.shared.world().exit_container(id, code, if code == 0 { "Completed" } else { "Error" })
    }

    /// Ids in order of creation.
    pub fn sandbox_ids(&self) -> Vec<String> {
        self.shared.world().sandboxes.keys().cloned().collect()
    }

    /// Ids of containers with this name, in order of creation.
    pub fn container_ids(&self, name: &str) -> Vec<String> {
        let world = self.shared.world();
        world.containers.iter().filter(|(_, c)| c.name() == name).map(|(id, _)| id.clone()).collect()
    }

    pub fn is_running(&self, container_id: &str) -> bool {
        self.shared.world().containers.get(container_id).is_some_and(world::Container::is_running)
    }

    /// What the sandbox was asked to be.
    pub fn sandbox_config(&self, id: &str) -> Option<PodSandboxConfig> {
        self.shared.world().sandboxes.get(id).map(|sandbox| sandbox.config.clone())
    }

    /// What the container was asked to be.
    pub fn container_config(&self, id: &str) -> Option<ContainerConfig> {
        self.shared.world().containers.get(id).map(|container| container.config.clone())
    }
}

impl Drop for FakeCri {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
