#!/usr/bin/env bash
# Builds the real parts that the tests and benches run against, once, into a cache keyed by version.
#
#   tests/parts.sh PART...   builds what is missing and prints the directory of each part
#   tests/parts.sh --where PART...   the same without building: fails where one is missing
#   tests/parts.sh --list    lists the parts with their versions and where they are
#
# A part that is given by hand is not built: KUBEBUILDER_ASSETS, or a binary of the right name and
# version on PATH (kubectl, containerd and runc are exempt from PATH: the distribution's are other versions).
set -euo pipefail

HERE=$(cd "$(dirname "$0")" && pwd)
CACHE=${KEELSON_PARTS:-${XDG_CACHE_HOME:-$HOME/.cache}/keelson/parts}
K8S=v1.36.4
ETCD=v3.6.8
CONTAINERD=v2.1.9
RUNC=v1.3.4
PLUGINS=v1.9.1
CNITOOL=v1.3.0
FLANNEL=v0.26.7
METRICS_SERVER=v0.9.0

say() { printf 'parts: %s\n' "$*" >&2; }

version_of() {
  case $1 in
    kube-apiserver|kube-scheduler|kube-controller-manager|kubelet|kubectl|e2e-suite) echo $K8S ;;
    etcd) echo $ETCD ;;
    containerd) echo $CONTAINERD ;;
    runc) echo $RUNC ;;
    cni-reference) echo $PLUGINS ;;
    cnitool) echo $CNITOOL ;;
    flanneld) echo $FLANNEL ;;
    metrics-server) echo $METRICS_SERVER ;;
    managers) echo "$K8S-$(sha256sum <"$HERE/managers/main.go" | cut -c1-8)" ;;
    machine) machine_version ;;
    e2e-rootfs) debian ;;
    *) say "unknown part '$1'; --list shows the known ones"; return 2 ;;
  esac
}
# An image is made anew for a newer kernel; where apt cannot tell, one that is there already serves.
machine_version() {
  local kernel
  kernel=$("$HERE/machine.sh" version 2>/dev/null) || kernel=
  if [ -z "$kernel" ]; then kernel=$(ls -d "$CACHE"/machine-* 2>/dev/null | sort -V | tail -1); kernel=${kernel##*/machine-}; fi
  [ -n "$kernel" ] || { say "cannot tell which kernel Debian has: apt-get update first"; return 2; }
  echo "$kernel"
}
# The root of the stand-in images: what the suite's pods call inside of them.
ROOTFS_PACKAGES=bash-static,ca-certificates,curl,dnsutils,iproute2,iputils-ping,net-tools,netcat-openbsd,nginx-light,procps
debian() { . /etc/os-release; echo "${VERSION_CODENAME:-bookworm}"; }
ALL="etcd kube-apiserver kube-scheduler kube-controller-manager kubectl kubelet containerd runc cni-reference cnitool flanneld metrics-server machine e2e-suite e2e-rootfs managers"

# One line every 20 s while a build runs, so that a first run never looks hung.
with_progress() {
  local what=$1 log=$2; shift 2
  "$@" >"$log" 2>&1 & local pid=$! began=$SECONDS
  while kill -0 $pid 2>/dev/null; do
    for _ in $(seq 20); do kill -0 $pid 2>/dev/null || break; sleep 1; done
    kill -0 $pid 2>/dev/null && say "$what: still building after $((SECONDS - began)) s"
  done
  if ! wait $pid; then say "$what: build failed, last lines of $log:"; tail -20 "$log" >&2; return 1; fi
  say "$what: built in $((SECONDS - began)) s"
}

# A throw-away module that requires MODULE@VERSION, with extra go.mod lines on stdin.
scratch_module() {
  local dir=$1 module=$2 version=$3
  mkdir -p "$dir"
  { echo "module parts"; echo "go 1.26"; echo "require $module $version"; cat; } >"$dir/go.mod"
  printf 'package parts\n' >"$dir/parts.go"
}

# k8s.io/kubernetes points its staging modules at its own tree; from outside they are the v0.* releases.
kubernetes_module() {
  local dir=$1 gomod
  gomod=$(go mod download -json "k8s.io/kubernetes@$K8S" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p')
  sed -n 's#^\s*\(k8s.io/[a-z0-9.-]*\) => ./staging/.*#replace \1 => \1 '"v0${K8S#v1}"'#p' "$gomod" |
    scratch_module "$dir" k8s.io/kubernetes "$K8S"
}

# The suite itself, the program that runs it several times at once, and the programs of its stand-in images.
e2e_suite() { # dir outdir
  (cd "$1" && export CGO_ENABLED=0 GOFLAGS=-mod=mod &&
    go test -c -vet=off -trimpath -ldflags "-s -w $(kubernetes_version)" -o "$2/e2e.test" k8s.io/kubernetes/test/e2e)
  go_build "$1" "$2" "" k8s.io/kubernetes/test/images/{agnhost,nonewprivs} github.com/onsi/ginkgo/v2/ginkgo
}

kubernetes_version() {
  echo "-X k8s.io/component-base/version.gitVersion=$K8S -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36 -X k8s.io/client-go/pkg/version.gitVersion=$K8S"
}

e2e_rootfs() { # outdir
  local root=$1/root
  debootstrap --variant=minbase --include="$ROOTFS_PACKAGES" "$(debian)" "$root"
  tar -C "$root" --exclude='./proc/*' --exclude='./sys/*' --exclude='./dev/*' --exclude='./var/lib/apt/lists/*' \
    --exclude='./var/cache/apt/*' --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' --exclude='./usr/share/locale/*' \
    -cf "$1/rootfs.tar" .
  rm -rf "$root"
}

go_build() { # dir outdir ldflags package...
  local dir=$1 out=$2 ld=$3; shift 3
  (cd "$dir" && CGO_ENABLED=${CGO:-0} GOFLAGS=-mod=mod go build -trimpath -ldflags "-s -w $ld" -o "$out/" "$@")
}

# Containers in user namespaces need a runc that maps their mounts. It is C inside, and needs libseccomp with its headers.
runc_build() { # dir outdir
  local headers=$1/headers
  mkdir -p "$headers"
  (cd "$headers" && apt-get -o APT::Sandbox::User=root download libseccomp-dev && dpkg -x ./libseccomp-dev_*.deb .)
  rm -f "$headers"/usr/lib/*/libseccomp.so
  (export PKG_CONFIG_SYSROOT_DIR=$headers PKG_CONFIG_PATH
    PKG_CONFIG_PATH=$(dirname "$(find "$headers" -name libseccomp.pc)")
    cd "$1" && CGO_ENABLED=1 GOFLAGS=-mod=mod go build -trimpath -tags seccomp -ldflags "-s -w -X main.version=${RUNC#v}" \
      -o "$2/" github.com/opencontainers/runc)
}

build() {
  local part=$1 out=$2 work log
  work=$(mktemp -d "$CACHE/.build-$part.XXXXXX"); log=$work/log; mkdir "$work/out"
  case $part in
    kube-*|kubelet|kubectl)
      kubernetes_module "$work/mod"
      with_progress "$part $K8S" "$log" go_build "$work/mod" "$work/out" \
        "$(kubernetes_version)" "k8s.io/kubernetes/cmd/$part" ;;
    managers)
      kubernetes_module "$work/mod"; cp "$HERE/managers/main.go" "$work/mod/parts.go"
      with_progress "the kubelet's managers $K8S" "$log" go_build "$work/mod" "$work/out" "" .
      mv "$work/out/parts" "$work/out/managers" ;;
    e2e-suite)
      kubernetes_module "$work/mod"
      with_progress "the public e2e suite $K8S" "$log" e2e_suite "$work/mod" "$work/out" ;;
    e2e-rootfs)
      with_progress "the root of the suite's images" "$log" e2e_rootfs "$work/out" ;;
    etcd)
      scratch_module "$work/mod" go.etcd.io/etcd/server/v3 $ETCD </dev/null
      with_progress "etcd $ETCD" "$log" go_build "$work/mod" "$work/out" "" go.etcd.io/etcd/server/v3
      mv "$work/out/v3" "$work/out/etcd" 2>/dev/null || mv "$work/out/server" "$work/out/etcd" ;;
    containerd)
      scratch_module "$work/mod" github.com/containerd/containerd/v2 $CONTAINERD </dev/null
      with_progress "containerd $CONTAINERD" "$log" go_build "$work/mod" "$work/out" \
        "-X github.com/containerd/containerd/v2/version.Version=$CONTAINERD" \
        github.com/containerd/containerd/v2/cmd/{containerd,containerd-shim-runc-v2,ctr} ;;
    runc)
      scratch_module "$work/mod" github.com/opencontainers/runc $RUNC </dev/null
      with_progress "runc $RUNC" "$log" runc_build "$work/mod" "$work/out" ;;
    cni-reference)
      scratch_module "$work/mod" github.com/containernetworking/plugins $PLUGINS </dev/null
      with_progress "reference CNI plugins $PLUGINS" "$log" go_build "$work/mod" "$work/out" "" \
        github.com/containernetworking/plugins/plugins/{main/bridge,main/loopback,main/ptp,meta/portmap,meta/firewall,meta/bandwidth,ipam/host-local} ;;
    cnitool)
      scratch_module "$work/mod" github.com/containernetworking/cni $CNITOOL </dev/null
      with_progress "cnitool $CNITOOL" "$log" go_build "$work/mod" "$work/out" "" github.com/containernetworking/cni/cnitool ;;
    flanneld)
      scratch_module "$work/mod" github.com/flannel-io/flannel $FLANNEL </dev/null
      # Its udp backend is C inside.
      CGO=1 with_progress "flanneld $FLANNEL" "$log" go_build "$work/mod" "$work/out" "" github.com/flannel-io/flannel
      mv "$work/out/flannel" "$work/out/flanneld" ;;
    metrics-server)
      scratch_module "$work/mod" sigs.k8s.io/metrics-server $METRICS_SERVER </dev/null
      with_progress "metrics-server $METRICS_SERVER" "$log" go_build "$work/mod" "$work/out" "" sigs.k8s.io/metrics-server/cmd/metrics-server ;;
    machine)
      with_progress "whole machine, kernel $(version_of machine)" "$log" "$HERE/machine.sh" image "$work/out" ;;
  esac
  rm -rf "$out"; mv "$work/out" "$out"; chmod -R u+w "$work"; rm -rf "$work"
}

