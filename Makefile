# run, stop: a standalone node with an example pod.   check, e2e, test: loops for whoever changes something (CONTRIBUTING.md).
# audit: the dependencies.   bench: figures.   install: as a package would.
DESTDIR ?=
TARGET := $(or $(CARGO_TARGET_DIR),target)

# What these compile they share: the same compiler (clippy inside, see .ci/lint), the same features of dependencies
# (--workspace), the same way of compiling.
LOOPS := check e2e test run conformance
$(LOOPS): export RUSTC_WORKSPACE_WRAPPER := $(CURDIR)/.ci/lint
ifeq ($(CI),true)
# What would make the next compilation quicker makes this one slower by a sixth.
$(LOOPS): export CARGO_INCREMENTAL := 0
endif
run conformance: export KEELSON_LINT := warn

.DEFAULT_GOAL := build
include cni-plugins/Makefile.inc

build:
	cargo build --release -p keelson
	packaging/pause/build.sh $(TARGET)/pause

# The quick profile: built in a fraction of the time, and quick enough to show.
run:
	@packaging/deps.sh run
	@echo "==> building (the first time takes a few minutes)"
	cargo build --workspace --bin keelson --bin keelson-cni
	@CARGO_TARGET_DIR=$(abspath $(TARGET)) CRI_SOCKET="$(CRI_SOCKET)" packaging/demo.sh start

stop:
	@CARGO_TARGET_DIR=$(abspath $(TARGET)) packaging/demo.sh stop

# Format, lints and unit tests: minutes, and no rights but a user's.
check:
	@.ci/format
	@.ci/compile
	cargo test --workspace --lib --bins

# One end-to-end suite, or the cases of it whose names contain something: make e2e SUITE=pods, make e2e SUITE=pods::grace
e2e:
	@packaging/deps.sh test
	packaging/pause/build.sh $(TARGET)/pause
	cargo build --workspace --bins --test e2e
	cargo test --workspace --test e2e -- $(SUITE)

# Everything that this machine can do.
test:
	@.ci/test

# Licences, sources, doubles and bans of the dependencies (deny.toml), and known advisories where they can be fetched.
audit:
	@.ci/audit

bench: build bench-cni bench-overlay
	cargo run --release -p keelson-tests --bin bench

# The public e2e suite's tests of a node. FOCUS= and SKIP= choose others, AT_ONCE= how many run beside each other.
conformance:
	@packaging/deps.sh test
	packaging/pause/build.sh $(TARGET)/pause
	cargo build --workspace --bin keelson --bin keelson-cni --bin conformance
	FOCUS="$(FOCUS)" SKIP="$(SKIP)" AT_ONCE="$(AT_ONCE)" $(TARGET)/debug/conformance

# What the kubelet's own managers of CPUs, memory and topology decide for machines and pods that nobody has seen yet (SEED=), and
# whether the agent's decide the same. The unit tests keep those of the first seed.
differential:
	$$(tests/parts.sh managers)/managers -seed $(or $(SEED),$$(date +%s)) -cases 1000 -merges 2000 >$(TARGET)/decisions.jsonl
	KEELSON_DECISIONS=$(abspath $(TARGET))/decisions.jsonl cargo test --workspace --lib decides_as_the_kubelet_does

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

.PHONY: build run stop check e2e test audit bench bench-overlay conformance differential install
