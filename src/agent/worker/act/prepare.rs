//! Everything that a container needs before the runtime is asked to make it: image, environment, mounts, configuration.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use keelson_core::desired::{DesiredPod, PodSource};
use keelson_core::dns::{host_network_hosts_file, hosts_file, pod_names};
use keelson_core::env::{EnvInput, ServiceEnv, environment};
use keelson_core::hash::container_hash;
use keelson_core::ids::ContainerId;
use keelson_core::image::unknown_secrets;
use keelson_core::plan::ContainerKind;
use keelson_core::pod::{Device, StartFailure};
use keelson_core::security::verify_non_root;
use keelson_core::timeline::{Note, Place, Step};
use keelson_core::volumes::{MountInput, Propagation, mounts};
use keelson_cri::convert::{self, ContainerInput, ImageUser, container_config};
use keelson_cri::proto::{ContainerConfig, PodSandboxConfig};
use keelson_volumes::subpath::{self, SubPath};

use super::volumes::Objects;
use crate::images::{PodIdentity, Present, Progress, Wanted};
use crate::worker::Worker;
use crate::worker::blocking::{blocking, blocking_on_foreign};

impl Worker {
    /// Gives up cleanly at any point: nothing of it has to be taken back.
    pub(super) async fn prepare(
        &self,
        desired: &DesiredPod,
        container: &Container,
        kind: ContainerKind,
        attempt: u32,
        sandbox: &PodSandboxConfig,
    ) -> Result<ContainerConfig, StartFailure> {
        let objects = self.objects(desired, &container.name).await.map_err(StartFailure::config)?;
        let image = self.image(desired, container, &objects, sandbox).await?;
        verify_non_root(&desired.pod, container, image.uid, &image.username).map_err(StartFailure::config)?;
        self.configure(desired, container, kind, attempt, &objects, &image).await
    }

