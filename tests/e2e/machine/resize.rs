//! A node that joined a cluster, on cgroup v2 with the systemd driver: what a resize leaves in the kernel and in systemd, swap that
//! is limited, and a resize that swap rules out.

use std::path::Path;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use keelson_tests::cluster::Cluster;
use keelson_tests::control_plane::Extent;
use keelson_tests::images;
use keelson_tests::isolation::NODE_IP;
use keelson_tests::machine::Machine;
use keelson_tests::pods::{SLEEP, pod, sleeper};
use keelson_tests::wait::until_true;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{FAIL, INSTALL, LIMIT, furnish};

const NODE: &str = "machine";

pub async fn run(dir: &Path) -> Result<()> {
    let cluster = Cluster::start(dir, Extent::WithoutScheduler).await?;
    let machine = Machine::new(dir)?.with_network();
    furnish(&machine, dir, &STATIC.replace("IMAGE", images::BUSYBOX).replace("SLEEP", SLEEP))?;
    let user = cluster.plane.user_pair(NODE, &format!("system:node:{NODE}"), &["system:nodes"])?;
    machine.put_file("cluster-ca.crt", &cluster.plane.ca_file(), 0o644)?;
    machine.put_file("node.crt", &user.cert, 0o644)?;
    machine.put_file("node.key", &user.key, 0o600)?;
    let server = format!("https://{NODE_IP}:{}", cluster.plane.apiserver_port());
    machine.put("kubelet.conf", kubeconfig(&server).to_string().as_bytes(), 0o600)?;
    machine.put("20-swap.conf", SWAP_CONFIG.as_bytes(), 0o644)?;
    let network = OUTSIDE.replace("SERVER", NODE_IP);
    machine.put("outside.network", network.as_bytes(), 0o644)?;
    let script = format!("{JOIN}{INSTALL}{FAIL}{CHECK}");
    let (said, ()) = tokio::try_join!(machine.boot(&script, LIMIT), drive(&cluster, &machine))?;
    ensure!(said.contains("all is well"), "it said\n{said}");
    Ok(())
}

/// What the cluster asks for, each time after the machine has seen the last.
async fn drive(cluster: &Cluster, machine: &Machine) -> Result<()> {
    cluster.wait_node_ready(NODE, true, LIMIT).await?;
    let pods = cluster.pods();
    pods.create(pod("sized", NODE, json!([sized("100m", "32Mi", "100m", "32Mi")]))).await?;
    pods.create(pod("swaps", NODE, json!([sized("50m", "64Mi", "100m", "128Mi")]))).await?;
    for (after, cpu, memory) in [("as it began", "200m", "64Mi"), ("more", "50m", "48Mi")] {
        seen(machine, after).await?;
        resize(cluster, "sized", sized(cpu, memory, cpu, memory)).await?;
    }
    seen(machine, "less").await?;
    pods.wait("sized", "nothing of its resize is left", LIMIT, |p| shows(p, "PodResize").is_none()).await?;
    seen(machine, "swap").await?;
    resize(cluster, "swaps", sized("50m", "72Mi", "100m", "128Mi")).await?;
    let words = "Infeasible: In-place resize of containers with swap is not supported.";
    let what = "swap rules its resize out";
    pods.wait("swaps", what, LIMIT, |p| shows(p, "PodResizePending").as_deref() == Some(words)).await?;
    pods.delete("sized", LIMIT).await?;
    pods.delete("swaps", LIMIT).await
}

fn sized(cpu: &str, memory: &str, most_cpu: &str, most_memory: &str) -> Value {
    let mut container = sleeper("main");
    container["resources"] = json!({
        "requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": most_cpu, "memory": most_memory},
    });
    container
}

async fn resize(cluster: &Cluster, name: &str, container: Value) -> Result<()> {
    let container = json!({"name": container["name"], "resources": container["resources"]});
    let patch = Patch::Strategic(json!({"spec": {"containers": [container]}}));
    cluster.pods().api.patch_subresource("resize", name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Reason and message of the first condition whose name begins with this.
fn shows(pod: &Pod, kind: &str) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|c| c.type_.starts_with(kind))?;
    Some(format!("{}: {}", found.reason.as_deref().unwrap_or(""), found.message.as_deref().unwrap_or("")))
}

async fn seen(machine: &Machine, what: &str) -> Result<()> {
    let line = format!("seen: {what}");
    until_true(&line, LIMIT, async || Ok(machine.console().lines().any(|l| l.trim_end() == line))).await
}

