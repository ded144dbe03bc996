//! The real parts that `tests/parts.sh` builds.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::Missing;

/// The directory of a part, if it is built or given from outside. The versions are the script's to know.
pub fn part(name: &str) -> Result<PathBuf, Missing> {
    static KNOWN: LazyLock<Mutex<HashMap<String, Option<PathBuf>>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let found = known.entry(name.to_owned()).or_insert_with(|| find(name));
    found.clone().ok_or_else(|| missing_part(name))
}

pub fn missing_part(name: &str) -> Missing {
    let remedy = format!("tests/parts.sh {name} builds it, with Go 1.26 or newer and a network");
    Missing::new(format!("the part {name}"), remedy)
}

fn find(name: &str) -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../parts.sh");
    let out = Command::new(script).args(["--where", name]).stderr(Stdio::null()).output().ok()?;
    let dir = PathBuf::from(String::from_utf8(out.stdout).ok()?.trim());
    (out.status.success() && dir.is_dir()).then_some(dir)
}
