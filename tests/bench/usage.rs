//! What a process has used, as the kernel counts it.

use std::fs;

use anyhow::{Context, Result};

/// Seconds of processor time since it started, of all its threads.
pub fn cpu_seconds(process: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).context("the agent is gone")?;
    // The name, in parentheses, may hold anything; the fields of interest are the 14th and 15th.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 =
        fields.get(11..13).unwrap_or_default().iter().filter_map(|f| f.parse::<u64>().ok()).sum();
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Resident memory in MiB: all of it, and the part that is not backed by a file.
pub fn memory_mib(process: u32) -> Result<(f64, f64)> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).context("the agent is gone")?;
    let field = |name: &str| -> f64 {
        let line = status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().next().and_then(|v| v.parse::<f64>().ok()).unwrap_or_default() / 1024.0
    };
    Ok((field("VmRSS:"), field("RssAnon:")))
}
