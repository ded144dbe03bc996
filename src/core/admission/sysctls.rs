//! Kernel parameters a pod may set: only those that the kernel keeps apart for each namespace.

use k8s_openapi::api::core::v1::PodSpec;

use super::Rejection;

/// Namespaced, and without effect on anyone but the pod itself.
const SAFE: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

pub(super) fn check(spec: &PodSpec, allowed_unsafe: &[String]) -> Result<(), Rejection> {
    let sysctls = spec.security_context.iter().flat_map(|s| s.sysctls.iter().flatten());
    for sysctl in sysctls {
        let name = normalized(&sysctl.name);
        let allowed =
            SAFE.iter().any(|safe| *safe == name) || allowed_unsafe.iter().any(|p| covers(p, &name));
        let problem = match namespace(&name) {
            _ if !allowed => format!("{name:?} not allowlisted"),
            Some("IPC") if spec.host_ipc == Some(true) => {
                format!("{name:?} not allowed with host IPC enabled")
            }
            Some("Net") if spec.host_network == Some(true) => {
                format!("{name:?} not allowed with host Net enabled")
            }
            _ => continue,
        };
        return Err(Rejection::new("SysctlForbidden", format!("forbidden sysctl: {problem}")));
    }
    Ok(())
}

fn covers(pattern: &str, name: &str) -> bool {
    let pattern = normalized(pattern);
    match pattern.split_once('*') {
        Some((prefix, _)) => namespace(prefix).is_some() && name.starts_with(prefix),
        None => namespace(&pattern).is_some() && pattern == name,
    }
}

/// None for what is not known to be namespaced: that would change the whole machine.
fn namespace(name: &str) -> Option<&'static str> {
    let ipc = ["kernel.sem", "kernel.shm", "kernel.msg", "fs.mqueue."];
    if name.starts_with("net.") {
        Some("Net")
    } else if ipc.iter().any(|prefix| name.starts_with(prefix)) {
        Some("IPC")
    } else {
        None
    }
}

/// A name may be written with slashes, in which a dot is part of a word. The first separator tells which it is. Runtimes know
/// the one with dots only.
pub fn normalized(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(at) if name[at..].starts_with('/') => name
            .chars()
            .map(|c| {
                if c == '/' {
                    '.'
                } else if c == '.' {
                    '/'
                } else {
                    c
                }
            })
            .collect(),
        _ => name.to_owned(),
    }
}
