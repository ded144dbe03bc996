#!/usr/bin/env bash
# A whole machine for tests, under qemu: Debian's cloud kernel and a debootstrapped root, with systemd, cgroup v2 and
# kernel modules. It shows what namespaces cannot: units, the systemd cgroup driver, reboots.
#
#   machine.sh version             prints the kernel that an image made now would boot, and the image's revision
#   machine.sh image DIR           makes DIR/{vmlinuz,initrd,root.img}; tests/parts.sh caches it
#   machine.sh boot DIR STATE      boots the machine whose disk is STATE/disk.qcow2, made on first use; the same STATE again
#                                  is a reboot. STATE/host is unpacked to /host inside and /host/run is executed as root.
#                                  What it prints appears here, then the machine powers off; its status is ours.
#                                  QEMU_ARGS adds devices, MACHINE_TIMEOUT (300) is in seconds.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

PACKAGES=systemd,systemd-sysv,udev,dbus,iproute2,kmod,procps,ca-certificates,curl,nftables,containerd,runc
# One more when what an image holds changes, so that none from before is taken out of the cache.
REVISION=2

kernel_package() { apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image/ {print $2; exit}'; }

version() { kernel_package | sed "s/^linux-image-//; s/\$/-r$REVISION/"; }

suite() { . /etc/os-release; echo "${VERSION_CODENAME:-bookworm}"; }

image() {
  local dir=$1 kernel modules
  mkdir -p "$dir"; cd "$dir"
  debootstrap --variant=minbase --include="$PACKAGES" "$(suite)" root
  mkdir kernel
  (cd kernel && apt-get -o APT::Sandbox::User=root download "$(kernel_package)" && dpkg -x ./*.deb .)
  kernel=$(ls kernel/boot/vmlinuz-*); modules=$(find kernel -path '*/lib/modules/*' -prune -type d)
  mkdir -p root/usr/lib/modules
  cp -r "$modules" root/usr/lib/modules/
  cp "$kernel" vmlinuz
  depmod -b root "$(basename "$modules")"
  prepare_root
  initrd "$(basename "$modules")"
  truncate -s 4G root.img
  mke2fs -q -F -t ext4 -d root root.img
  rm -rf root kernel early
}

# The guest runs one script and powers off; its exit status goes over the console.
prepare_root() {
  echo machine >root/etc/hostname
  printf '127.0.0.1 localhost machine\n::1 localhost\n' >root/etc/hosts
  printf '%s\n' overlay br_netfilter >root/etc/modules-load.d/pods.conf
  rm -rf root/var/cache/apt/archives/*.deb root/var/lib/apt/lists/* root/usr/share/{doc,man,locale}/*
  cat >root/etc/systemd/system/host-script.service <<'UNIT'
[Unit]
Description=Run the script that came with this boot
After=multi-user.target

[Service]
Type=oneshot
StandardOutput=file:/dev/ttyS0
StandardError=inherit
ExecStart=/bin/sh -c 'rm -rf /host; mkdir /host; tar -xf /dev/vdb -C /host; /host/run; echo host-script-status=$?; sync; systemctl --no-block poweroff'

[Install]
WantedBy=multi-user.target
UNIT
  # A login prompt would reset the console in the middle of the script's output.
  ln -sf /dev/null root/etc/systemd/system/serial-getty@ttyS0.service
  # Timers that would start in the middle of a test.
  for unit in apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer systemd-networkd-wait-online.service; do
    ln -sf /dev/null "root/etc/systemd/system/$unit"
  done
  ln -sf /etc/systemd/system/host-script.service root/etc/systemd/system/multi-user.target.wants/
}

# The smallest way to a mounted root: the modules of the disk and its file system, and busybox.
initrd() {
  local n=10
  mkdir -p early/{bin,dev,proc,sys,root,modules}
  cp "$(command -v busybox)" early/bin/busybox
  for module in virtio_pci virtio_blk ext4; do modprobe -d "$PWD/root" -S "$1" --show-depends "$module"; done |
    awk '$1 == "insmod" && !seen[$2]++ {print $2}' |
    while read -r file; do cp "$file" "early/modules/$n-$(basename "$file")"; n=$((n + 1)); done
  cat >early/init <<'INIT'
#!/bin/busybox sh
bb=/bin/busybox
$bb mount -t proc proc /proc; $bb mount -t sysfs sysfs /sys; $bb mount -t devtmpfs dev /dev
for m in /modules/*; do $bb insmod "$m"; done
n=0; until [ -e /dev/vda ] || [ $n -gt 50 ]; do $bb sleep 0.1; n=$((n + 1)); done
$bb mount -t ext4 /dev/vda /root && $bb mount --move /dev /root/dev && exec $bb switch_root /root /sbin/init
INIT
  chmod +x early/init
  (cd early && find . | cpio -o -H newc --quiet | gzip) >initrd
}

boot() {
  local dir state status
  dir=$(realpath "$1"); state=$(realpath "$2")
  [ -e "$state/disk.qcow2" ] || qemu-img create -q -f qcow2 -b "$dir/root.img" -F raw "$state/disk.qcow2"
  tar -C "$state/host" -cf "$state/host.tar" .
  # Software emulation: nested virtualisation is not to be had where tests usually run.
  # shellcheck disable=SC2086
  timeout "${MACHINE_TIMEOUT:-300}" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 2G \
    -nographic -no-reboot -nic none -kernel "$dir/vmlinuz" -initrd "$dir/initrd" \
    -append "console=ttyS0 quiet loglevel=3 systemd.show_status=false panic=1 mitigations=off" \
    -drive file="$state/disk.qcow2",if=virtio,cache=unsafe \
    -drive file="$state/host.tar",if=virtio,format=raw,readonly=on ${QEMU_ARGS:-} </dev/null | tee "$state/console"
  status=$(tr -d '\r' <"$state/console" | sed -n 's/^.*host-script-status=\([0-9]*\).*/\1/p' | tail -1)
  [ -n "$status" ] || { echo "machine: the script inside did not finish" >&2; return 125; }
  return "$status"
}

command=$1; shift; "$command" "$@"
