//! Compiles the definitions with a compiler written in Rust, so that no protoc has to be installed.

use std::error::Error;

const ROOTS: [&str; 2] = ["runtime_service.proto", "image_service.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=cri");
    println!("cargo:rerun-if-changed=etcd");
    println!("cargo:rerun-if-changed=containerd");
    let definitions = protox::compile(ROOTS, ["cri"])?;
    tonic_prost_build::configure()
        // Ordered maps, so that what is written to the runtime, logged or compared does not change from run to run.
        .btree_map(".")
        // Its Debug is written by hand: credentials must not reach a log.
        .skip_debug(["runtime.v1.AuthConfig"])
        .compile_fds(definitions)?;
    let definitions = protox::compile(["rpc.proto"], ["etcd"])?;
    tonic_prost_build::configure().build_server(false).compile_fds(definitions)?;
    let services = ["images.proto", "content.proto", "leases.proto"];
    let definitions = protox::compile(services, ["containerd"])?;
    tonic_prost_build::configure().build_server(false).btree_map(".").compile_fds(definitions)?;
    Ok(())
}