    async fn image(
        &self,
        desired: &DesiredPod,
        container: &Container,
        objects: &Objects,
        sandbox: &PodSandboxConfig,
    ) -> Result<Present, StartFailure> {
        let image = container.image.clone().unwrap_or_default();
        let named = desired.pod.spec.as_ref().and_then(|s| s.image_pull_secrets.as_deref());
        let named: Vec<&str> = named.unwrap_or_default().iter().map(|r| r.name.as_str()).collect();
        let secrets = named.iter().filter_map(|name| objects.secrets.get(*name)).cloned();
        let wanted = Wanted {
            image: &image,
            policy: container.image_pull_policy.as_deref().unwrap_or("IfNotPresent"),
            pod: PodIdentity {
                namespace: desired.namespace().to_owned(),
                name: desired.name().to_owned(),
                uid: desired.uid.clone(),
                service_account: desired.pod.spec.as_ref().and_then(|s| s.service_account_name.clone()),
                secrets: secrets.collect(),
            },
            sandbox,
        };
        let name = Some(container.name.as_str());
        let known = |secret: &str| objects.secrets.contains_key(secret);
        self.report_events(unknown_secrets(&named, known).as_slice());
        let timing = self.recorder.begin(Step::Pull, name, Place::Registry);
        let mut waiting = Duration::ZERO;
        let report = |progress: Progress| match progress {
            Progress::AlreadyPresent { checked } => {
                timing.note(Note::Present);
                timing.moved(Place::Runtime);
                let access = if checked { " and can be accessed by the pod" } else { "" };
                let message = format!("Container image {image:?} already present on machine{access}");
                self.event(false, "Pulled", &message, name);
            }
            Progress::NoCredentials { provider, problem } => {
                let message =
                    format!("Credential provider {provider:?} gave nothing for image {image:?}: {problem}");
                self.event(true, "FailedToRetrieveImagePullCredentials", &message, name);
            }
            Progress::Pulling => {
                waiting = timing.so_far();
                self.event(false, "Pulling", &format!("Pulling image {image:?}"), name);
            }
            Progress::Pulled { bytes } => {
                let waited = timing.so_far();
                let took = waited.saturating_sub(waiting);
                timing.note(Note::Pulled { bytes, waiting });
                self.node.reports.metrics.starts.image_pulled(bytes, waited);
                let message = format!(
                    "Successfully pulled image {image:?} in {took:.3?} ({waited:.3?} including waiting). Image size: {bytes} bytes."
                );
                self.event(false, "Pulled", &message, name);
            }
        };
        let present = self.node.images.ensure(wanted, report).await;
        timing.ended(&present);
        present.map_err(|failure| {
            self.report_events(&[failure.event().of(&container.name)]);
            failure.into()
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
    ) -> Result<ContainerConfig, StartFailure> {
        let pod = &desired.pod;
        let host_network = pod.spec.as_ref().is_some_and(|s| s.host_network == Some(true));
        let host_ips = self.node.state.addresses();
        let addresses = self.observed.latest_sandbox().map(|s| s.addresses(&host_ips)).unwrap_or_default();
        let pod_ips = if host_network { host_ips.clone() } else { addresses };
        let services = self.services(desired).await;
        let allocatable = self.node.state.allocatable();
        let grant = self.state.admitted.grant(&container.name);
        let mut envs = environment(&EnvInput {
            pod,
            container,
            config_maps: &objects.config_maps,
            secrets: &objects.secrets,
            services: &services,
            pod_ips: &pod_ips,
            host_ips: &host_ips,
            node_allocatable: &allocatable,
        })
        .map_err(StartFailure::config)?;

        for (name, value) in &grant.env {
            envs.set(name, value.clone().into_bytes()).map_err(StartFailure::config)?;
        }
        let line = envs.command_line(container).map_err(StartFailure::config)?;

        let etc_hosts = self.etc_hosts(pod, host_network, &pod_ips).await?;
        let termination_log = self.termination_log(&container.name, attempt).await?;
        let places = mounts(&MountInput {
            pod,
            container,
            env: &envs,
            volume_paths: &self.state.volumes.paths(),
            recursive_read_only: self.recursive_read_only(),
            etc_hosts: etc_hosts.as_deref(),
            termination_log: termination_log.as_deref(),
        })
        .map_err(StartFailure::config)?;
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

        resolved.extend(grant.mounts.iter().map(|m| convert::Mount {
            container_path: m.container_path.clone(),
            host_path: m.host_path.clone(),
            readonly: m.read_only,
            ..convert::Mount::default()
        }));

        let (logs, namespace, pod_name, uid, own) = (
            self.node.logs.clone(),
            desired.namespace().to_owned(),
            desired.name().to_owned(),
            self.uid.clone(),
            container.name.clone(),
        );
        blocking(move || logs.ensure_container(&namespace, &pod_name, &uid, &own))
            .await
            .map_err(StartFailure::create)?;

        let kubelet = &self.node.settings.kubelet;
        let resources = self.linux_resources(pod, container);
        let target = match kind {
            ContainerKind::Ephemeral => self.target(pod, &container.name)?,
            _ => None,
        };
        let seccomp_root = self.node.dirs.path().join("seccomp");
        let mut config = container_config(&ContainerInput {
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
            command: line.command,
            args: line.args,
            mounts: resolved,
            devices: grant.devices.into_iter().map(device).collect(),
            cdi_devices: grant.cdi_devices,
            log_path: &format!("{}/{attempt}.log", container.name),
            resources: &resources,
            hash: &container_hash(container),
            extra_groups: &grant.groups,
            extra_masked_paths: &self.node.machine.masked_paths,
            user_namespace: self.own_users(pod),
            target: target.as_ref(),
            seccomp_root: &seccomp_root,
            seccomp_default: kubelet.seccomp_default,
            envs: envs.into_pairs(),
        })
        .map_err(StartFailure::config)?;
        config.annotations.extend(grant.annotations);
        Ok(config)
    }

    async fn services(&self, desired: &DesiredPod) -> Vec<ServiceEnv> {
        let Some(api) = &self.node.api else { return vec![] };
        // A static pod starts without an apiserver, with the services that are known by then.
        if desired.source == PodSource::Api {
            api.services.synced().await;
        }
        api.services.visible_in(desired.namespace()).iter().map(|s| (**s).clone()).collect()
    }

    /// The hosts file is ours unless the pod mounts its own. It is rewritten for every container that starts.
    async fn etc_hosts(
        &self,
        pod: &Pod,
        host_network: bool,
        ips: &[std::net::IpAddr],
    ) -> Result<Option<String>, StartFailure> {
        let aliases = pod.spec.as_ref().and_then(|s| s.host_aliases.clone()).unwrap_or_default();
        let names =
            pod_names(pod, &self.node.settings.kubelet.cluster_domain).map_err(StartFailure::config)?;
        let (dirs, ips) = (self.node.dirs.pod(&self.uid), ips.to_vec());
        let written = blocking(move || {
            let text = if host_network {
                let of_host = keelson_host::files::read_bounded("/etc/hosts".as_ref()).unwrap_or_default();
                host_network_hosts_file(&of_host, &aliases)
            } else {
                hosts_file(&ips, &names, &aliases)
            };
            keelson_host::files::write_hosts(&dirs, &text)
        });
        written.await.map(|p| Some(p.to_string_lossy().into_owned())).map_err(StartFailure::create)
    }

    async fn termination_log(&self, container: &str, attempt: u32) -> Result<Option<String>, StartFailure> {
        let (dirs, container) = (self.node.dirs.pod(&self.uid), container.to_owned());
        // One file for each instance: the message of the one before stays readable.
        let instance = format!("{attempt:08x}");
        let made =
            blocking(move || keelson_host::files::create_termination_log(&dirs, &container, &instance));
        made.await.map(|p| Some(p.to_string_lossy().into_owned())).map_err(StartFailure::create)
    }

    async fn sub_path(
        &self,
        volume: &str,
        root: &str,
        sub: &str,
        container: &str,
        index: usize,
    ) -> Result<String, StartFailure> {
        let dirs = self.node.dirs.pod(&self.uid);
        let (volume, root, sub, container) =
            (volume.to_owned(), std::path::PathBuf::from(root), sub.to_owned(), container.to_owned());
        let made = blocking_on_foreign(move || {
            let part =
                SubPath { volume_path: &root, volume: &volume, container: &container, index, sub_path: &sub };
            subpath::prepare(&dirs, &part)
        });
        made.await.map(|p| p.to_string_lossy().into_owned()).map_err(StartFailure::config)
    }

    /// The container whose processes an ephemeral one is to see. Without it it would look at nothing but itself.
    fn target(&self, pod: &Pod, name: &str) -> Result<Option<ContainerId>, StartFailure> {
        let mut ephemeral = pod.spec.iter().flat_map(|s| s.ephemeral_containers.iter().flatten());
        let target = ephemeral.find(|e| e.name == name).and_then(|e| e.target_container_name.as_deref());
        let Some(target) = target.filter(|t| !t.is_empty()) else { return Ok(None) };
        match self.observed.latest(target) {
            Some(found) => Ok(Some(found.id.clone())),
            None => Err(StartFailure::config(format!("unable to find target container {target}"))),
        }
    }
}

fn device(d: Device) -> convert::Device {
    convert::Device { container_path: d.container_path, host_path: d.host_path, permissions: d.permissions }
}
