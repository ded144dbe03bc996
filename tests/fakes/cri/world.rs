//! What the fake holds in memory: sandboxes, containers and images, and how they change.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use keelson_proto::runtime::v1::{
    self as proto, ContainerConfig, ContainerEventResponse, ContainerEventType, ContainerState,
    ContainerStatus, ExecSyncResponse, Image, PodSandboxConfig, PodSandboxState, PodSandboxStatus,
};
use tokio::sync::broadcast;
use tonic::Status;

pub struct World {
    /// Ids count up, so that the order of keys is the order of creation.
    pub sandboxes: BTreeMap<String, Sandbox>,
    pub containers: BTreeMap<String, Container>,
    pub images: BTreeMap<String, Image>,
    pub exits_at_once: BTreeMap<String, i32>,
    pub exec_answer: ExecSyncResponse,
    pub pod_ranges: String,
    /// The runtime's handlers, and what each can do.
    pub handlers: Vec<(String, proto::RuntimeHandlerFeatures)>,
    pub events: broadcast::Sender<ContainerEventResponse>,
    made: u32,
}

pub struct Sandbox {
    pub config: PodSandboxConfig,
    pub handler: String,
    pub ready: bool,
    pub created_at: i64,
    pub ip: String,
}

pub struct Container {
    pub sandbox_id: String,
    pub config: ContainerConfig,
    pub state: ContainerState,
    pub created_at: i64,
    pub started_at: i64,
    pub finished_at: i64,
    pub exit_code: i32,
    pub reason: String,
}

impl Default for World {
    fn default() -> Self {
        Self {
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
            images: BTreeMap::new(),
            exits_at_once: BTreeMap::new(),
            exec_answer: ExecSyncResponse::default(),
            pod_ranges: String::new(),
            handlers: vec![],
            events: broadcast::channel(1024).0,
            made: 0,
        }
    }
}

impl World {
    pub fn run_sandbox(&mut self, config: PodSandboxConfig, handler: String) -> Result<String, Status> {
        let wanted = sandbox_name(&config);
        if let Some((holder, _)) = self.sandboxes.iter().find(|(_, s)| sandbox_name(&s.config) == wanted) {
            return Err(reserved("sandbox", &wanted, holder));
        }
        let number = self.next();
        let id = format!("{number:08x}{:056x}", 0x5a);
        let host_network = network_of(&config) == proto::NamespaceMode::Node;
        let ip = if host_network {
            String::new()
        } else {
            format!("10.88.{}.{}", number >> 8 & 0xff, number & 0xff)
        };
        self.sandboxes.insert(id.clone(), Sandbox { config, handler, ready: true, created_at: now(), ip });
        self.publish(&id, &id, ContainerEventType::ContainerCreatedEvent);
        self.publish(&id, &id, ContainerEventType::ContainerStartedEvent);
        Ok(id)
    }

    /// False when it was not ready anyway.
    pub fn stop_sandbox(&mut self, id: &str) -> bool {
        for container in self.container_ids_in(id) {
            self.exit_container(&container, 137, "Error");
        }
        let Some(sandbox) = self.sandboxes.get_mut(id) else { return false };
        let was_ready = std::mem::replace(&mut sandbox.ready, false);
        if was_ready {
            self.publish(id, id, ContainerEventType::ContainerStoppedEvent);
        }
        was_ready
    }

    pub fn remove_sandbox(&mut self, id: &str) {
        self.stop_sandbox(id);
        for container in self.container_ids_in(id) {
            self.remove_container(&container);
        }
        if self.sandboxes.remove(id).is_some() {
            self.publish(id, id, ContainerEventType::ContainerDeletedEvent);
        }
    }

    pub fn create_container(&mut self, sandbox_id: &str, config: ContainerConfig) -> Result<String, Status> {
        let sandbox = self.sandboxes.get(sandbox_id).ok_or_else(|| missing("sandbox", sandbox_id))?;
        if !sandbox.ready {
            return Err(Status::unknown(format!("sandbox {sandbox_id} is not running")));
        }
        let image = config.image.clone().unwrap_or_default().image;
        self.find_image(&image).ok_or_else(|| missing("image", &image))?;
        let wanted = config.metadata.clone().unwrap_or_default();
        let holder = self
            .containers
            .iter()
            .find(|(_, c)| c.sandbox_id == sandbox_id && c.config.metadata.as_ref() == Some(&wanted));
        if let Some((holder, _)) = holder {
            return Err(reserved("container", &wanted.name, holder));
        }
        let id = format!("{:08x}{:056x}", self.next(), 0xc0);
        let container = Container {
            sandbox_id: sandbox_id.to_owned(),
            config,
            state: ContainerState::ContainerCreated,
            created_at: now(),
            started_at: 0,
            finished_at: 0,
            exit_code: 0,
            reason: String::new(),
        };
        self.containers.insert(id.clone(), container);
        self.publish(&id, sandbox_id, ContainerEventType::ContainerCreatedEvent);
        Ok(id)
    }

    pub fn start_container(&mut self, id: &str) -> Result<(), Status> {
        let container = self.containers.get_mut(id).ok_or_else(|| missing("container", id))?;
        if container.state != ContainerState::ContainerCreated {
            return Err(Status::unknown(format!("container {id} is not in created state")));
        }
        container.state = ContainerState::ContainerRunning;
        container.started_at = now();
        let (name, sandbox_id) = (container.name().to_owned(), container.sandbox_id.clone());
        self.publish(id, &sandbox_id, ContainerEventType::ContainerStartedEvent);
        if let Some(code) = self.exits_at_once.get(&name).copied() {
            self.exit_container(id, code, if code == 0 { "Completed" } else { "Error" });
        }
        Ok(())
    }

