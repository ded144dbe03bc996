#!/bin/sh
# Builds the pause binary: build.sh OUT. Does nothing when OUT is newer than its source.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1
if [ "$out" -nt "$here/pause.rs" ] && [ "$out" -nt "$here/build.sh" ]; then exit 0; fi
mkdir -p "$(dirname "$out")"
rustc --edition 2024 --crate-name pause --crate-type bin -O \
    -C panic=abort -C opt-level=s -C strip=symbols -C relocation-model=static \
    -C link-arg=-nostartfiles -C link-arg=-nostdlib -C link-arg=-static \
    -C link-arg=-Wl,--build-id=none,-z,noseparate-code,-z,norelro,--no-eh-frame-hdr,-n \
    -o "$out" "$here/pause.rs"
