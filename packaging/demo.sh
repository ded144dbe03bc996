#!/usr/bin/env bash
# The node behind `make run` and `make stop`: demo.sh start | stop
#
# Everything it makes has a name of its own (directories, socket, bridge, cgroup), so that nothing on the machine is in
# its way and `stop` can tell what is its own. CRI_SOCKET=/path uses a runtime that is already there.
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin
here=$(cd "$(dirname "$0")" && pwd)
target=$(realpath -m "${CARGO_TARGET_DIR:-$here/../target}")
programs=$target/${KEELSON_PROFILE:-debug}

state=/run/keelson-demo             # sockets, process ids, what is to be put back
data=/var/lib/keelson-demo          # images, pods, manifests, logs
cgroup=keelson-demo
bridge=keelson-demo0
node=demo
socket=$state/keelson.sock
own_runtime=$state/containerd.sock
# Made by the runtime at places that cannot be moved; taken away again when they were not there and are empty.
shared=(/run/containerd/s /run/containerd/fifo /run/containerd/io.containerd.runtime.v2.task /run/containerd
  /var/lib/cni/results /var/lib/cni/cache /var/lib/cni /opt/containerd)

say() { printf '%s\n' "$*"; }
step() { printf '==> %s\n' "$*"; }
die() { printf 'keelson: %s\n' "$*" >&2; exit 1; }

# ---------------------------------------------------------------------------------------------------------- processes

alive() { # PIDFILE PROGRAM: the process is there and is that program
  local pid
  [ -r "$1" ] && pid=$(cat "$1") && [ -n "$pid" ] && [ "$(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | cut -d' ' -f1)" = "$2" ]
}

launch() { # NAME PROGRAM ARGS...: in the background, in a session of its own
  local name=$1; shift
  setsid "$@" </dev/null >"$state/$name.log" 2>&1 &
  echo $! >"$state/$name.pid"
}

ended() { # PIDFILE of what this shell has launched. Before it is the program, it is a copy of this shell.
  ! kill -0 "$(cat "$1")" 2>/dev/null
}

end() { # PIDFILE PROGRAM: TERM, and KILL when that does not do
  alive "$1" "$2" || return 0
  local pid; pid=$(cat "$1")
  kill -TERM "$pid" 2>/dev/null || true
  for _ in $(seq 100); do alive "$1" "$2" || return 0; sleep 0.1; done
  kill -KILL "$pid" 2>/dev/null || true
}

# ------------------------------------------------------------------------------------------------------------- cgroups