fn kubeconfig(server: &str) -> Value {
    let at = |file: &str| format!("/etc/keelson/{file}");
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority": at("cluster-ca.crt")}}],
        "users": [{"name": "u", "user": {"client-certificate": at("node.crt"), "client-key": at("node.key")}}],
    })
}

/// The machine that the emulator runs on, and of it no more than the apiserver's address.
const OUTSIDE: &str = "[Match]\nDriver=virtio_net\n[Network]\nAddress=10.0.2.15/24\n[Route]\nDestination=SERVER/32\nGateway=10.0.2.2\n";

const SWAP_CONFIG: &str = "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failSwapOn: false
memorySwap: {swapBehavior: LimitedSwap}
";

const STATIC: &str = r#"apiVersion: v1
kind: Pod
metadata: {name: small}
spec:
  containers:
  - {name: main, image: IMAGE, imagePullPolicy: IfNotPresent, command: [sh, -c, "SLEEP"]}
"#;

const JOIN: &str = r#"
mkdir -p /etc/systemd/network /etc/keelson/config.d
cp /host/outside.network /etc/systemd/network/
cp /host/kubelet.conf /host/cluster-ca.crt /host/node.crt /host/node.key /etc/keelson/
cp /host/20-swap.conf /etc/keelson/config.d/
echo 'KEELSON_ARGS="--kubeconfig=/etc/keelson/kubelet.conf --hostname-override=machine"' >/etc/default/keelson
dd if=/dev/zero of=/swapfile bs=1M count=256 status=none; chmod 600 /swapfile; mkswap /swapfile >/dev/null; swapon /swapfile
"#;

const CHECK: &str = r#"
pods=/sys/fs/cgroup/kubepods.slice
await() { n=0; until "$@"; do n=$((n + 1)); [ $n -lt 900 ] || fail "$* does not hold: $(cat "$2" 2>&1)"; sleep 0.2; done; }
is() { [ "$(cat "$1" 2>/dev/null)" = "$2" ]; }
has() { is "$1" "$2" || fail "$1 is $(cat "$1") and not $2"; }
there() { ls -d $1 >/dev/null 2>&1; }
limited() { grep -lx "$2" "$1"/cri-containerd-*.scope/memory.max >/dev/null 2>&1; }
# What systemd thinks that a unit has is what it writes again whenever it is reloaded.
bounds() {
  for cgroup in "$slice" "$main"; do
    await is "$cgroup/memory.max" "$1"; await is "$cgroup/cpu.max" "$2"
  done
  await is "$main/memory.oom.group" 1  # systemd of Debian 12 forgets this one itself when it is reloaded
  [ "$(systemctl show -p MemoryMax --value "$(basename "$slice")")" = "$1" ] || fail "systemd has $(systemctl show -p MemoryMax "$(basename "$slice")")"
  systemctl daemon-reload
  for cgroup in "$slice" "$main"; do has "$cgroup/memory.max" "$1"; has "$cgroup/cpu.max" "$2"; done
  [ "$(head -1 "$main/cgroup.procs")" = "$process" ] || fail "the container was restarted"
  echo "seen: $3"
}
await there "$pods/kubepods-pod*.slice"; slice=$(ls -d $pods/kubepods-pod*.slice)
await limited "$slice" 33554432; main=$(grep -lx 33554432 "$slice"/cri-containerd-*.scope/memory.max); main=${main%/memory.max}
await grep -q . "$main/cgroup.procs"; process=$(head -1 "$main/cgroup.procs")
bounds 33554432 "10000 100000" "as it began"
bounds 67108864 "20000 100000" "more"
bounds 50331648 "5000 100000" "less"
swaps() { grep -lx 134217728 $pods/kubepods-burstable.slice/kubepods-burstable-pod*.slice/cri-containerd-*.scope/memory.max 2>/dev/null; }
await swaps; swapping=$(swaps); swapping=${swapping%/memory.max}
# Its part of the machine's swap is its part of the machine's memory.
share=$(awk '/^MemTotal/ {m = $2} /^SwapTotal/ {s = $2} END {printf "%d", int(67108864 / (m * 1024) * s * 1024 / 4096) * 4096}' /proc/meminfo)
[ "$share" -gt 4096 ] || fail "there is no swap: $(cat /proc/swaps)"
await is "$swapping/memory.swap.max" "$share"
has "$main/memory.swap.max" 0  # a Guaranteed pod swaps nothing
echo "seen: swap"
await test ! -d "$slice"; await test ! -d "$(dirname "$swapping")"
echo "all is well"
"#;
