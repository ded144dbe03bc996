//! A whole machine: the systemd units of the agent and of the overlay, cgroup v2 with the systemd driver, a static pod that
//! is Ready, and Ready again after a reboot, on the network that the overlay wrote for the runtime; what cgroup v2 and the
//! journal report through the node's API. Other machines: what cgroup v2 alone can do for memory, pods with users
//! of their own, and pods that get more and less while they run.

mod memory;
mod own_users;
mod resize;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use keelson_tests::certs::Authority;
use keelson_tests::machine::Machine;
use keelson_tests::parts::{CONTROL_PLANE, Part};
use keelson_tests::pods::SLEEP;
use keelson_tests::suite::{Suite, folder};
use keelson_tests::{built, images};
use serde_json::Value;

/// Software emulation is some twenty times slower than the machine itself.
const LIMIT: Duration = Duration::from_secs(240);

pub async fn body(suite: &mut Suite) -> Result<()> {
    let dir = suite.dir().to_owned();
    let case =
        "systemd units run a static pod on the overlay's network, with cgroup v2, and again after a reboot";
    suite.case(case, LIMIT * 2, reboot(&dir)).await;
    let case = "with swap it starts only where that is allowed, memory is kept for those who requested it, and a processor may go";
    suite.case(case, LIMIT, async { memory::run(&folder(&dir, "memory")?).await }).await;
    let case = "a pod has users of its own on cgroup v2, also after its record was cut and the agent killed";
    match Part::Containerd2.available().and_then(|()| Part::Runc.available()) {
        Ok(()) => suite.case(case, LIMIT, async { own_users::run(&folder(&dir, "own-users")?).await }).await,
        Err(missing) => suite.leave_out(case, &missing),
    }
    let case = "a node of a cluster resizes a pod on cgroup v2 with systemd, and limits swap";
    match CONTROL_PLANE.iter().try_for_each(|part| part.available()) {
        Ok(()) => suite.case(case, LIMIT * 2, async { resize::run(&folder(&dir, "resize")?).await }).await,
        Err(missing) => suite.leave_out(case, &missing),
    }
    Ok(())
}

async fn reboot(dir: &Path) -> Result<()> {
    let machine = Machine::new(dir)?;
    let pod = POD.replace("IMAGE", images::BUSYBOX).replace("SLEEP", SLEEP);
    furnish(&machine, dir, &pod)?;

    let said = machine.boot(&format!("{INSTALL}{FAIL}{CHECK}{ASK}"), LIMIT).await?;
    ensure!(said.contains("restarts 0"), "it said\n{said}");
    summary(answer(&said, "summary")?)?;
    metrics(answer(&said, "cadvisor")?)?;
    let journal = answer(&said, "journal")?;
    ensure!(journal.contains("machine keelson["), "the journal of the agent's unit was shown as\n{journal}");
    let few = answer(&said, "two-lines")?;
    ensure!(few.lines().count() == 2, "two lines of the journal were shown as\n{few}");
    let again = machine.boot(&format!("{FAIL}{CHECK}"), LIMIT).await?;
    ensure!(again.contains("all is well"), "after the reboot it said\n{again}");
    Ok(())
}

/// What a package brings, a runtime, a network that the overlay writes for it, and one pod.
fn furnish(machine: &Machine, dir: &Path, pod: &str) -> Result<()> {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging");
    machine.put_file("keelson", &built::agent()?, 0o755)?;
    machine.put_file("keelson-cni", &built::cni()?, 0o755)?;
    machine.put_file("keelson.service", &packaging.join("systemd/keelson.service"), 0o644)?;
    machine.put_file("keelson-overlay.service", &packaging.join("systemd/keelson-overlay.service"), 0o644)?;
    machine.put("keelson-overlay.default", OVERLAY.as_bytes(), 0o644)?;
    machine.put("net-conf.json", br#"{"Network": "10.88.0.0/16"}"#, 0o644)?;
    machine.put_file("config.yaml", &packaging.join("config.yaml"), 0o644)?;
    machine.put_file("images.tar", &images::pack_standard(dir)?, 0o644)?;
    machine.put("containerd.toml", CONTAINERD.replace("PAUSE", images::PAUSE).as_bytes(), 0o644)?;
    machine.put("pod.yaml", pod.as_bytes(), 0o644)?;
    machine.put("lan0.netdev", b"[NetDev]\nName=lan0\nKind=dummy\n", 0o644)?;
    let lan = b"[Match]\nName=lan0\n[Network]\nAddress=10.0.0.5/24\nGateway=10.0.0.1\n";
    machine.put("lan0.network", lan, 0o644)?;

    let authority = Authority::new(dir)?;
    let caller = authority.pair("caller", "monitoring", &[], &[])?;
    for (name, from) in
        [("ca.crt", &authority.ca_file()), ("caller.crt", &caller.cert), ("caller.key", &caller.key)]
    {
        machine.put_file(name, from, 0o600)?;
    }
    machine.put("10-api.conf", API.as_bytes(), 0o644)
}

/// What the node's API answered to one of the questions of `ASK`.
fn answer<'a>(said: &'a str, name: &str) -> Result<&'a str> {
    let (_, rest) =
        said.split_once(&format!("<{name}>\n")).with_context(|| format!("no {name} in\n{said}"))?;
    let (answer, _) =
        rest.split_once(&format!("</{name}>")).with_context(|| format!("no end of {name} in\n{said}"))?;
    Ok(answer)
}

