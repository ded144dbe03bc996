//! Runs iptables, where the machine has it: which of its two kinds it is decides what others see of what it makes.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use keelson_core::firewall::{Ensure, Family};

/// Far longer than it waits for its own turn.
const LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum IptablesError {
    /// It is not installed, or the kernel has no such tables.
    #[error("{program} cannot be used: {why}")]
    Unusable { program: &'static str, why: String },
    #[error("{program} {}: {why}", arguments.join(" "))]
    Failed { program: &'static str, arguments: Vec<&'static str>, why: String },
}

/// Whether it is there.
pub async fn is_there(family: Family, wanted: &Ensure) -> Result<bool, IptablesError> {
    run(family, &wanted.check()).await.map(|refused| refused.is_none())
}

/// Makes it if it is not there.
pub async fn ensure(family: Family, wanted: &Ensure) -> Result<(), IptablesError> {
    if is_there(family, wanted).await? {
        return Ok(());
    }
    let arguments = wanted.make();
    match run(family, &arguments).await? {
        None => Ok(()),
        // Somebody else may have made it in between.
        Some(_) if is_there(family, wanted).await? => Ok(()),
        Some(why) => Err(IptablesError::Failed { program: program(family), arguments, why }),
    }
}

fn program(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "iptables",
        Family::Ipv6 => "ip6tables",
    }
}

/// None where it succeeded, else what it complained about.
async fn run(family: Family, arguments: &[&str]) -> Result<Option<String>, IptablesError> {
    let program = program(family);
    let mut command = tokio::process::Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let unusable = |e: io::Error| IptablesError::Unusable { program, why: e.to_string() };
    let ended = tokio::time::timeout(LIMIT, command.output()).await.unwrap_or_else(|e| Err(e.into()));
    let ended = ended.map_err(unusable)?;
    if ended.status.success() {
        return Ok(None);
    }
    let why = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
    // What it says where the kernel has no such tables, or where the process may not change them.
    if ended.status.code() == Some(3) {
        return Err(IptablesError::Unusable { program, why });
    }
    Ok(Some(why))
}
