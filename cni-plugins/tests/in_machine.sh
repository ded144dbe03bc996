#!/usr/bin/env bash
# Runs the plugins' tests in a whole machine, whose kernel has what this one may lack: bridge VLAN filtering.
#
#   cni-plugins/tests/in_machine.sh [TEST...]     by default those that concern VLANs
set -euo pipefail
cd "$(dirname "$0")/../.."
machine=$(tests/parts.sh machine) reference=$(tests/parts.sh cni-reference)
state=$(mktemp -d); trap 'rm -rf "$state"' EXIT
mkdir -p "$state/host/reference"

executables=$(cargo test -p keelson-cni --no-run --message-format=json 2>/dev/null |
  sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | sort -u)
# The tests know the plugins' executable by the path it was built at.
plugin=$(grep '/keelson-cni$' <<<"$executables")
cp "$plugin" "$state/host/keelson-cni"
cp "$reference"/* "$state/host/reference/"
for name in bad_input differential faults plugins; do
  cp "$(grep "/deps/$name-" <<<"$executables" | head -1)" "$state/host/$name"
done
cat >"$state/host/run" <<RUN
#!/bin/sh
export CNI_REFERENCE=/host/reference HOME=/root RUST_BACKTRACE=0
mkdir -p "$(dirname "$plugin")" && cp /host/keelson-cni "$plugin"
modprobe bridge; modprobe veth
rc=0
if [ -n "$*" ]; then
  for t in $*; do /host/\$t || rc=1; done
else
  CASE=vlan /host/differential everything || rc=1
  /host/faults vlan || rc=1
  /host/plugins || rc=1
fi
exit \$rc
RUN
chmod +x "$state/host/run"
MACHINE_TIMEOUT=${MACHINE_TIMEOUT:-900} tests/machine.sh boot "$machine" "$state"
