# run, stop: a standalone node with an example pod.   test: everything.   bench: figures.   install: as a package would.
DESTDIR ?=
TARGET := $(or $(CARGO_TARGET_DIR),target)
# With the features that the workspace's tests are built with, so that no dependency is compiled for each of them.
AS_TESTED := --workspace

.DEFAULT_GOAL := build
include cni-plugins/Makefile.inc

build:
	cargo build --release -p keelson
	packaging/pause/build.sh $(TARGET)/pause

# The quick profile: built in a fraction of the time, and quick enough to show.
run:
	@packaging/deps.sh run
	@echo "==> building (the first time takes a few minutes)"
	cargo build $(AS_TESTED) --bin keelson --bin keelson-cni
	@CARGO_TARGET_DIR=$(abspath $(TARGET)) CRI_SOCKET="$(CRI_SOCKET)" packaging/demo.sh start

stop:
	@CARGO_TARGET_DIR=$(abspath $(TARGET)) packaging/demo.sh stop

# Clippy lints what is compiled for the tests, as it is compiled.
test: export RUSTC_WORKSPACE_WRAPPER := $(CURDIR)/.ci/lint
# What would make the next compilation quicker makes this one slower by a sixth.
test: export CARGO_INCREMENTAL := 0
test:
	@packaging/deps.sh test
	@packaging/parts.sh
	cargo fmt --all --check
	packaging/pause/build.sh $(TARGET)/pause
	cargo build --workspace --all-targets
	cargo test --workspace

bench: build bench-cni bench-overlay
	cargo run --release -p keelson-tests --bin bench

# The public e2e suite's tests of a node. FOCUS= and SKIP= choose others, AT_ONCE= how many run beside each other.
conformance:
	@packaging/deps.sh test
	packaging/pause/build.sh $(TARGET)/pause
	cargo build $(AS_TESTED) --bin keelson --bin keelson-cni --bin conformance
	FOCUS="$(FOCUS)" SKIP="$(SKIP)" AT_ONCE="$(AT_ONCE)" $(TARGET)/debug/conformance

# The overlay's udp path beside flanneld's, the kernel's vxlan and plain routing.
bench-overlay:
	@tests/parts.sh flanneld etcd >/dev/null || true
	cargo build --release -p keelson --bin keelson
	cargo run --release -p keelson-overlay-udp --bin bench-overlay

install: build
	install -D -m 0755 $(TARGET)/release/keelson $(DESTDIR)/usr/bin/keelson
	install -D -m 0644 packaging/systemd/keelson.service $(DESTDIR)/usr/lib/systemd/system/keelson.service
	install -D -m 0644 packaging/systemd/keelson.default $(DESTDIR)/etc/default/keelson
	install -D -m 0644 packaging/systemd/keelson-overlay.service $(DESTDIR)/usr/lib/systemd/system/keelson-overlay.service
	install -D -m 0644 packaging/systemd/keelson-overlay.default $(DESTDIR)/etc/default/keelson-overlay
	install -D -m 0644 packaging/overlay/keelson-overlay.yaml $(DESTDIR)/usr/share/doc/keelson/examples/keelson-overlay.yaml
	install -D -m 0644 packaging/config.yaml $(DESTDIR)/etc/keelson/config.yaml
	install -d -m 0755 $(DESTDIR)/etc/keelson/config.d $(DESTDIR)/etc/keelson/manifests
	install -D -m 0644 packaging/example/pod.yaml $(DESTDIR)/usr/share/doc/keelson/examples/pod.yaml
	install -D -m 0644 README.md $(DESTDIR)/usr/share/doc/keelson/README.md
	install -D -m 0644 CHANGELOG.md $(DESTDIR)/usr/share/doc/keelson/CHANGELOG.md
	install -D -m 0644 LICENSE $(DESTDIR)/usr/share/doc/keelson/copyright

.PHONY: build run stop test bench bench-overlay conformance install