hierarchies() {
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then echo /sys/fs/cgroup; return; fi
  local dir
  for dir in /sys/fs/cgroup/*/; do [ -e "$dir/cgroup.procs" ] && [ ! -L "${dir%/}" ] && echo "${dir%/}"; done
}

make_cgroups() {
  local root controller file
  while read -r root; do
    mkdir -p "$root/$cgroup"
    # On version 1 a new cpuset is empty, and nothing can enter it until it has processors and memory.
    for file in cpuset.cpus cpuset.mems; do
      if [ ! -e "$root/cgroup.controllers" ] && [ -e "$root/$cgroup/$file" ]; then cat "$root/$file" >"$root/$cgroup/$file"; fi
    done
    if [ -e "$root/cgroup.controllers" ]; then
      for controller in $(cat "$root/cgroup.controllers"); do
        echo "+$controller" >"$root/cgroup.subtree_control" 2>/dev/null || true
        echo "+$controller" >"$root/$cgroup/cgroup.subtree_control" 2>/dev/null || true
      done
    fi
  done < <(hierarchies)
}

kill_cgroups() { # everything that still runs in one of our cgroups
  local root procs pid
  for _ in 1 2 3 4 5; do
    procs=
    while read -r root; do
      [ -d "$root/$cgroup" ] || continue
      procs+=" $(find "$root/$cgroup" -name cgroup.procs -exec cat {} + 2>/dev/null | tr '\n' ' ')"
    done < <(hierarchies)
    [ -n "${procs// /}" ] || return 0
    for pid in $procs; do kill -KILL "$pid" 2>/dev/null || true; done
    sleep 0.2
  done
}

remove_cgroups() {
  local root
  while read -r root; do
    [ -d "$root/$cgroup" ] || continue
    find "$root/$cgroup" -depth -type d -exec rmdir {} \; 2>/dev/null || true
  done < <(hierarchies)
}

# ------------------------------------------------------------------------------------------------------------- runtime

# A range that nothing on this machine uses.
pod_subnet() {
  local prefix
  for prefix in 10.187.0 10.203.77 172.30.187 192.168.187; do
    if ! grep -q "[- ]$prefix\." /proc/net/fib_trie 2>/dev/null; then echo "$prefix.0/24"; return; fi
  done
  die "no free range for pods: 10.187.0.0/24 and three others are all in use"
}

can_lower_oom_score() { # CAP_SYS_RESOURCE, bit 24
  local caps; caps=$(sed -n 's/^CapEff:\t//p' /proc/self/status)
  [ $(((0x$caps >> 24) & 1)) = 1 ]
}

write_runtime_config() {
  local restrict=true snapshotter=overlayfs
  can_lower_oom_score && restrict=false
  [ "$(stat -f -c %T "$data")" = overlayfs ] && snapshotter=native
  mkdir -p "$data/cni/conf" "$data/cni/bin" "$data/containerd"
  # The cgroup driver is cgroupfs, on every machine: the demo has a cgroup of its own, which only has to be removed
  # again, and so does not touch what systemd keeps.
  cat >"$state/containerd.toml" <<X
version = 2
root = "$data/containerd"
state = "$state/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp", "io.containerd.nri.v1.nri"]
[grpc]
  address = "$own_runtime"
[ttrpc]
  address = "$own_runtime.ttrpc"
[debug]
  address = "$state/containerd-debug.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$data/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/keelson/pause:1"
  restrict_oom_score_adj = $restrict
  netns_mounts_under_state_dir = true
  enable_unprivileged_ports = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "$data/cni/bin"
  conf_dir = "$data/cni/conf"
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "$snapshotter"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = false
  Root = "$state/runc"
X
  cat >"$data/cni/conf/10-demo.conflist" <<X
{"cniVersion": "1.0.0", "name": "keelson-demo", "plugins": [
  {"type": "bridge", "bridge": "$bridge", "isGateway": true,
   "ipam": {"type": "host-local", "dataDir": "$data/cni/networks", "ranges": [[{"subnet": "$(pod_subnet)"}]],
            "routes": [{"dst": "0.0.0.0/0"}]}}]}
X
  local plugin
  if [ -x "$programs/keelson-cni" ]; then
    install -m 0755 "$programs/keelson-cni" "$data/cni/bin/keelson-cni"
    for plugin in bridge host-local loopback portmap; do ln -f "$data/cni/bin/keelson-cni" "$data/cni/bin/$plugin"; done
  else
    for plugin in bridge host-local loopback portmap; do
      [ -x "/usr/lib/cni/$plugin" ] || die "no CNI plugins: build them (make cni) or install containernetworking-plugins"
      ln -sf "/usr/lib/cni/$plugin" "$data/cni/bin/$plugin"
    done
  fi
}

start_runtime() {
  step "starting a containerd of its own at $own_runtime"
  write_runtime_config
  launch containerd "$(command -v containerd)" --config "$state/containerd.toml"
  for _ in $(seq 300); do
    ctr -a "$own_runtime" version >/dev/null 2>&1 && return 0
    if ended "$state/containerd.pid"; then tail -5 "$state/containerd.log" >&2; die "containerd ended at its start"; fi
    sleep 0.1
  done
  tail -5 "$state/containerd.log" >&2
  die "containerd does not answer after 30 s; its log is $state/containerd.log"
}

# -------------------------------------------------------------------------------------------------------------- images

static_busybox() { # prints the path of one; gets the package without installing it when the machine has none
  local found kept=$target/demo/busybox
  found=$(command -v busybox || true)
  if [ -n "$found" ] && ! ldd "$found" >/dev/null 2>&1; then echo "$found"; return; fi
  if [ ! -x "$kept" ]; then
    local work; work=$(mktemp -d)
    (cd "$work" && apt-get -o APT::Sandbox::User=root -qq download busybox-static && dpkg -x ./*.deb .) >&2 \
      || { rm -rf "$work"; die "no static busybox for the example image: apt-get install busybox-static"; }
    mkdir -p "$target/demo"
    install -m 0755 "$(find "$work" -type f -name busybox | head -1)" "$kept"
    rm -rf "$work"
  fi
  echo "$kept"
}

pack_images() {
  step "packing the images (pause, example)"
  local work=$target/demo/images
  mkdir -p "$work"
  "$here/pause/build.sh" "$target/demo/pause"
  install -m 0755 "$target/demo/pause" "$work/pause"
  install -m 0755 "$(static_busybox)" "$work/busybox"
  install -m 0644 "$here/example/images.yaml" "$work/images.yaml"
  "$programs/keelson" image pack "$work/images.yaml" -o "$target/demo/images.tar" | sed 's/^/    /'
}

import_images() { # SOCKET
  ctr -a "$1" -n k8s.io images import --all-platforms "$target/demo/images.tar" >/dev/null \
    || die "cannot import $target/demo/images.tar into $1; with another runtime than containerd, load it by that runtime's means"
}

# --------------------------------------------------------------------------------------------------------------- start

start() {
  [ "$(id -u)" = 0 ] || die "this needs root: it starts containers (try: sudo make run)"
  [ -x "$programs/keelson" ] || die "$programs/keelson is not there: run make run, which builds it"
  if [ -e "$state" ] || [ -e "$data" ]; then step "taking down what an earlier run left"; stop; fi
  local runtime=${CRI_SOCKET:-}
  runtime=${runtime#unix://}
  [ -z "$runtime" ] || [ -S "$runtime" ] || die "CRI_SOCKET=$CRI_SOCKET is not a socket"

  mkdir -p -m 0700 "$state"; mkdir -p -m 0755 "$data/manifests" "$data/log/pods"
  cat /proc/sys/net/ipv4/ip_forward >"$state/ip_forward"
  local dir; for dir in "${shared[@]}"; do [ -e "$dir" ] || echo "$dir"; done >"$state/absent"
  make_cgroups
  pack_images
  if [ -z "$runtime" ]; then start_runtime; runtime=$own_runtime; else echo "$runtime" >"$state/runtime"; fi
  import_images "$runtime"

  step "starting keelson, standalone, with pods from $data/manifests"
  launch_keelson "$runtime"
  for _ in $(seq 100); do
    answers && break
    if ended "$state/keelson.pid"; then tail -5 "$state/keelson.log" >&2; die "keelson ended at its start"; fi
    sleep 0.1
  done

  step "starting the example pod"
  # Moved into place, so that the agent never sees half of it.
  install -m 0644 "$here/example/pod.yaml" "$data/example.yaml"
  mv "$data/example.yaml" "$data/manifests/example.yaml"
  "$programs/keelson" pods --socket "$socket" wait example-$node --timeout 120s \
    || die "the example pod is not ready; logs: $state/keelson.log, $state/containerd.log"
  say
  "$programs/keelson" pods --socket "$socket"
  say
  local ip; ip=$("$programs/keelson" pods --socket "$socket" -o json | sed -n 's/.*"ip": "\([^"]*\)".*/\1/p' | head -1)
  step "http://$ip:8080/ says"
  fetch "$ip" 8080 || die "the page cannot be fetched from http://$ip:8080/"
  say
  say "It goes on running. Look at it with:  $programs/keelson pods --socket $socket"
  say "More pods: put manifests into $data/manifests. Take it all down with:  make stop"
}