where() { echo "$CACHE/$1-$(version_of "$1")"; }

given() { # a directory that already has the part, from outside
  local part=$1 path
  if [ -n "${KUBEBUILDER_ASSETS:-}" ] && [ -x "$KUBEBUILDER_ASSETS/$part" ]; then echo "$KUBEBUILDER_ASSETS"; return; fi
  case $part in kubectl|containerd|runc|cni-reference|machine|managers|e2e-*) return 1 ;; esac
  path=$(command -v "$part" 2>/dev/null) || return 1
  case $part in
    etcd) "$path" --version 2>/dev/null | grep -qE 'etcd Version: 3\.(5|6)' || return 1 ;;
    kube*) "$path" --version 2>/dev/null | grep -q "v1\.36\." || return 1 ;;
  esac
  dirname "$path"
}

if [ "${1:-}" = --list ]; then
  for p in $ALL; do d=$(given "$p" || where "$p"); printf '%-26s %-9s %s\n' "$p" "$(version_of "$p")" "$([ -d "$d" ] && echo "$d" || echo '(not built)')"; done
  exit 0
fi
if [ "${1:-}" = --where ]; then
  shift
  for p in "$@"; do
    version_of "$p" >/dev/null || exit 2
    d=$(given "$p" || where "$p"); [ -d "$d" ] || exit 3
    echo "$d"
  done
  exit 0
fi
mkdir -p "$CACHE"
for p in "$@"; do
  version_of "$p" >/dev/null
  if d=$(given "$p"); then echo "$d"; continue; fi
  d=$(where "$p")
  if [ ! -d "$d" ]; then
    [ "$p" = machine ] || [ "$p" = e2e-rootfs ] || command -v go >/dev/null || { say "cannot build $p: Go is not installed (1.26 or newer), and neither KUBEBUILDER_ASSETS nor PATH has it"; exit 3; }
    exec 9>"$CACHE/.lock-$p"; flock 9   # two test runs on one machine build a part once
    [ -d "$d" ] || build "$p" "$d"
    exec 9>&-
  fi
  echo "$d"
done
