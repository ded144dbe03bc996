//! One container from nothing to running: image, environment, mounts, create, start, postStart.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};
use keelson_core::backoff::{CRASH, IMAGE};
use keelson_core::desired::{DesiredPod, PodSource};
use keelson_core::dns::{host_network_hosts_file, hosts_file, pod_names};
use keelson_core::env::{EnvInput, ServiceEnv, ServicePort, environment};
use keelson_core::expand::expand;
use keelson_core::facts::Waiting;
use keelson_core::hash::container_hash;
use keelson_core::ids::ContainerId;
use keelson_core::plan::ContainerKind;
use keelson_core::pull_secrets;
use keelson_core::resources::container_resources;
use keelson_core::security::verify_non_root;
use keelson_core::volumes::{MountInput, Propagation, mounts};
use keelson_cri::convert::{self, ContainerInput, ImageUser, container_config};
use keelson_cri::proto::{ContainerConfig, PodSandboxConfig};

use keelson_host::volumes::subpath::{SubPath, prepare};

use super::clean::blocking;
use super::execute::Stop;
use super::volumes::Objects;
use super::{Worker, hooks};
use crate::images::{Present, Progress, Wanted};

/// A container that could not be started, as its status shows it.
struct Failure {
    reason: &'static str,
    message: String,
    /// Image failures serve their own back-off, everything else is tried again after ten seconds or at a change.
    image: bool,
    /// A call of an earlier agent still holds the name; it will not for long.
    soon: bool,
}

impl Failure {
    fn config(message: impl ToString) -> Self {
        Self { reason: "CreateContainerConfigError", message: message.to_string(), image: false, soon: false }
    }
    fn create(message: impl ToString) -> Self {
        Self { reason: "CreateContainerError", message: message.to_string(), image: false, soon: false }
    }
}

const RETRY: Duration = Duration::from_secs(10);
const RETRY_SOON: Duration = Duration::from_millis(500);

impl Worker {
    pub(super) async fn start_container(
        &mut self,
        name: &str,
        kind: ContainerKind,
        attempt: u32,
        after: Option<ContainerId>,
    ) -> Result<(), Stop> {
        let Some(desired) = self.last_desired.clone() else { return Err(Stop::Failed) };
        let Some(container) = find(&desired.pod, name, kind) else { return Err(Stop::Failed) };
        let Some(sandbox) = self.observed.latest_sandbox().cloned() else { return Err(Stop::Failed) };
        self.note_restart(name, after.as_ref());

        let config = match self.sandbox_config(&desired, sandbox.attempt, false).await {
            Ok(config) => config,
            Err(e) => return self.not_started(name, Failure::config(e)),
        };
        let prepared =
            match self.unless_urgent(self.prepare(&desired, &container, kind, attempt, &config)).await {
                None => return Err(Stop::Interrupted),
                Some(Err(failure)) => return self.not_started(name, failure),
                Some(Ok(prepared)) => prepared,
            };
        let created = self.ctx.runtime.create_container(&sandbox.id, prepared, &config).await;
        let id = match created {
            Ok(id) => id,
            Err(e) => {
                self.event(true, "Failed", &format!("Error: {}", e.message), Some(name));
                let reserved = e.reserved_for().is_some();
                return self.not_started(name, Failure { soon: reserved, ..Failure::create(e.message) });
            }
        };
        self.event(false, "Created", "Container created", Some(name));
        if let Err(e) = self.ctx.runtime.start_container(&id).await {
            self.event(true, "Failed", &format!("Error: {}", e.message), Some(name));
            let failure = Failure { reason: "RunContainerError", ..Failure::create(e.message) };
            return self.not_started(name, failure);
        }
        self.event(false, "Started", "Container started", Some(name));
        self.waiting.remove(name);
        self.image_backoff.remove(name);
        self.link_log(&desired, name, attempt, &id).await;
        let post_start = container.lifecycle.as_ref().and_then(|l| l.post_start.clone());
        match post_start {
            Some(hook) => self.post_start(&container, &id, &hook).await,
            None => Ok(()),
        }
    }

    /// A restart makes the next one wait longer.
    fn note_restart(&mut self, name: &str, after: Option<&ContainerId>) {
        let Some(before) = after.and_then(|id| self.observed.containers.iter().find(|c| c.id == *id)) else {
            return;
        };
        let was_up = before.up_time();
        let next = self.crash_backoff.get(name).copied().unwrap_or_default().next(CRASH, was_up);
        self.crash_backoff.insert(name.to_owned(), next);
    }

