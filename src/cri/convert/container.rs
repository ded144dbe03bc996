//! The request for one container.

use std::path::Path;

use k8s_openapi::api::core::v1::{Container, Pod};
use keelson_core::ids::{ContainerId, PodUid};
use keelson_core::resources::LinuxResources;
use keelson_core::user_namespaces::UserNamespace;
use keelson_proto::runtime::v1::{
    self as proto, CdiDevice, ContainerConfig, ContainerMetadata, Image, ImageSpec, KeyValue,
    LinuxContainerConfig, MountPropagation,
};

use super::sandbox::mapping;
use super::security::{SecurityInput, container_security};
use super::{ConvertError, labels, linux_resources, signal};

/// A container of a pod, and what had to be looked up or computed for it. As wide as the message that it becomes: every field
/// is an independent input, and naming each where it is filled keeps one from being taken for another.
#[derive(Debug, Clone)]
pub struct ContainerInput<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    /// The uid that the pod goes by in the runtime: for a static pod not the one of its mirror.
    pub uid: &'a PodUid,
    /// The restart count.
    pub attempt: u32,
    /// What the pull or the image's status answered.
    pub image_ref: &'a str,
    pub image_user: ImageUser,
    /// With all variables expanded.
    pub command: Vec<String>,
    pub args: Vec<String>,
    /// Values are bytes: that of a Secret need not be text.
    pub envs: Vec<(String, Vec<u8>)>,
    pub mounts: Vec<Mount>,
    pub devices: Vec<Device>,
    pub cdi_devices: Vec<String>,
    /// NAME/ATTEMPT.log, relative to the sandbox's log directory.
    pub log_path: &'a str,
    pub resources: &'a LinuxResources,
    pub hash: &'a str,
    /// Groups that volumes bring along.
    pub extra_groups: &'a [i64],
    /// Paths that are hidden on this machine beside the usual ones.
    pub extra_masked_paths: &'a [String],
    /// Where hostUsers is false.
    pub user_namespace: Option<UserNamespace>,
    /// Container whose processes an ephemeral container is to see.
    pub target: Option<&'a ContainerId>,
    /// Directory of Localhost seccomp profiles.
    pub seccomp_root: &'a Path,
    /// Whether RuntimeDefault stands in where no profile is asked for.
    pub seccomp_default: bool,
}

/// Who an image's processes run as unless the pod says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageUser {
    Uid(i64),
    Name(String),
}

impl ImageUser {
    /// An image that names nobody runs as root.
    pub fn of(image: &Image) -> Self {
        match &image.uid {
            Some(uid) => Self::Uid(uid.value),
            None if image.username.is_empty() => Self::Uid(0),
            None => Self::Name(image.username.clone()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mount {
    pub container_path: String,
    /// Empty where an image is mounted.
    pub host_path: String,
    pub image: Option<MountedImage>,
    pub readonly: bool,
    pub recursive_readonly: bool,
    pub propagation: Propagation,
    /// Whether the runtime may give the files the container's SELinux label.
    pub selinux_relabel: bool,
}

/// An image whose files the runtime mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountedImage {
    /// What the pull or the image's status answered.
    pub id: String,
    /// As the pod names it.
    pub reference: String,
    pub runtime_handler: String,
    /// The part of it that is mounted.
    pub sub_path: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Propagation {
    #[default]
    Private,
    HostToContainer,
    Bidirectional,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Device {
    pub container_path: String,
    pub host_path: String,
    /// Letters out of "rwm".
    pub permissions: String,
}

pub fn container_config(input: &ContainerInput<'_>) -> Result<ContainerConfig, ConvertError> {
    let container = input.container;
    let security = container_security(&SecurityInput {
        pod: input.pod,
        container,
        image_user: &input.image_user,
        extra_groups: input.extra_groups,
        extra_masked_paths: input.extra_masked_paths,
        user_namespace: input.user_namespace,
        target: input.target,
        seccomp_root: input.seccomp_root,
        seccomp_default: input.seccomp_default,
    })?;
    let stop_signal = container.lifecycle.as_ref().and_then(|l| l.stop_signal.as_deref());
    Ok(ContainerConfig {
        metadata: Some(ContainerMetadata { name: container.name.clone(), attempt: input.attempt }),
        image: Some(ImageSpec {
            image: input.image_ref.into(),
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..Default::default()
        }),
        command: input.command.clone(),
        args: input.args.clone(),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: input.envs.iter().map(environment).collect(),
        mounts: mounts(input),
        devices: input.devices.iter().map(device).collect(),
        labels: labels::container_labels(input.pod, input.uid, container),
        annotations: labels::container_annotations(input.pod, container, input.hash, input.attempt),
        log_path: input.log_path.into(),
        stdin: container.stdin.unwrap_or_default(),
        stdin_once: container.stdin_once.unwrap_or_default(),
        tty: container.tty.unwrap_or_default(),
        linux: Some(LinuxContainerConfig {
            resources: Some(linux_resources(input.resources)),
            security_context: Some(security),
        }),
        windows: None,
        cdi_devices: input.cdi_devices.iter().map(|name| CdiDevice { name: name.clone() }).collect(),
        stop_signal: signal::stop_signal(stop_signal)?.into(),
    })
}

/// Inside a user namespace files keep their owners by mapping the mount as the processes are mapped. Of an image's files the
/// runtime sees to that, by the same mappings.
fn mounts(input: &ContainerInput<'_>) -> Vec<proto::Mount> {
    let mapping = input.user_namespace.map(mapping).unwrap_or_default();
    let convert = |mount: &Mount| proto::Mount {
        container_path: mount.container_path.clone(),
        host_path: mount.host_path.clone(),
        readonly: mount.readonly,
        selinux_relabel: mount.selinux_relabel,
        propagation: match mount.propagation {
            Propagation::Private => MountPropagation::PropagationPrivate.into(),
            Propagation::HostToContainer => MountPropagation::PropagationHostToContainer.into(),
            Propagation::Bidirectional => MountPropagation::PropagationBidirectional.into(),
        },
        uid_mappings: mapping.clone(),
        gid_mappings: mapping.clone(),
        recursive_read_only: mount.recursive_readonly,
        image: mount.image.as_ref().map(|image| mounted_image(input.pod, image)),
        image_sub_path: mount.image.as_ref().and_then(|i| i.sub_path.clone()).unwrap_or_default(),
    };
    input.mounts.iter().map(convert).collect()
}

fn mounted_image(pod: &Pod, image: &MountedImage) -> ImageSpec {
    ImageSpec {
        image: image.id.clone(),
        annotations: pod.metadata.annotations.clone().unwrap_or_default().into_iter().collect(),
        user_specified_image: image.reference.clone(),
        runtime_handler: image.runtime_handler.clone(),
        ..Default::default()
    }
}

fn device(device: &Device) -> proto::Device {
    proto::Device {
        container_path: device.container_path.clone(),
        host_path: device.host_path.clone(),
        permissions: device.permissions.clone(),
    }
}

fn environment((key, value): &(String, Vec<u8>)) -> KeyValue {
    KeyValue { key: key.clone(), value: value.clone() }
}
