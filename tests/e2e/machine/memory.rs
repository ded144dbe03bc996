//! What cgroup v2 alone can do for memory: swap that is refused or limited, and memory that is kept for those who requested it.
//! And a processor that goes away under the container that has it for itself.

use std::path::Path;

use anyhow::{Result, ensure};
use keelson_tests::images;
use keelson_tests::machine::Machine;
use keelson_tests::pods::SLEEP;

use super::{FAIL, INSTALL, LIMIT};

pub async fn run(dir: &Path) -> Result<()> {
    let machine = Machine::new(dir)?;
    super::furnish(&machine, dir, &small_pod("small", "{memory: 8Mi}", "{}"))?;
    machine.put("20-memory.conf", MEMORY_CONFIG.as_bytes(), 0o644)?;
    for (name, requests, limits) in [
        ("squeezed", "{memory: 64Mi}", "{memory: 128Mi}"),
        ("sure", "{cpu: 100m, memory: 32Mi}", "{cpu: 100m, memory: 32Mi}"),
        ("alone", "{cpu: 1, memory: 16Mi}", "{cpu: 1, memory: 16Mi}"),
    ] {
        machine.put(&format!("{name}.yaml"), small_pod(name, requests, limits).as_bytes(), 0o644)?;
    }
    let said = machine.boot(&format!("{INSTALL}{FAIL}{CHECK}"), LIMIT).await?;
    ensure!(said.contains("memory is kept"), "it said\n{said}");
    Ok(())
}

fn small_pod(name: &str, requests: &str, limits: &str) -> String {
    let pod = SMALL_POD.replace("NAME", name).replace("REQUESTS", requests).replace("LIMITS", limits);
    pod.replace("IMAGE", images::BUSYBOX).replace("SLEEP", SLEEP)
}

const MEMORY_CONFIG: &str = "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failSwapOn: false
memorySwap: {swapBehavior: LimitedSwap}
featureGates: {MemoryQoS: true}
memoryReservationPolicy: TieredReservation
cpuManagerPolicy: static
cpuManagerReconcilePeriod: 1s
kubeReserved: {cpu: 100m}
";

const SMALL_POD: &str = r#"apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  containers:
  - name: main
    image: IMAGE
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "SLEEP"]
    resources: {requests: REQUESTS, limits: LIMITS}
"#;

/// With swap the agent does not start unless it is allowed to, and then critical pods, as all of a manifest are, get none of it.
const CHECK: &str = r#"
dd if=/dev/zero of=/swapfile bs=1M count=64 status=none; chmod 600 /swapfile; mkswap /swapfile >/dev/null; swapon /swapfile
systemctl stop keelson
refused=$(timeout 60 keelson --config /etc/keelson/config.yaml --config-dir /etc/keelson/config.d 2>&1) && fail "it runs with swap on"
echo "$refused" | grep -q 'running with swap on is not supported' || fail "with swap on it said: $refused"
cp /host/20-memory.conf /etc/keelson/config.d/ && cp /host/squeezed.yaml /host/sure.yaml /host/alone.yaml /etc/keelson/manifests/
systemctl reset-failed keelson; systemctl start keelson || fail "it does not start with swap that is allowed"
for pod in small-machine squeezed-machine sure-machine alone-machine; do keelson pods wait $pod --timeout 90s || fail "$pod is not ready"; done
cd /sys/fs/cgroup/kubepods.slice
has() { [ "$(cat "$1")" = "$2" ] || fail "$1 is $(cat "$1") and not $2"; }
has memory.min 125829120                           # 8 + 64 + 32 + 16 Mi
has kubepods-burstable.slice/memory.low 75497472   # 8 + 64 Mi
squeezed=$(grep -lx 67108864 kubepods-burstable.slice/kubepods-burstable-pod*.slice/memory.low) || fail "no pod has its memory kept"
squeezed=${squeezed%/memory.low}; has "$squeezed/memory.min" 0
main=$(grep -lx 127504384 "$squeezed"/cri-containerd-*.scope/memory.high) || fail "no container is slowed down: $(cat "$squeezed"/*.scope/memory.high)"
main=${main%/memory.high}; has "$main/memory.low" 67108864; has "$main/memory.max" 134217728; has "$main/memory.swap.max" 0
has "$main/memory.oom.group" 1
sure=$(grep -lx 33554432 kubepods-pod*.slice/memory.min) || fail "no guaranteed pod has its memory kept"
sure=${sure%/memory.min}
main=$(grep -lx 33554432 "$sure"/cri-containerd-*.scope/memory.min) || fail "no container of it has"
main=${main%/memory.min}; has "$main/memory.high" max; has "$main/memory.low" 0
alone=$(grep -lx 16777216 kubepods-pod*.slice/memory.min) || fail "no pod has a processor for itself"
main=$(grep -lx 16777216 "${alone%/memory.min}"/cri-containerd-*.scope/memory.min); main=${main%/memory.min}
has "$main/cpuset.cpus" 1
process=$(head -1 "$main/cgroup.procs")
echo 0 >/sys/devices/system/cpu/cpu1/online
n=0; until journalctl -u keelson --no-pager -o cat | grep -q 'CPUs that it has for itself are offline'; do
  n=$((n + 1)); [ $n -lt 300 ] || fail "nothing is said of the processor that is gone"; sleep 0.2; done
[ "$(head -1 "$main/cgroup.procs")" = "$process" ] || fail "the container was restarted"
grep -q 'Cpus_allowed_list:	0' "/proc/$process/status" || fail "it does not run on what is left: $(grep Cpus_allowed_list "/proc/$process/status")"
echo 1 >/sys/devices/system/cpu/cpu1/online
n=0; until grep -q 'Cpus_allowed_list:	1' "/proc/$process/status"; do
  n=$((n + 1)); [ $n -lt 300 ] || fail "it does not have its processor back: $(grep Cpus_allowed_list "/proc/$process/status")"; sleep 0.2; done
has "$main/cpuset.cpus" 1
[ "$(journalctl -u keelson --no-pager -o cat | grep -c 'CPUs that it has for itself are offline')" = 1 ] || fail "it is said more than once"
keelson pods wait alone-machine --timeout 60s || fail "the pod is not ready any more"
cd / && echo "memory is kept"
"#;
