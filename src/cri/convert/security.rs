//! What a container may do, from the pod's wishes and its own.

use std::path::Path;

use k8s_openapi::api::core::v1::{
    Container, Pod, PodSecurityContext, PodSpec, SELinuxOptions, SecurityContext,
};
use keelson_core::ids::ContainerId;
use keelson_core::user_namespaces::UserNamespace;
use keelson_proto::runtime::v1::{
    Capability, Int64Value, LinuxContainerSecurityContext, NamespaceMode, NamespaceOption, SeLinuxOption,
    SupplementalGroupsPolicy, UserNamespace as UserNamespaceOption,
};

use super::sandbox::mapping;
use super::{ConvertError, ImageUser, profiles};

/// Hidden in every container that does not ask for an unmasked /proc. On the wire.
const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

/// Likewise, but only protected from being written to.
const READONLY_PATHS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

pub(super) struct SecurityInput<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub image_user: &'a ImageUser,
    pub extra_groups: &'a [i64],
    pub extra_masked_paths: &'a [String],
    pub user_namespace: Option<UserNamespace>,
    pub target: Option<&'a ContainerId>,
    pub seccomp_root: &'a Path,
    pub seccomp_default: bool,
}

pub(super) fn container_security(
    input: &SecurityInput<'_>,
) -> Result<LinuxContainerSecurityContext, ConvertError> {
    let spec = input.pod.spec.clone().unwrap_or_default();
    let pods = spec.security_context.clone().unwrap_or_default();
    let own = input.container.security_context.clone().unwrap_or_default();

    let privileged = own.privileged.unwrap_or_default();
    let unmasked = own.proc_mount.as_deref() == Some("Unmasked");
    let (run_as_user, run_as_username) = match (own.run_as_user.or(pods.run_as_user), input.image_user) {
        (Some(uid), _) => (Some(number(uid)), String::new()),
        (None, ImageUser::Uid(uid)) => (Some(number(*uid)), String::new()),
        (None, ImageUser::Name(name)) => (None, name.clone()),
    };
    let (apparmor, apparmor_profile) = profiles::apparmor(input.pod, input.container)?.unzip();

    // Runtimes from before `apparmor` existed read the older field beside it.
    #[allow(deprecated)]
    Ok(LinuxContainerSecurityContext {
        capabilities: capabilities(&own),
        privileged,
        namespace_options: Some(namespaces(&spec, input.user_namespace, input.target)?),
        selinux_options: own.se_linux_options.as_ref().or(pods.se_linux_options.as_ref()).map(selinux),
        run_as_user,
        run_as_username,
        run_as_group: own.run_as_group.or(pods.run_as_group).map(number),
        readonly_rootfs: own.read_only_root_filesystem.unwrap_or_default(),
        supplemental_groups: pod_groups(&pods, input.extra_groups),
        supplemental_groups_policy: groups_policy(&pods)?.into(),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: if unmasked { vec![] } else { masked_paths(input.extra_masked_paths) },
        readonly_paths: if unmasked { vec![] } else { READONLY_PATHS.map(str::to_owned).to_vec() },
        seccomp: Some(profiles::seccomp(
            input.pod,
            input.container,
            privileged,
            input.seccomp_root,
            input.seccomp_default,
        )?),
        apparmor,
        apparmor_profile: apparmor_profile.unwrap_or_default(),
        ..Default::default()
    })
}

/// Processes are private to a container unless the pod says otherwise; network and IPC are the pod's.
pub(super) fn namespaces(
    spec: &PodSpec,
    user_namespace: Option<UserNamespace>,
    target: Option<&ContainerId>,
) -> Result<NamespaceOption, ConvertError> {
    let node_or_pod = |host: Option<bool>| match host {
        Some(true) => NamespaceMode::Node,
        _ => NamespaceMode::Pod,
    };
    let pid = match (spec.host_pid, spec.share_process_namespace, target) {
        (Some(true), _, _) => NamespaceMode::Node,
        (_, Some(true), _) => NamespaceMode::Pod,
        (_, _, Some(_)) => NamespaceMode::Target,
        _ => NamespaceMode::Container,
    };
    let users = match (spec.host_users, user_namespace) {
        (Some(false), None) => return Err(ConvertError::NoUserNamespace),
        (Some(false), Some(assigned)) => UserNamespaceOption {
            mode: NamespaceMode::Pod.into(),
            uids: mapping(assigned),
            gids: mapping(assigned),
        },
        _ => UserNamespaceOption { mode: NamespaceMode::Node.into(), ..Default::default() },
    };
    Ok(NamespaceOption {
        network: node_or_pod(spec.host_network).into(),
        pid: pid.into(),
        ipc: node_or_pod(spec.host_ipc).into(),
        target_id: target
            .filter(|_| pid == NamespaceMode::Target)
            .map(|id| id.as_str().to_owned())
            .unwrap_or_default(),
        userns_options: Some(users),
    })
}

/// The group that owns the volumes is one of every process's groups.
pub(super) fn pod_groups(pods: &PodSecurityContext, extra: &[i64]) -> Vec<i64> {
    let asked = pods.supplemental_groups.iter().flatten();
    pods.fs_group.iter().chain(asked).chain(extra).copied().collect()
}

pub(super) fn groups_policy(pods: &PodSecurityContext) -> Result<SupplementalGroupsPolicy, ConvertError> {
    match pods.supplemental_groups_policy.as_deref() {
        None | Some("Merge") => Ok(SupplementalGroupsPolicy::Merge),
        Some("Strict") => Ok(SupplementalGroupsPolicy::Strict),
        Some(other) => Err(ConvertError::UnknownValue {
            field: "securityContext.supplementalGroupsPolicy",
            value: other.to_owned(),
            known: "Merge, Strict",
        }),
    }
}

pub(super) fn selinux(options: &SELinuxOptions) -> SeLinuxOption {
    SeLinuxOption {
        user: options.user.clone().unwrap_or_default(),
        role: options.role.clone().unwrap_or_default(),
        r#type: options.type_.clone().unwrap_or_default(),
        level: options.level.clone().unwrap_or_default(),
    }
}

pub(super) fn number(value: i64) -> Int64Value {
    Int64Value { value }
}

fn capabilities(own: &SecurityContext) -> Option<Capability> {
    own.capabilities.as_ref().map(|asked| Capability {
        add_capabilities: asked.add.clone().unwrap_or_default(),
        drop_capabilities: asked.drop.clone().unwrap_or_default(),
        add_ambient_capabilities: vec![],
    })
}

fn masked_paths(extra: &[String]) -> Vec<String> {
    MASKED_PATHS.iter().map(|path| (*path).to_owned()).chain(extra.iter().cloned()).collect()
}
