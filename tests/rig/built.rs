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

/// The agent: KEELSON_BIN, or `keelson` beside the tests.
pub fn agent() -> Result<PathBuf> {
    program("KEELSON_BIN", "keelson", "cargo build -p keelson")
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
