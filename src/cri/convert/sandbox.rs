//! The request for a pod's sandbox.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use keelson_core::admission::sysctl_name;
use keelson_core::ids::PodUid;
use keelson_core::resources::LinuxResources;
use keelson_core::user_namespaces::UserNamespace;
use keelson_proto::runtime::v1::security_profile::ProfileType;
use keelson_proto::runtime::v1::{
    DnsConfig, IdMapping, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, PodSandboxConfig,
    PodSandboxMetadata, PortMapping, Protocol,
};

use super::security::{groups_policy, namespaces, number, pod_groups, selinux};
use super::{ConvertError, labels, linux_resources, profiles};

/// A pod, and what had to be looked up or computed for it.
#[derive(Debug, Clone)]
pub struct SandboxInput<'a> {
    pub pod: &'a Pod,
    /// The uid that the pod goes by in the runtime: for a static pod not the one of its mirror.
    pub uid: &'a PodUid,
    pub attempt: u32,
    /// What the kernel is to call the pod. Not used for one in the host's network.
    pub hostname: &'a str,
    /// `None`: the runtime hands on the host's resolv.conf.
    pub dns: Option<DnsConfig>,
    /// In the notation of the cgroup driver.
    pub cgroup_parent: &'a str,
    /// NAMESPACE_NAME_UID under the root of pod logs.
    pub log_directory: &'a str,
    /// Groups that volumes bring along.
    pub extra_groups: &'a [i64],
    /// The sum over the containers, and what the pod costs on top.
    pub resources: Option<&'a LinuxResources>,
    pub overhead: Option<&'a LinuxResources>,
    /// Where hostUsers is false.
    pub user_namespace: Option<UserNamespace>,
}

pub(super) fn mapping(users: UserNamespace) -> Vec<IdMapping> {
    vec![IdMapping { host_id: users.first_host_id, container_id: 0, length: users.length }]
}

pub fn sandbox_config(input: &SandboxInput<'_>) -> Result<PodSandboxConfig, ConvertError> {
    let pod = input.pod;
    let spec = pod.spec.clone().unwrap_or_default();
    let host_network = spec.host_network.unwrap_or_default();
    Ok(PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: input.uid.as_str().into(),
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            attempt: input.attempt,
        }),
        hostname: if host_network { String::new() } else { input.hostname.into() },
        log_directory: input.log_directory.into(),
        dns_config: input.dns.clone(),
        port_mappings: port_mappings(&spec),
        labels: labels::sandbox_labels(pod, input.uid),
        annotations: pod.metadata.annotations.clone().unwrap_or_default(),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: input.cgroup_parent.into(),
            security_context: Some(security_context(&spec, input)?),
            sysctls: sysctls(&spec),
            overhead: input.overhead.map(linux_resources),
            resources: input.resources.map(linux_resources),
        }),
        windows: None,
    })
}

fn security_context(
    spec: &PodSpec,
    input: &SandboxInput<'_>,
) -> Result<LinuxSandboxSecurityContext, ConvertError> {
    let asked = spec.security_context.clone().unwrap_or_default();
    Ok(LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(spec, input.user_namespace, None)?),
        selinux_options: asked.se_linux_options.as_ref().map(selinux),
        run_as_user: asked.run_as_user.map(number),
        // The runtime refuses a group without a user; the sandbox's own process does not need one then.
        run_as_group: asked.run_as_group.filter(|_| asked.run_as_user.is_some()).map(number),
        supplemental_groups: pod_groups(&asked, input.extra_groups),
        supplemental_groups_policy: groups_policy(&asked)?.into(),
        privileged: all_containers(spec).any(is_privileged),
        // The process that holds the sandbox needs nothing more, whatever the containers ask for.
        seccomp: Some(profiles::profile(ProfileType::RuntimeDefault, "")),
        ..Default::default()
    })
}

/// A mapping that is listed twice is sent once: the runtime's network plugin would refuse the second.
fn port_mappings(spec: &PodSpec) -> Vec<PortMapping> {
    let sidecars =
        spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let mut mappings: Vec<PortMapping> = Vec::new();
    for port in spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten()) {
        let protocol = match port.protocol.as_deref() {
            Some("UDP") => Protocol::Udp,
            Some("SCTP") => Protocol::Sctp,
            _ => Protocol::Tcp,
        };
        let mapping = PortMapping {
            protocol: protocol.into(),
            container_port: port.container_port,
            host_port: port.host_port.unwrap_or_default(),
            host_ip: port.host_ip.clone().unwrap_or_default(),
        };
        if mapping.host_port > 0 && !mappings.contains(&mapping) {
            mappings.push(mapping);
        }
    }
    mappings
}

fn sysctls(spec: &PodSpec) -> BTreeMap<String, String> {
    let asked = spec.security_context.as_ref().and_then(|sc| sc.sysctls.as_ref());
    asked.into_iter().flatten().map(|s| (sysctl_name(&s.name), s.value.clone())).collect()
}

fn all_containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

fn is_privileged(container: &Container) -> bool {
    container.security_context.as_ref().and_then(|sc| sc.privileged).unwrap_or_default()
}