    fn not_started(&mut self, name: &str, failure: Failure) -> Result<(), Stop> {
        let now = Timestamp::now();
        let retry_at = if failure.image {
            let entry = self.image_backoff.entry(name.to_owned()).or_default();
            *entry = entry.next(IMAGE, Duration::ZERO);
            entry.retry_at(now)
        } else {
            now.checked_add(if failure.soon { RETRY_SOON } else { RETRY }).unwrap_or(now)
        };
        tracing::warn!(container = name, reason = failure.reason, error = failure.message, retry_at = %retry_at, "container not started");
        let waiting =
            Waiting { reason: failure.reason.into(), message: failure.message, retry_at: Some(retry_at) };
        self.waiting.insert(name.to_owned(), waiting);
        Err(Stop::Failed)
    }

    /// Everything before the runtime is asked to make anything. Gives up cleanly at any point.
    async fn prepare(
        &self,
        desired: &DesiredPod,
        container: &Container,
        kind: ContainerKind,
        attempt: u32,
        sandbox: &PodSandboxConfig,
    ) -> Result<ContainerConfig, Failure> {
        let objects = self.objects(desired).await.map_err(Failure::config)?;
        let image = self.image(desired, container, &objects, sandbox).await?;
        verify_non_root(&desired.pod, container, image.uid, &image.username).map_err(|e| {
            self.event(true, "Failed", &format!("Error: {e}"), Some(&container.name));
            Failure::config(e)
        })?;
        let built = self.configure(desired, container, kind, attempt, &objects, &image).await;
        built.inspect_err(|f| {
            self.event(true, "Failed", &format!("Error: {}", f.message), Some(&container.name))
        })
    }

