//! What a node still holds after its pods are gone: there should be nothing.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::cgroups;
use crate::cluster::Node;
use crate::wait::until;

/// Waits until nothing is left of any pod on the node; the error lists what is.
pub async fn wait_clean(node: &Node, limit: Duration) -> Result<()> {
    until("nothing is left on the node", limit, async || {
        let left = of_node(node).await?;
        anyhow::ensure!(left.is_empty(), "left behind: {}", left.join(", "));
        Ok(Some(()))
    })
    .await
}

/// Everything that belongs to a pod on this node, a description each.
pub async fn of_node(node: &Node) -> Result<Vec<String>> {
    let mut left = vec![];
    for sandbox in node.runtime.sandboxes().await? {
        let name = sandbox.metadata.map(|m| m.name).unwrap_or_default();
        left.push(format!("sandbox {} of {name}", short(&sandbox.id)));
    }
    for container in node.runtime.containers().await? {
        left.push(format!("container {} of {}", container.name, container.pod));
    }
    for dir in [node.agent.root_dir().join("pods"), node.agent.pod_logs()] {
        left.extend(entries(&dir).into_iter().map(|name| format!("{}/{name}", dir.display())));
    }
    left.extend(mounts_below(&node.agent.root_dir()).into_iter().map(|m| format!("mount {m}")));
    left.extend(pod_cgroups(&node.agent.cgroup_root()).into_iter().map(|c| format!("cgroup {c}")));
    left.extend(node.containerd.network().addresses().into_iter().map(|a| format!("address {a}")));
    left.extend(shims_of(&node.containerd.socket()).into_iter().map(|p| format!("shim process {p}")));
    Ok(left)
}

pub fn entries(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// The mount points under a directory.
pub fn mounts_below(dir: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|l| l.split(' ').nth(4));
    points.filter(|p| Path::new(p).starts_with(dir)).map(str::to_owned).collect()
}

/// Cgroups of pods: those whose last name starts with "pod", or with the slice that systemd makes of it.
fn pod_cgroups(root: &str) -> Vec<String> {
    let is_pod = |path: &String| {
        let last = path.rsplit('/').next().unwrap_or_default();
        last.starts_with("pod") || last.contains("-pod")
    };
    cgroups::below(root).into_iter().filter(is_pod).collect()
}

/// The runtime's shims, recognised by the socket they report to: also those without a process in them, which containerd
/// has lost when a caller went away while they were started.
pub fn shims_of(socket: &Path) -> Vec<u32> {
    let mark = socket.display().to_string();
    let processes = entries(Path::new("/proc")).into_iter().filter_map(|n| n.parse().ok());
    let is_shim = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.contains("containerd-shim") && line.contains(&mark)
    };
    processes.filter(is_shim).collect()
}

fn short(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}
