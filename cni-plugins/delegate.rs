//! Handing address management on to another plugin.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};

use crate::skel::{self, Attachment, Call, CniResult, Command, Failure, Json};

/// A plugin that another one hands part of its work to.
pub enum Delegate {
    /// The plugin found on CNI_PATH is this very executable, so it is called without starting a process.
    Own(&'static dyn skel::Plugin),
    Foreign(PathBuf),
}

impl Delegate {
    /// Finds the plugin for letting go of what it gave. Should it have been uninstalled meanwhile, the one
    /// in this executable does, if it has one of that type.
    pub fn find_for_release(call: &Call, kind: &str) -> Result<Self, Failure> {
        match (Self::find(call, kind), crate::plugin(kind)) {
            (Err(_), Some(plugin)) => Ok(Delegate::Own(plugin)),
            (found, _) => found,
        }
    }

    /// Finds the plugin of that type on CNI_PATH.
    pub fn find(call: &Call, kind: &str) -> Result<Self, Failure> {
        let path = call.env.get("CNI_PATH");
        let found = path
            .split(':')
            .filter(|dir| !dir.is_empty())
            .map(|dir| Path::new(dir).join(kind))
            .find(|file| file.is_file());
        let Some(file) = found else {
            return Err(Failure::config(format!(
                "\"ipam.type\" is {kind:?}, but CNI_PATH {path} has no such plugin"
            )));
        };
        match crate::plugin(kind) {
            Some(plugin) if is_this_executable(&file) => Ok(Delegate::Own(plugin)),
            _ => Ok(Delegate::Foreign(file)),
        }
    }

    pub fn add(&self, call: &Call, at: &Attachment) -> Result<CniResult, Failure> {
        let file = match self {
            Delegate::Own(plugin) => return plugin.add(call, at),
            Delegate::Foreign(file) => file,
        };
        let stdout = execute(file, call, Command::Add)?;
        let wrong = |why: String| {
            Failure::new(Failure::DECODING, format!("{} gave no proper result", file.display()), why)
        };
        let json: Json = serde_json::from_slice(&stdout).map_err(|e| wrong(e.to_string()))?;
        CniResult::from_json(&json, call.version).map_err(wrong)
    }

    pub fn del(&self, call: &Call, at: &Attachment) -> Result<(), Failure> {
        match self {
            Delegate::Own(plugin) => plugin.del(call, at),
            Delegate::Foreign(file) => execute(file, call, Command::Del).map(drop),
        }
    }

    pub fn check(&self, call: &Call, at: &Attachment) -> Result<(), Failure> {
        match self {
            Delegate::Own(plugin) => plugin.check(call, at),
            Delegate::Foreign(file) => execute(file, call, Command::Check).map(drop),
        }
    }

    pub fn gc(&self, call: &Call) -> Result<(), Failure> {
        match self {
            Delegate::Own(plugin) => plugin.gc(call),
            Delegate::Foreign(file) => execute(file, call, Command::Gc).map(drop),
        }
    }

    pub fn status(&self, call: &Call) -> Result<(), Failure> {
        match self {
            Delegate::Own(plugin) => plugin.status(call),
            Delegate::Foreign(file) => execute(file, call, Command::Status).map(drop),
        }
    }
}

fn is_this_executable(file: &Path) -> bool {
    let identity = |path: &Path| rustix::fs::stat(path).ok().map(|s| (s.st_dev, s.st_ino));
    identity(file).is_some_and(|found| identity(Path::new("/proc/self/exe")) == Some(found))
}

/// Runs a plugin with the same environment and configuration, but possibly another command: an ADD that
/// fails half-way is followed by a DEL.
fn execute(file: &Path, call: &Call, command: Command) -> Result<Vec<u8>, Failure> {
    let failed =
        |what: &str, e: std::io::Error| Failure::io(format!("cannot {what} {}: {e}", file.display()));
    let mut child = Process::new(file)
        .env_clear()
        .envs(call.env.iter())
        .env("CNI_COMMAND", command.as_str())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(|e| failed("run", e))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A plugin that fails early does not read all of it; what it says then matters more.
        let _ = stdin.write_all(&call.stdin);
    }
    let output = child.wait_with_output().map_err(|e| failed("wait for", e))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let reported = serde_json::from_slice::<Json>(&output.stdout).ok();
    let text =
        |key: &str| reported.as_ref().and_then(|v| v.get(key)?.as_str()).unwrap_or_default().to_owned();
    let code = reported.as_ref().and_then(|v| v.get("code")?.as_u64()).and_then(|c| u32::try_from(c).ok());
    match code {
        Some(code) => Err(Failure::new(code, text("msg"), text("details"))),
        None => Err(Failure::internal(format!(
            "{} failed ({}) without saying why",
            file.display(),
            output.status
        ))),
    }
}