launch_keelson() { # SOCKET of the runtime
  # Ports are left alone: another agent on this machine may have them.
  cat >"$state/config.yaml" <<X
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
healthzPort: 0
podLogsDir: $data/log/pods
# Nor does it matter here what else the machine is used for: its swap stays, and its firewall.
failSwapOn: false
makeIPTablesUtilChains: false
X
  launch keelson "$programs/keelson" --container-runtime-endpoint "unix://$1" --hostname-override $node \
    --root-dir "$data/kubelet" --pod-manifest-path "$data/manifests" --cgroup-driver cgroupfs --cgroup-root /$cgroup \
    --socket "$socket" --config "$state/config.yaml"
}

answers() { "$programs/keelson" pods --socket "$socket" -o json >/dev/null 2>&1; }

fetch() { # HOST PORT
  if command -v curl >/dev/null; then curl -fsS --noproxy '*' --max-time 5 "http://$1:$2/"; return; fi
  exec 3<>"/dev/tcp/$1/$2" || return
  printf 'GET / HTTP/1.0\r\nHost: %s\r\n\r\n' "$1" >&3
  sed '1,/^\r*$/d' <&3
}

# ---------------------------------------------------------------------------------------------------------------- stop

stop() {
  [ "$(id -u)" = 0 ] || die "this needs root (try: sudo make stop)"
  local runtime=$own_runtime
  if [ -r "$state/runtime" ]; then runtime=$(cat "$state/runtime"); fi
  rm -f "$data/manifests"/* 2>/dev/null || true
  if alive "$state/keelson.pid" "$programs/keelson"; then
    "$programs/keelson" pods --socket "$socket" wait --gone --timeout 60s || true
  elif [ -d "$data/manifests" ] && [ -n "$(pods_left "$runtime")" ]; then
    # The agent was killed. Another one takes down what it finds and nobody asks for any more.
    launch_keelson "$runtime"
    for _ in $(seq 150); do [ -n "$(pods_left "$runtime")" ] || break; sleep 0.2; done
  fi
  end "$state/keelson.pid" "$programs/keelson"
  if [ "$runtime" != "$own_runtime" ]; then
    remove_images "$runtime"
  else
    remove_pods_left
    end "$state/containerd.pid" "$(command -v containerd || echo containerd)"
  fi
  kill_cgroups
  kill_shims
  unmount_all
  ip link delete $bridge 2>/dev/null || true
  remove_cgroups
  if [ -r "$state/ip_forward" ]; then cat "$state/ip_forward" >/proc/sys/net/ipv4/ip_forward 2>/dev/null || true; fi
  if [ -r "$state/absent" ]; then
    local dir; while read -r dir; do rmdir "$dir" 2>/dev/null || true; done <"$state/absent"
  fi
  rm -rf --one-file-system "$state" "$data"
  check_nothing_left
}

pods_left() { # SOCKET: containers and sandboxes of this node's pods
  timeout 10 ctr -a "$1" -n k8s.io containers ls -q "labels.\"io.kubernetes.pod.name\"~=-$node\$" 2>/dev/null || true
}

# By what they point at: the runtime keeps a second reference, named by the image's id.
remove_images() { # SOCKET
  local refs
  refs=$(ctr -a "$1" -n k8s.io images ls 2>/dev/null | awk '
    {digest[$1] = $3} $1 ~ "^localhost/keelson/" {own[$3] = 1} END {for (ref in digest) if (digest[ref] in own) print ref}')
  # shellcheck disable=SC2086 # one word a reference
  [ -z "$refs" ] || ctr -a "$1" -n k8s.io images rm $refs >/dev/null 2>&1 || true
}

# Pods that no agent could end. Their network goes with their namespaces.
remove_pods_left() {
  [ -S "$own_runtime" ] || return 0
  local id
  for id in $(timeout 10 ctr -a "$own_runtime" -n k8s.io tasks ls -q 2>/dev/null); do
    timeout 10 ctr -a "$own_runtime" -n k8s.io tasks kill -s KILL "$id" >/dev/null 2>&1 || true
    timeout 10 ctr -a "$own_runtime" -n k8s.io tasks rm -f "$id" >/dev/null 2>&1 || true
  done
}

kill_shims() {
  local dir
  for dir in /proc/[0-9]*; do
    case $(tr '\0' ' ' 2>/dev/null <"$dir/cmdline") in
      *containerd-shim*"$own_runtime"*) kill -KILL "${dir#/proc/}" 2>/dev/null || true ;;
    esac
  done
}

mounts_left() { awk -v a="$state/" -v b="$data/" 'index($5, a) == 1 || index($5, b) == 1 {print $5}' /proc/self/mountinfo; }

unmount_all() { # the last mounted first; twice, for what is mounted over itself
  local point
  for _ in 1 2 3; do
    mounts_left | tac | while read -r point; do umount -l "$(printf %b "$point")" 2>/dev/null || true; done
    [ -n "$(mounts_left)" ] || return 0
  done
}

check_nothing_left() {
  local left=() root
  [ ! -e "$state" ] || left+=("$state")
  [ ! -e "$data" ] || left+=("$data")
  [ ! -e /sys/class/net/$bridge ] || left+=("interface $bridge")
  while read -r root; do [ ! -d "$root/$cgroup" ] || left+=("cgroup $root/$cgroup"); done < <(hierarchies)
  [ -z "$(mounts_left)" ] || left+=("mounts: $(mounts_left | tr '\n' ' ')")
  [ ${#left[@]} = 0 ] || die "could not be removed: ${left[*]}"
}

case ${1:-} in
  start) start ;;
  stop)
    if [ -e "$state" ] || [ -e "$data" ]; then stop; say "stopped; nothing is left"; else stop; say "nothing was running"; fi ;;
  *) die "usage: demo.sh start | stop" ;;
esac
