#!/usr/bin/env bash
# Installs what is missing on a Debian machine: deps.sh run | test. What tests miss only leaves some of them out, so for
# them one line says what a machine cannot have; with CI=true that is a failure.
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }
die() { say "keelson: $*"; exit 1; }

# command:package, the command being what the package is needed for
run=(containerd:containerd runc:runc ctr:containerd ip:iproute2 setsid:util-linux)
test=("${run[@]}" docker-registry:docker-registry nft:nftables iptables:iptables conntrack:conntrack openssl:openssl
  curl:curl strace:strace modprobe:kmod qemu-system-x86_64:qemu-system-x86 qemu-img:qemu-utils debootstrap:debootstrap
  mke2fs:e2fsprogs cpio:cpio bash-static:bash-static iperf3:iperf3 pkg-config:pkg-config)

case ${1:-} in
  run) wanted=("${run[@]}") ;;
  test) wanted=("${test[@]}") ;;
  *) die "usage: deps.sh run | test" ;;
esac

[ "$1" = test ] || [ "$(id -u)" = 0 ] || die "this needs root: it starts containers (try: sudo make $1)"
# Cannot be had: the end for `run`, and with CI=true.
without() {
  [ "$1" = test ] && [ "${CI:-}" != true ] || die "$2"
  say "keelson: $2"
  exit 0
}
export PATH=$PATH:/usr/sbin:/sbin
for tool in cargo rustc cc; do
  command -v $tool >/dev/null || die "$tool is not there: install the Rust toolchain and a C compiler (rustup, build-essential)"
done

missing=()
for pair in "${wanted[@]}"; do
  command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
done
if [ "$1" = test ] && ldd "$(command -v busybox || echo /nonexistent)" >/dev/null 2>&1; then missing+=(busybox-static); fi
if [ "$1" = test ] && ! command -v busybox >/dev/null; then missing+=(busybox-static); fi
[ ${#missing[@]} -gt 0 ] || exit 0
mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
[ "$(id -u)" = 0 ] || without "$1" "not installed: ${missing[*]} (as root: packaging/deps.sh $1)"
command -v apt-get >/dev/null || without "$1" "not installed: ${missing[*]} (this script only knows Debian's apt-get)"

say "installing: ${missing[*]}"
# A package brings its service along. It is not ours to start: what runs on this machine stays as it was.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  printf '#!/bin/sh\nexit 101\n' >$policy
  chmod +x $policy
  trap 'rm -f $policy' EXIT
fi
install() { DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"; }
log=$(mktemp)
if ! install >"$log" 2>&1; then
  apt-get update -q >>"$log" 2>&1 || without "$1" "not installed: ${missing[*]} (apt-get update failed, see $log; without a network install them by hand)"
  install >>"$log" 2>&1 || without "$1" "not installed: ${missing[*]} (apt-get install failed, see $log)"
fi
rm -f "$log"
