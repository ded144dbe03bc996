//! Where the programs under test are: what the build that runs these tests left in its target directory.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// The target directory's folder of the profile that the tests themselves were built with.
pub fn target_dir() -> PathBuf {
    // A test program lies in target/PROFILE/deps, a bench in target/PROFILE.
    let own = std::env::current_exe().unwrap_or_default();
    let dir = own.parent().unwrap_or(Path::new("."));
    if dir.ends_with("deps") { dir.parent().unwrap_or(dir).to_owned() } else { dir.to_owned() }
}

/// Where a bench leaves its pictures.
pub fn bench_dir() -> PathBuf {
    let usual = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from).unwrap_or_else(usual).join("bench")
}

/// The agent: KEELSON_BIN, or `keelson` beside the tests.
pub fn agent() -> Result<PathBuf> {
    program("KEELSON_BIN", "keelson", "cargo build -p keelson")
}

/// The agent as it is shipped, for figures: KEELSON_BIN, or the release build.
pub fn release_agent() -> Result<PathBuf> {
    let beside = target_dir().join("../release/keelson");
    let path = std::env::var_os("KEELSON_BIN").map(PathBuf::from).unwrap_or(beside);
    if !path.is_file() {
        bail!(
            "{} is not there: run `cargo build --release -p keelson` first (or `make bench`)",
            path.display()
        );
    }
    Ok(path)
}

/// An earlier build to measure beside this one: BENCH_BESIDE names the directory of its programs.
pub fn earlier(name: &str) -> Result<Option<PathBuf>> {
    let Some(dir) = std::env::var_os("BENCH_BESIDE").map(PathBuf::from) else { return Ok(None) };
    let path = dir.join(name);
    if !path.is_file() {
        bail!("BENCH_BESIDE has no {}", path.display());
    }
    Ok(Some(path.canonicalize()?))
}

/// The CNI plugins in one program: KEELSON_CNI_BIN, or `keelson-cni` beside the tests.
pub fn cni() -> Result<PathBuf> {
    program("KEELSON_CNI_BIN", "keelson-cni", "cargo build -p keelson-cni")
}

fn program(variable: &str, name: &str, command: &str) -> Result<PathBuf> {
    let path = match std::env::var_os(variable) {
        Some(given) => PathBuf::from(given),
        None => target_dir().join(name),
    };
    if !path.is_file() {
        bail!("{} is not there: run `{command}` first (or `make test`), or set {variable}", path.display());
    }
    Ok(path)
}
