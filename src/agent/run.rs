//! Builds the parts, starts the loops, and ends them when asked to. Pods go on without us.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use keelson_apiserver::{
    Api, ApiError, ClientOptions, EventRecorder, LeaseKeeper, LeaseSettings, ObjectCache, RuntimeClassCache,
    ServiceCache, TokenCache, TrustBundleCache,
};
use keelson_core::config::{CgroupDriver, Enforcement, Settings};
use keelson_core::node::{Amounts, Capacity, Reserved, allocatable};
use keelson_core::resource_managers::{KeptFromPods, ResourceManagers};
use keelson_core::resources::{HostRefusal, cpu_shares, page_limits};
use keelson_cri::{CallTracker, CriError, Runtime};
use keelson_host::cgroup::{self, CgroupError, Cgroups};
use keelson_host::dirs::RootDirs;
use keelson_host::logs::{LogDirs, LogWatch};
use keelson_host::machine::Roots;
use keelson_host::{PathError, static_pods};
use keelson_volumes::VolumeManager;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::allocations::{ACTUATED, ALLOCATED, Allocations};
use crate::images::{Images, archives};
use crate::managers::Managers;
use crate::node::machine::MachineFacts;
use crate::node::pulse::Pulse;
use crate::node::state::NodeState;
use crate::node::{ApiParts, Node};
use crate::node::{addresses, node_loop, object, pod_ranges};
use crate::pods::pod_loop::{PodEvents, PodLoop};
use crate::registry::Registry;
use crate::report::Reports;
use crate::report::handle::NodeHandle;
use crate::report::metrics::Metrics;
use crate::report::stats;
use crate::report::status_writer::StatusWriter;
use crate::user_namespaces::{UserNamespaces, UserNamespacesError};

