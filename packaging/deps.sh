#!/usr/bin/env bash
# Installs what is missing on a Debian machine: deps.sh run | test
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }
die() { say "keelson: $*"; exit 1; }

# command:package, the command being what the package is needed for
run=(containerd:containerd runc:runc ctr:containerd ip:iproute2 setsid:util-linux)
test=("${run[@]}" docker-registry:docker-registry nft:nftables iptables:iptables conntrack:conntrack openssl:openssl
  curl:curl strace:strace modprobe:kmod qemu-system-x86_64:qemu-system-x86 qemu-img:qemu-utils debootstrap:debootstrap
  mke2fs:e2fsprogs cpio:cpio bash-static:bash-static iperf3:iperf3)

case ${1:-} in
  run) wanted=("${run[@]}") ;;
  test) wanted=("${test[@]}") ;;
  *) die "usage: deps.sh run | test" ;;
esac

[ "$(id -u)" = 0 ] || die "this needs root: it starts containers (try: sudo make $1)"
export PATH=$PATH:/usr/sbin:/sbin
for tool in cargo rustc cc; do
  command -v $tool >/dev/null || die "$tool is not there: install the Rust toolchain and a C compiler (rustup, build-essential)"
done
if [ "$1" = test ]; then
  for tool in rustfmt clippy-driver; do
    command -v $tool >/dev/null || die "$tool is not there: add it to the Rust toolchain (rustup component add rustfmt clippy)"
  done
fi

missing=()
for pair in "${wanted[@]}"; do
  command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
done
if [ "$1" = test ] && ldd "$(command -v busybox || echo /nonexistent)" >/dev/null 2>&1; then missing+=(busybox-static); fi
if [ "$1" = test ] && ! command -v busybox >/dev/null; then missing+=(busybox-static); fi
[ ${#missing[@]} -gt 0 ] || exit 0
command -v apt-get >/dev/null || die "not there: ${missing[*]}; install them (this script only knows Debian's apt-get)"

mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
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
  apt-get update -q >>"$log" 2>&1 || { tail -5 "$log" >&2; die "apt-get update failed; without a network, install by hand: ${missing[*]}"; }
  install >>"$log" 2>&1 || { tail -15 "$log" >&2; die "apt-get could not install: ${missing[*]}"; }
fi
rm -f "$log"