    /// False when there is no such container that runs or could.
    pub fn exit_container(&mut self, id: &str, code: i32, reason: &str) -> bool {
        let Some(container) = self.containers.get_mut(id) else { return false };
        if !container.is_running() {
            return false;
        }
        container.state = ContainerState::ContainerExited;
        container.finished_at = now();
        container.exit_code = code;
        container.reason = reason.to_owned();
        let sandbox_id = container.sandbox_id.clone();
        self.publish(id, &sandbox_id, ContainerEventType::ContainerStoppedEvent);
        true
    }

    pub fn remove_container(&mut self, id: &str) {
        self.exit_container(id, 137, "Error");
        if let Some(container) = self.containers.remove(id) {
            self.publish(id, &container.sandbox_id, ContainerEventType::ContainerDeletedEvent);
        }
    }

    pub fn add_image(&mut self, name: &str) -> String {
        let id = format!(
            "sha256:{:064x}",
            name.bytes().fold(7u64, |sum, byte| sum.wrapping_mul(131) ^ u64::from(byte))
        );
        let image =
            Image { id: id.clone(), repo_tags: vec![name.to_owned()], size: 1 << 20, ..Default::default() };
        self.images.insert(name.to_owned(), image);
        id
    }

    /// By name or by id.
    pub fn find_image(&self, name: &str) -> Option<&Image> {
        self.images.get(name).or_else(|| self.images.values().find(|image| image.id == name))
    }

    pub fn sandbox_status(&self, id: &str) -> Option<PodSandboxStatus> {
        let sandbox = self.sandboxes.get(id)?;
        let options =
            sandbox.config.linux.clone().and_then(|l| l.security_context).and_then(|s| s.namespace_options);
        Some(PodSandboxStatus {
            id: id.to_owned(),
            metadata: sandbox.config.metadata.clone(),
            state: sandbox.state().into(),
            created_at: sandbox.created_at,
            network: Some(proto::PodSandboxNetworkStatus { ip: sandbox.ip.clone(), additional_ips: vec![] }),
            linux: Some(proto::LinuxPodSandboxStatus { namespaces: Some(proto::Namespace { options }) }),
            labels: sandbox.config.labels.clone(),
            annotations: sandbox.config.annotations.clone(),
            runtime_handler: sandbox.handler.clone(),
        })
    }

    pub fn container_status(&self, id: &str) -> Option<ContainerStatus> {
        let container = self.containers.get(id)?;
        let logs = self.sandboxes.get(&container.sandbox_id).map(|s| s.config.log_directory.clone());
        let image = container.config.image.clone().unwrap_or_default();
        Some(ContainerStatus {
            id: id.to_owned(),
            metadata: container.config.metadata.clone(),
            state: container.state.into(),
            created_at: container.created_at,
            started_at: container.started_at,
            finished_at: container.finished_at,
            exit_code: container.exit_code,
            image_ref: self.find_image(&image.image).map(|found| found.id.clone()).unwrap_or_default(),
            image: Some(image),
            reason: container.reason.clone(),
            labels: container.config.labels.clone(),
            annotations: container.config.annotations.clone(),
            mounts: container.config.mounts.clone(),
            log_path: format!("{}/{}", logs.unwrap_or_default(), container.config.log_path),
            ..Default::default()
        })
    }

    fn container_ids_in(&self, sandbox: &str) -> Vec<String> {
        self.containers.iter().filter(|(_, c)| c.sandbox_id == sandbox).map(|(id, _)| id.clone()).collect()
    }

    fn next(&mut self) -> u32 {
        self.made += 1;
        self.made
    }

    fn publish(&self, id: &str, sandbox_id: &str, kind: ContainerEventType) {
        let statuses = self.container_ids_in(sandbox_id);
        // Nobody listening is fine.
        let _ = self.events.send(ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind.into(),
            created_at: now(),
            pod_sandbox_status: self.sandbox_status(sandbox_id),
            containers_statuses: statuses.iter().filter_map(|id| self.container_status(id)).collect(),
        });
    }
}

impl Sandbox {
    pub fn state(&self) -> PodSandboxState {
        if self.ready { PodSandboxState::SandboxReady } else { PodSandboxState::SandboxNotready }
    }
}

impl Container {
    pub fn name(&self) -> &str {
        self.config.metadata.as_ref().map(|m| m.name.as_str()).unwrap_or_default()
    }

    pub fn is_running(&self) -> bool {
        self.state == ContainerState::ContainerRunning
    }
}

pub fn missing(kind: &str, id: &str) -> Status {
    Status::not_found(format!("an error occurred when try to find {kind} {id:?}: not found"))
}

/// With containerd's code and message, which are what a client has to cope with.
fn reserved(kind: &str, name: &str, holder: &str) -> Status {
    Status::unknown(format!(
        "failed to reserve {kind} name {name:?}: name {name:?} is reserved for {holder:?}"
    ))
}

fn sandbox_name(config: &PodSandboxConfig) -> String {
    let metadata = config.metadata.clone().unwrap_or_default();
    format!("{}_{}_{}_{}", metadata.name, metadata.namespace, metadata.uid, metadata.attempt)
}

fn network_of(config: &PodSandboxConfig) -> proto::NamespaceMode {
    let options = config
        .linux
        .as_ref()
        .and_then(|l| l.security_context.as_ref())
        .and_then(|s| s.namespace_options.as_ref());
    options.map(proto::NamespaceOption::network).unwrap_or(proto::NamespaceMode::Pod)
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