fn summary(text: &str) -> Result<()> {
    let summary: Value = serde_json::from_str(text).with_context(|| format!("no summary: {text}"))?;
    let pods = summary["pods"].as_array().context("no pods")?;
    let pod = pods
        .iter()
        .find(|p| p["podRef"]["name"] == "web-machine")
        .with_context(|| format!("no pod in {summary}"))?;
    for place in [
        "/cpu/usageCoreNanoSeconds",
        "/memory/workingSetBytes",
        "/memory/rssBytes",
        "/containers/0/cpu/usageCoreNanoSeconds",
        "/containers/0/memory/workingSetBytes",
        "/containers/0/memory/usageBytes",
        "/containers/0/rootfs/capacityBytes",
        "/process_stats/process_count",
        "/network/rxBytes",
    ] {
        let found = pod.pointer(place).and_then(Value::as_u64);
        ensure!(found.is_some_and(|n| n > 0), "{place} is {found:?} in {pod:#}");
    }
    let pressure = pod.pointer("/containers/0/cpu/psi/some/total").and_then(Value::as_u64);
    ensure!(pressure.is_some(), "no pressure in {pod:#}");
    let system = summary["node"]["systemContainers"].as_array().context("no system containers")?;
    ensure!(system.iter().any(|c| c["name"] == "kubelet"), "the agent itself is missing: {system:?}");
    for place in ["/node/cpu/usageCoreNanoSeconds", "/node/memory/workingSetBytes", "/node/fs/usedBytes"] {
        ensure!(summary.pointer(place).and_then(Value::as_u64) > Some(0), "no {place} in {summary:#}");
    }
    Ok(())
}

fn metrics(text: &str) -> Result<()> {
    for name in [
        "container_cpu_usage_seconds_total",
        "container_memory_working_set_bytes",
        "container_spec_cpu_shares",
    ] {
        let of_main = text.lines().find(|l| l.starts_with(name) && l.contains("container=\"main\""));
        let value = of_main.and_then(|l| l.split_once("} ")?.1.split(' ').next()?.parse::<f64>().ok());
        ensure!(value.is_some_and(|v| v > 0.0), "{name} of the container is {of_main:?}");
    }
    Ok(())
}

const API: &str = "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {x509: {clientCAFile: /etc/keelson/ca.crt}}
authorization: {mode: AlwaysAllow}
enableSystemLogQuery: true
";

/// What only cgroup v2 and the journal can report, asked over the node's API.
const ASK: &str = r#"
ask() { curl -sS --fail-with-body --max-time 60 -k --cert /host/caller.crt --key /host/caller.key "https://127.0.0.1:10250$1" || fail "$1"; }
show() { printf '<%s>\n' "$1"; ask "$2"; printf '</%s>\n' "$1"; }
ask /stats/summary >/dev/null
show summary /stats/summary
show cadvisor /metrics/cadvisor
show journal '/logs/?query=keelson&boot=0'
show two-lines '/logs/?query=keelson&tailLines=2'
"#;

const CONTAINERD: &str = r#"version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "PAUSE"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = true
"#;

/// One host alone, because there is nobody else: the overlay gives it a subnet and writes the runtime's network.
const OVERLAY: &str =
    "KEELSON_OVERLAY_ARGS=\"--backend=none --net-config-path=/etc/keelson/net-conf.json --ip-masq\"\n";

const POD: &str = r#"apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: main
    image: IMAGE
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "echo fine >/www/index.html; httpd -p 8080 -h /www; SLEEP"]
    readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
    resources: {requests: {cpu: 10m, memory: 8Mi}}
"#;