/// What the process around the agent lends it.
pub struct Hooks {
    pub registry: Registry,
    pub pulse: Pulse,
    /// Called once, when the parts are there that the node's API is made of, before the first pod is touched.
    pub built: Box<dyn FnOnce(NodeHandle) + Send>,
    /// Is told about the mutating calls to the runtime.
    pub runtime_calls: Arc<dyn CallTracker>,
    /// Ends when the calls of the agent before this one have; no pod is touched until then.
    pub inherited_calls: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Called once, when everything that can be started has been.
    pub ready: Box<dyn FnOnce() + Send>,
    pub shutdown: CancellationToken,
}

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("the container runtime endpoint is not usable")]
    Runtime(#[from] CriError),
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Cgroups(#[from] CgroupError),
    #[error(transparent)]
    Directory(#[from] PathError),
    #[error("cannot read what this machine is: {0}")]
    Machine(String),
    #[error(transparent)]
    Host(#[from] HostRefusal),
    #[error("{0}")]
    Managers(String),
    #[error(transparent)]
    UserNamespaces(#[from] UserNamespacesError),
    #[error("a part of the agent ended that never should: {0}")]
    Ended(&'static str),
}

/// Runs the agent until `hooks.shutdown` is cancelled.
pub async fn run(mut settings: Settings, hooks: Hooks) -> Result<(), AgentError> {
    let dirs = RootDirs::new(&settings.paths.root_dir).resolved()?;
    settings.paths.root_dir = dirs.path().to_owned();
    let logs = LogDirs::new(&settings.paths.pod_logs_dir, &settings.paths.container_logs_dir);
    logs.ensure()?;
    let runtime = Runtime::connect_with(
        &settings.container_runtime_endpoint,
        Some(settings.image_service_endpoint.as_str()).filter(|e| !e.is_empty()),
        settings.kubelet.runtime_request_timeout.get(),
        hooks.runtime_calls,
    )?
    .with_pod_logs(&settings.paths.pod_logs_dir);
    let cgroups = Arc::new(open_cgroups(&settings, &runtime).await?);
    let mut machine = MachineFacts::read(&settings)?;
    let addresses = addresses::read(&settings).await.map_err(|e| AgentError::Machine(e.to_string()))?;
    cgroups.ensure_root(&all_pods(&settings, &machine.capacity))?;
    machine.resources = machine.host_resources(&settings, &cgroups)?;
    let managers = open_managers(&settings, &machine.capacity, &dirs)?;
    let user_namespaces = UserNamespaces::open(&settings, &dirs)?;
    let api = match &settings.kubeconfig {
        Some(path) => Some(connect(path.clone(), &settings).await?),
        None => None,
    };
    let events = api.as_ref().map_or_else(EventRecorder::standalone, |a| EventRecorder::start(a.api.clone()));
    let node = Arc::new(Node {
        reports: Reports {
            events,
            statuses: StatusWriter::new(api.as_ref().map(|a| a.api.clone()), hooks.registry.clone()),
            pulse: hooks.pulse,
            log_watch: LogWatch::start()
                .map_err(|e| AgentError::Machine(format!("logs cannot be watched: {e}")))?,
            metrics: Metrics::default(),
            stats: stats::StatsMemory::default(),
        },
        state: NodeState::new(addresses, settings.external_cloud),
        images: Images::new(
            runtime.clone(),
            &settings,
            api.as_ref().map(|a| (a.api.clone(), a.tokens.clone())),
        ),
        volumes: VolumeManager::new(),
        allocated: Arc::new(Allocations::open(dirs.path(), ALLOCATED)),
        actuated: Arc::new(Allocations::open(dirs.path(), ACTUATED)),
        managers,
        user_namespaces,
        registry: hooks.registry.clone(),
        runtime: runtime.clone(),
        settings,
        machine,
        api,
        dirs,
        logs,
        cgroups,
    });

    warn_of_swap(&node);
    (hooks.built)(NodeHandle::new(node.clone()));

    let mut tasks = JoinSet::new();
    tasks.spawn(named("node loop", node_loop::run(node.clone())));
    tasks.spawn(named("node object", object::follow(node.clone())));
    tasks.spawn(named("pod ranges", pod_ranges::follow(node.clone())));
    tasks.spawn(named("node addresses", addresses::follow(node.clone())));
    tasks.spawn(named("CPUs of containers", crate::upkeep::cpusets::run(node.clone())));
    tasks.spawn(named("allocated pods", node.allocated.clone().run()));
    tasks.spawn(named("actuated pods", node.actuated.clone().run()));
    let images = node.images.clone();
    tasks.spawn(named("earlier pulls", async move {
        images.settle_earlier_pulls().await;
        std::future::pending().await
    }));
    if let Some(dir) = node.settings.paths.image_dir.clone() {
        let endpoint = node.settings.image_service_endpoint.clone();
        tasks.spawn(named("image archives", archives::follow(dir, endpoint, node.images.clone())));
    }
    tasks.spawn(named("log rotation", crate::upkeep::log_rotation::run(node.clone())));
    tasks.spawn(named("chains of iptables", crate::upkeep::firewall::run(node.clone())));
    let pod_loop = PodLoop {
        api: node.api.as_ref().map(|a| Box::pin(a.api.pods()) as PodEvents),
        statics: static_sets(&node.settings, &mut tasks),
        runtime: keelson_cri::watch(runtime, Duration::from_secs(1)),
        node: node.clone(),
    };
    tasks.spawn(named("pod loop", async move {
        // Pods are judged by what the node has, so that has to be known first. It takes no apiserver and no runtime.
        tokio::join!(pod_loop.node.state.known(), hooks.inherited_calls);
        pod_loop.run().await;
    }));
    if let Some(api) = &node.api {
        let duration = Duration::from_secs(
            u64::try_from(node.settings.kubelet.node_lease_duration_seconds).unwrap_or(40),
        );
        let lease = LeaseSettings { duration, renew_every: duration / 4 };
        tasks.spawn(named("lease", LeaseKeeper::new(api.api.clone(), lease, node.state.uid()).run()));
    }
    (hooks.ready)();
    let ended = tokio::select! {
        () = hooks.shutdown.cancelled() => {
            tracing::info!("stopping; pods go on");
            Ok(())
        }
        Some(ended) = tasks.join_next() => Err(AgentError::Ended(ended.unwrap_or("a loop that panicked"))),
    };
    // What changed in the last moment. Nothing is lost that cannot be found out from what runs.
    for file in [&node.allocated, &node.actuated] {
        if let Err(error) = file.write() {
            tracing::warn!(%error, "what pods were granted is not written down");
        }
    }
    ended
}

/// Secrets lie in memory so that they are on no disk, which a node that swaps cannot promise on every kernel.
fn warn_of_swap(node: &Node) {
    if node.machine.swap_on && !keelson_host::mounting::keeps_tmpfs_from_swap() {
        let message = "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) \
                       might be swapped to disk and should no longer be considered secure.";
        tracing::warn!("{message}");
        node.node_event(true, "PossibleMemoryBackedVolumesOnDisk", message);
    }
}

async fn named(name: &'static str, work: impl Future<Output = ()>) -> &'static str {
    work.await;
    name
}

async fn connect(kubeconfig: PathBuf, settings: &Settings) -> Result<ApiParts, ApiError> {
    let positive = |n: i32, otherwise: u32| u32::try_from(n).ok().filter(|n| *n > 0).unwrap_or(otherwise);
    let mut options = ClientOptions::new(kubeconfig, settings.node_name.clone());
    options.qps = positive(settings.kubelet.kube_api_qps, 50);
    options.burst = positive(settings.kubelet.kube_api_burst, 100);
    options.event_qps = positive(settings.kubelet.event_record_qps, 50);
    options.event_burst = positive(settings.kubelet.event_burst, 100);
    let api = Api::connect(&options).await?;
    Ok(ApiParts {
        objects: ObjectCache::new(api.clone()),
        tokens: TokenCache::new(api.clone()),
        services: ServiceCache::start(api.clone()),
        runtime_classes: RuntimeClassCache::new(api.clone()),
        trust_bundles: TrustBundleCache::new(api.clone()),
        api,
    })
}

/// The runtime knows best which driver it uses; where it does not report it, the configuration decides.
async fn open_cgroups(settings: &Settings, runtime: &Runtime) -> Result<Cgroups, AgentError> {
    let reported = runtime.cgroup_driver().await.ok().flatten();
    let driver = match (reported, settings.kubelet.cgroup_driver) {
        (Some(keelson_cri::status::CgroupDriver::Systemd), _) | (None, CgroupDriver::Systemd) => {
            cgroup::Driver::Systemd
        }
        (Some(keelson_cri::status::CgroupDriver::Cgroupfs), _) | (None, CgroupDriver::Cgroupfs) => {
            cgroup::Driver::Cgroupfs
        }
    };
    let mut wanted = cgroup::CgroupSettings::new(driver);
    wanted.cgroup_root = settings.kubelet.cgroup_root.clone();
    wanted.per_qos = settings.kubelet.cgroups_per_qos;
    let cgroups = Cgroups::detect(wanted)?;
    tracing::info!(version = ?cgroups.version(), driver = ?cgroups.driver(), "cgroups");
    Ok(cgroups)
}

fn open_managers(settings: &Settings, capacity: &Capacity, dirs: &RootDirs) -> Result<Managers, AgentError> {
    let reserved = Reserved::of(&settings.kubelet, capacity);
    let sum = |of: fn(&Amounts) -> u64| of(&reserved.system) + of(&reserved.agent);
    let memory = sum(|a| a.memory_bytes) + reserved.eviction.memory_bytes;
    let kept = KeptFromPods {
        cpu_millis: sum(|a| a.cpu_millis),
        memory: [("memory".to_owned(), memory)].into_iter().filter(|(_, bytes)| *bytes > 0).collect(),
    };
    let topology = keelson_host::machine::topology(&Roots::default())?;
    let configured = ResourceManagers::configured(&settings.kubelet, &topology, &kept);
    Ok(Managers::open(configured.map_err(AgentError::Managers)?, dirs.path()))
}

/// What all pods together may take: everything but what is reserved, if that is to be enforced.
fn all_pods(settings: &Settings, capacity: &Capacity) -> cgroup::Limits {
    if !settings.kubelet.enforce_node_allocatable.contains(&Enforcement::Pods) {
        return cgroup::Limits::default();
    }
    let reserved = Reserved { eviction: Amounts::default(), ..Reserved::of(&settings.kubelet, capacity) };
    let left = allocatable(capacity, &reserved);
    let milli = i64::try_from(left.cpu_millis).unwrap_or(i64::MAX);
    cgroup::Limits {
        cpu_shares: u64::try_from(cpu_shares(milli)).ok(),
        memory_bytes: i64::try_from(left.memory_bytes).ok(),
        hugepages: page_limits(&capacity.huge_pages),
        ..cgroup::Limits::default()
    }
}

/// Complete sets of static pods. Without a directory there is one empty set, so that the source has spoken.
fn static_sets(settings: &Settings, tasks: &mut JoinSet<&'static str>) -> crate::pods::pod_loop::StaticSets {
    let (tx, rx) = mpsc::channel(4);
    let Some(path) = settings.paths.static_pod_path.clone() else {
        tasks.spawn(named("no static pods", async move {
            let _ = tx.send(Arc::default()).await;
            std::future::pending::<()>().await;
        }));
        return rx;
    };
    let (set_tx, mut sets) = watch::channel(None);
    let source = static_pods::ManifestSettings {
        path,
        node_name: settings.node_name.clone(),
        rescan: settings.kubelet.file_check_frequency.get(),
    };
    tasks.spawn(named("static pods", static_pods::run(source, set_tx)));
    tasks.spawn(named("static pod sets", async move {
        while sets.changed().await.is_ok() {
            let set = sets.borrow_and_update().clone();
            if let Some(set) = set
                && tx.send(set).await.is_err()
            {
                return;
            }
        }
    }));
    rx
}
