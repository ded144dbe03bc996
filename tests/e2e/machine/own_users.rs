//! A pod with users of its own on cgroup v2 and systemd, on Debian's kernel.

use std::path::Path;

use anyhow::{Result, ensure};
use keelson_tests::images;
use keelson_tests::machine::Machine;
use keelson_tests::parts::Part;
use keelson_tests::pods::SLEEP;

use super::{FAIL, INSTALL, LIMIT, furnish};

/// With a runtime that can map users, which Debian's cannot.
pub async fn run(dir: &Path) -> Result<()> {
    let machine = Machine::new(dir)?;
    furnish(&machine, dir, &OWN_USERS.replace("IMAGE", images::BUSYBOX).replace("SLEEP", SLEEP))?;
    let runtime = Part::Containerd2.dir()?;
    for name in ["containerd", "containerd-shim-runc-v2", "ctr"] {
        machine.put_file(name, &runtime.join(name), 0o755)?;
    }
    machine.put_file("runc", &Part::Runc.program()?, 0o755)?;
    let said = machine.boot(&format!("{NEWER_RUNTIME}{INSTALL}{FAIL}{CHECK_USERS}"), LIMIT).await?;
    ensure!(said.contains("its users are its own"), "it said\n{said}");
    Ok(())
}

const OWN_USERS: &str = r#"apiVersion: v1
kind: Pod
metadata: {name: users}
spec:
  hostUsers: false
  containers:
  - name: main
    image: IMAGE
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "echo fine >/data/file; [ $(stat -c %u /data/file) = 0 ] && [ $(stat -c %u /etc/hosts) = 0 ] || exit 1; SLEEP"]
    volumeMounts: [{name: data, mountPath: /data}]
    resources: {requests: {memory: 8Mi}}
  volumes: [{name: data, emptyDir: {}}]
"#;

const NEWER_RUNTIME: &str = r#"
install -m 755 /host/containerd /host/containerd-shim-runc-v2 /host/ctr /host/runc /usr/local/bin/
mkdir -p /etc/systemd/system/containerd.service.d
printf '[Service]\nExecStart=\nExecStart=/usr/local/bin/containerd\n' >/etc/systemd/system/containerd.service.d/newer.conf
systemctl daemon-reload
"#;

const CHECK_USERS: &str = r#"
keelson pods wait --timeout 120s || fail "the pod is not ready"
slice=$(find /sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice -maxdepth 1 -name 'kubepods-burstable-pod*.slice' | head -1)
seen() { for scope in "$slice"/cri-containerd-*.scope; do head -1 "$scope/cgroup.procs"; done | sort; }
before=$(seen); [ "$(echo "$before" | wc -l)" = 2 ] || fail "there are not two processes: $before"
for pid in $before; do
  set -- $(cat "/proc/$pid/uid_map"); [ "$1 $3" = "0 65536" ] && [ "$2" -ge 65536 ] || fail "the users of $pid are $*"
  first=$2; [ "$(cat "/proc/$pid/gid_map")" = "$(cat "/proc/$pid/uid_map")" ] || fail "its groups are others"
done
grep -q "^Uid:	$first	" "/proc/$pid/status" || fail "outside it is $(grep Uid "/proc/$pid/status")"
pod=$(dirname "$(find /var/lib/kubelet/pods -name userns)")
mapping="[{\"hostId\":$first,\"containerId\":0,\"length\":65536}]"
record="{\"uidMappings\":$mapping,\"gidMappings\":$mapping}"
[ "$(cat "$pod/userns")" = "$record" ] || fail "its record is $(cat "$pod/userns")"
[ "$(stat -c %u "$pod/volumes/kubernetes.io~empty-dir/data/file")" = 0 ] || fail "its file is another's on disk"
systemctl kill -s KILL --kill-whom=main keelson; printf '{"uid' >"$pod/userns"
n=0; until [ "$(cat "$pod/userns")" = "$record" ]; do n=$((n + 1)); [ $n -lt 300 ] || fail "its record is $(cat "$pod/userns")"; sleep 0.2; done
keelson pods wait --timeout 120s || fail "the pod is not ready after the agent was killed"
[ "$(seen)" = "$before" ] || fail "something of it was restarted"
echo "its users are its own"
"#;