/// As a package would.
const INSTALL: &str = r#"
install -D -m 755 /host/keelson /usr/bin/keelson
install -D -m 644 /host/keelson.service /usr/lib/systemd/system/keelson.service
install -D -m 644 /host/config.yaml /etc/keelson/config.yaml
mkdir -p /etc/keelson/config.d /etc/keelson/manifests /opt/cni/bin
cp /host/10-api.conf /etc/keelson/config.d/ && cp /host/ca.crt /etc/keelson/
for p in bridge host-local loopback portmap; do install -m 755 /host/keelson-cni /opt/cni/bin/$p; done
install -D -m 644 /host/keelson-overlay.service /usr/lib/systemd/system/keelson-overlay.service
install -D -m 644 /host/keelson-overlay.default /etc/default/keelson-overlay
install -D -m 644 /host/net-conf.json /etc/keelson/net-conf.json
install -D -m 644 /host/containerd.toml /etc/containerd/config.toml
mkdir -p /etc/systemd/network && cp /host/lan0.* /etc/systemd/network/
systemctl enable --now systemd-networkd >/dev/null 2>&1
systemctl enable --now keelson-overlay || { journalctl -u keelson-overlay -n 40 --no-pager -o cat; exit 1; }
[ -s /etc/cni/net.d/10-keelson.conflist ] || { echo "FAILED: the unit is ready and there is no network for the runtime"; exit 1; }
systemctl restart containerd
ctr -n k8s.io images import --all-platforms /host/images.tar >/dev/null
cp /host/pod.yaml /etc/keelson/manifests/
systemctl enable --now keelson || { journalctl -u keelson -n 40 --no-pager -o cat; exit 1; }
"#;

const FAIL: &str = r#"
fail() { echo "FAILED: $*"; keelson pods || true; journalctl -u keelson -u keelson-overlay -n 60 --no-pager -o cat; systemctl status keelson --no-pager || true; exit 1; }
"#;

const CHECK: &str = r#"
[ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ] || fail "not on cgroup v2"
n=0; until systemctl is-active -q keelson; do n=$((n + 1)); [ $n -lt 100 ] || fail "the unit is not active"; sleep 0.2; done
n=0; until systemctl is-active -q keelson-overlay; do n=$((n + 1)); [ $n -lt 100 ] || fail "the overlay's unit is not active"; sleep 0.2; done
keelson pods wait --timeout 90s || fail "the pod is not ready"
keelson pods
slice=$(find /sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice -maxdepth 1 -name 'kubepods-burstable-pod*.slice' | head -1)
[ -n "$slice" ] || fail "no slice for the pod: $(find /sys/fs/cgroup -maxdepth 3 -name '*pod*')"
find "$slice" -name 'cri-containerd-*.scope' | grep -q . || fail "no container in $slice"
scope=$(find "$slice" -name 'cri-containerd-*.scope' -exec grep -l 1 {}/memory.oom.group \; | head -1)
[ -n "$scope" ] || fail "no container whose processes end together when it is out of memory"
scope=${scope%/memory.oom.group}
[ ! -e "$scope/memory.swap.max" ] || [ "$(cat "$scope/memory.swap.max")" = 0 ] || fail "the container may swap: $(cat "$scope/memory.swap.max")"
for pages in "$slice"/hugetlb.*B.max; do # this runtime leaves the container's own alone
  [ "$(cat "$pages")" = 0 ] || fail "$pages is $(cat "$pages")"; done
[ "$(systemctl show -p Type --value keelson)" = notify ] || fail "the unit does not wait for readiness"
keelson pods | grep -q ' 10\.88\.' || fail "the pod's address is not of the overlay's subnet"
keelson overlay status | grep -q '^this host   10\.88\.' || fail "the overlay shows no subnet: $(keelson overlay status 2>&1)"
systemctl kill -s KILL --kill-whom=main keelson-overlay
n=0; until [ "$(systemctl show -p NRestarts --value keelson-overlay)" = 1 ] && systemctl is-active -q keelson-overlay; do
  n=$((n + 1)); [ $n -lt 100 ] || fail "the overlay was killed and is not back"; sleep 0.2; done
echo "restarts $(systemctl show -p NRestarts --value keelson)"
# systemd holds the connection to the runtime and the number of changes on it; the next agent takes over both, and has asked for nothing.
kept() { systemctl show -p NFileDescriptorStore --value keelson; }
[ "$(kept)" = 2 ] || fail "systemd keeps $(kept) descriptors of the agent"
systemctl kill -s KILL --kill-whom=main keelson
n=0; until [ "$(systemctl show -p NRestarts --value keelson)" = 1 ] && systemctl is-active -q keelson && [ "$(kept)" = 1 ]; do
  n=$((n + 1)); [ $n -lt 100 ] || fail "the agent was killed and is not back, or systemd keeps $(kept) descriptors of it"; sleep 0.2; done
keelson pods wait --timeout 90s || fail "the pod is not ready after the agent was killed"
echo "all is well"
"#;