    async fn image(
        &self,
        desired: &DesiredPod,
        container: &Container,
        objects: &Objects,
        sandbox: &PodSandboxConfig,
    ) -> Result<Present, Failure> {
        let image = container.image.clone().unwrap_or_default();
        let pull_secrets = desired.pod.spec.iter().flat_map(|s| s.image_pull_secrets.iter().flatten());
        let secrets = pull_secrets.filter_map(|r| objects.secrets.get(&r.name)).map(|s| &**s);
        let wanted = Wanted {
            image: &image,
            policy: container.image_pull_policy.as_deref().unwrap_or("IfNotPresent"),
            credentials: pull_secrets::credentials(&image, secrets),
            sandbox,
        };
        // The first failure is told as such; while it is served out, the reason is the back-off.
        let name = Some(container.name.as_str());
        let tell = |progress: Progress<'_>| match progress {
            Progress::AlreadyPresent => {
                let message = format!(
                    "Container image {image:?} already present on machine and can be accessed by the pod"
                );
                self.event(false, "Pulled", &message, name);
            }
            Progress::Pulling => self.event(false, "Pulling", &format!("Pulling image {image:?}"), name),
            Progress::Pulled { took, waited, bytes } => {
                let message = format!(
                    "Successfully pulled image {image:?} in {took:.3?} ({waited:.3?} including waiting). Image size: {bytes} bytes."
                );
                self.event(false, "Pulled", &message, name);
            }
            Progress::Failed(why) => {
                self.event(true, "Failed", &format!("Failed to pull image {image:?}: {why}"), name)
            }
        };
        self.ctx.images.ensure(wanted, tell).await.map_err(|failure| {
            self.event(true, "Failed", &format!("Error: {}", failure.reason()), name);
            Failure {
                reason: failure.reason(),
                message: failure.message().to_owned(),
                image: true,
                soon: false,
            }
        })
    }

    async fn configure(
        &self,
        desired: &DesiredPod,
        container: &Container,
        kind: ContainerKind,
        attempt: u32,
        objects: &Objects,
        image: &Present,
    ) -> Result<ContainerConfig, Failure> {
        let pod = &desired.pod;
        let host_network = pod.spec.as_ref().is_some_and(|s| s.host_network == Some(true));
        let host_ips = self.ctx.host_ips.borrow().clone();
        let sandbox_ips = self.observed.latest_sandbox().map(|s| s.ips.clone()).unwrap_or_default();
        let pod_ips = if host_network { host_ips.clone() } else { sandbox_ips };
        let services = self.services(desired).await;
        let node = self.ctx.node.borrow().allocatable.clone();
        let envs = environment(&EnvInput {
            pod,
            container,
            config_maps: &objects.config_maps,
            secrets: &objects.secrets,
            services: &services,
            pod_ips: &pod_ips,
            host_ips: &host_ips,
            node_allocatable: &node,
        })
        .map_err(Failure::config)?;

        let etc_hosts = self.etc_hosts(pod, host_network, &pod_ips).await?;
        let termination_log = self.termination_log(&container.name, attempt).await?;
        let places = mounts(&MountInput {
            pod,
            container,
            env: &envs,
            volume_paths: &self.mounted.paths,
            recursive_read_only: self.ctx.recursive_read_only(),
            etc_hosts: etc_hosts.as_deref(),
            termination_log: termination_log.as_deref(),
        })
        .map_err(Failure::config)?;
        let mut resolved = vec![];
        for (index, m) in places.into_iter().enumerate() {
            let host_path = match &m.sub_path {
                Some(sub) => self.sub_path(&m.name, &m.host_path, sub, &container.name, index).await?,
                None => m.host_path,
            };
            resolved.push(convert::Mount {
                container_path: m.container_path,
                host_path,
                readonly: m.read_only,
                recursive_readonly: m.recursive_read_only,
                propagation: match m.propagation {
                    Propagation::Private => convert::Propagation::Private,
                    Propagation::HostToContainer => convert::Propagation::HostToContainer,
                    Propagation::Bidirectional => convert::Propagation::Bidirectional,
                },
                selinux_relabel: m.selinux_relabel,
            });
        }

        let (logs, namespace, pod_name, uid, own) = (
            self.ctx.logs.clone(),
            desired.namespace().to_owned(),
            desired.name().to_owned(),
            self.uid.clone(),
            container.name.clone(),
        );
        blocking(move || logs.ensure_container(&namespace, &pod_name, &uid, &own))
            .await
            .map_err(Failure::create)?;

        let kubelet = &self.ctx.settings.kubelet;
        let resources = container_resources(
            pod,
            container,
            &self.ctx.capacity,
            kubelet.cpu_cfs_quota,
            self.ctx.cfs_period_micros(),
        );
        let known = |name: &str| envs.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone());
        let expanded = |list: &Option<Vec<String>>| -> Vec<String> {
            list.iter().flatten().map(|text| expand(text, known)).collect()
        };
        let target = match kind {
            ContainerKind::Ephemeral => self.target(pod, &container.name),
            _ => None,
        };
        let seccomp_root = self.ctx.dirs.path().join("seccomp");
        container_config(&ContainerInput {
            pod,
            container,
            uid: &self.uid,
            attempt,
            image_ref: &image.id,
            image_user: match image.uid {
                Some(uid) => ImageUser::Uid(uid),
                None if image.username.is_empty() => ImageUser::Uid(0),
                None => ImageUser::Name(image.username.clone()),
            },
            command: expanded(&container.command),
            args: expanded(&container.args),
            mounts: resolved,
            devices: vec![],
            cdi_devices: vec![],
            log_path: &format!("{}/{attempt}.log", container.name),
            resources: &resources,
            hash: &container_hash(container),
            extra_groups: &[],
            extra_masked_paths: &[],
            user_namespace: None,
            target: target.as_ref(),
            seccomp_root: &seccomp_root,
            seccomp_default: kubelet.seccomp_default,
            envs: envs.clone(),
        })
        .map_err(Failure::config)
    }

    async fn services(&self, desired: &DesiredPod) -> Vec<ServiceEnv> {
        let Some(api) = &self.ctx.api else { return vec![] };
        // A static pod starts without an apiserver, with the services that are known by then.
        if desired.source == PodSource::Api {
            api.services.synced().await;
        }
        let visible = api.services.visible_in(desired.namespace());
        let port = |p: &keelson_apiserver::ServicePort| ServicePort {
            name: p.name.clone(),
            port: p.port,
            protocol: p.protocol.clone(),
        };
        let service = |s: Arc<keelson_apiserver::ServiceInfo>| ServiceEnv {
            namespace: s.namespace.clone(),
            name: s.name.clone(),
            cluster_ip: s.cluster_ip.clone(),
            ports: s.ports.iter().map(port).collect(),
        };
        visible.into_iter().map(service).collect()
    }

    /// The hosts file is ours unless the pod mounts its own. It is rewritten for every container that starts.
    async fn etc_hosts(
        &self,
        pod: &Pod,
        host_network: bool,
        ips: &[std::net::IpAddr],
    ) -> Result<Option<String>, Failure> {
        let aliases = pod.spec.as_ref().and_then(|s| s.host_aliases.clone()).unwrap_or_default();
        let names = pod_names(pod, &self.ctx.settings.kubelet.cluster_domain).map_err(Failure::config)?;
        let (dirs, ips) = (self.ctx.dirs.pod(&self.uid), ips.to_vec());
        let written = blocking(move || {
            let text = if host_network {
                let of_host = keelson_host::files::read_bounded("/etc/hosts".as_ref()).unwrap_or_default();
                host_network_hosts_file(&of_host, &aliases)
            } else {
                hosts_file(&ips, &names, &aliases)
            };
            keelson_host::files::write_hosts(&dirs, &text)
        });
        written.await.map(|p| Some(p.to_string_lossy().into_owned())).map_err(Failure::create)
    }

    async fn termination_log(&self, container: &str, attempt: u32) -> Result<Option<String>, Failure> {
        let (dirs, container) = (self.ctx.dirs.pod(&self.uid), container.to_owned());
        // One file for each instance: the last words of the one before stay readable.
        let instance = format!("{attempt:08x}");
        let made =
            blocking(move || keelson_host::files::create_termination_log(&dirs, &container, &instance));
        made.await.map(|p| Some(p.to_string_lossy().into_owned())).map_err(Failure::create)
    }

    async fn sub_path(
        &self,
        volume: &str,
        root: &str,
        sub: &str,
        container: &str,
        index: usize,
    ) -> Result<String, Failure> {
        let dirs = self.ctx.dirs.pod(&self.uid);
        let (volume, root, sub, container) =
            (volume.to_owned(), std::path::PathBuf::from(root), sub.to_owned(), container.to_owned());
        let made = blocking(move || {
            let part =
                SubPath { volume_path: &root, volume: &volume, container: &container, index, sub_path: &sub };
            prepare(&dirs, &part)
        });
        made.await.map(|p| p.to_string_lossy().into_owned()).map_err(Failure::config)
    }

    fn target(&self, pod: &Pod, name: &str) -> Option<ContainerId> {
        let spec = pod.spec.as_ref()?;
        let ephemeral = spec.ephemeral_containers.iter().flatten().find(|e| e.name == name)?;
        let target = ephemeral.target_container_name.as_deref()?;
        self.observed.latest(target).map(|c| c.id.clone())
    }

    async fn link_log(&self, desired: &DesiredPod, container: &str, attempt: u32, id: &ContainerId) {
        let logs = self.ctx.logs.clone();
        let (namespace, pod, uid) =
            (desired.namespace().to_owned(), desired.name().to_owned(), self.uid.clone());
        let (container, id) = (container.to_owned(), id.clone());
        let linked = blocking(move || {
            let log = logs.pod(&namespace, &pod, &uid).join(&container).join(format!("{attempt}.log"));
            logs.link(&namespace, &pod, &container, &id, &log)
        });
        if let Err(e) = linked.await {
            tracing::warn!(error = e, "no link for log collectors");
        }
    }

    /// The container runs, but it is not ready before its hook has returned; a hook that fails ends it.
    async fn post_start(
        &mut self,
        container: &Container,
        id: &ContainerId,
        hook: &LifecycleHandler,
    ) -> Result<(), Stop> {
        let Some(place) = self.place(id, &container.name) else { return Ok(()) };
        self.hooks_running.push(id.clone());
        if self.look().await.is_ok() {
            let order = self.orders.borrow().clone();
            self.decide(&order);
        }
        let ran = self.unless_urgent(hooks::run(&place, hook, None)).await;
        self.hooks_running.retain(|h| h != id);
        match ran {
            None => Err(Stop::Interrupted),
            Some(Ok(())) => Ok(()),
            Some(Err(e)) => {
                self.event(
                    true,
                    "FailedPostStartHook",
                    &format!("PostStartHook failed: {e}"),
                    Some(&container.name),
                );
                let message =
                    format!("Container {} failed its postStart hook, will be restarted", container.name);
                let grace = self.spec().and_then(|s| s.termination_grace_period_seconds).unwrap_or(30).max(1);
                let kill = keelson_core::plan::Kill {
                    id: id.clone(),
                    name: container.name.clone(),
                    grace_seconds: grace,
                    message,
                };
                self.kill_containers(vec![kill]).await?;
                Err(Stop::Failed)
            }
        }
    }
}

/// Ephemeral containers carry the same fields under another type.
fn find(pod: &Pod, name: &str, kind: ContainerKind) -> Option<Container> {
    let spec = pod.spec.as_ref()?;
    if kind == ContainerKind::Ephemeral {
        let found = spec.ephemeral_containers.iter().flatten().find(|e| e.name == name)?;
        let value = serde_json::to_value(found).ok()?;
        return serde_json::from_value(value).ok();
    }
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|c| c.name == name).cloned()
}
