//! What this process itself uses, for the metrics that every exporter has.

use std::fs;
use std::path::Path;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Process {
    pub cpu_seconds: f64,
    pub resident_bytes: u64,
    pub virtual_bytes: u64,
    pub open_files: u64,
    pub most_files: Option<u64>,
    /// Since the epoch.
    pub started: f64,
}

/// `None` where /proc does not say.
pub fn own_process(proc: &Path) -> Option<Process> {
    let this = proc.join("self");
    let stat = fs::read_to_string(this.join("stat")).ok()?;
    // The name in parentheses may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |field: usize| fields.get(field)?.parse::<u64>().ok();
    #[expect(clippy::cast_precision_loss, reason = "seconds since the boot")]
    let seconds = |ticks: u64| ticks as f64 / 100.0;
    let boot = fs::read_to_string(proc.join("stat")).ok()?;
    let boot: f64 = boot.lines().find_map(|l| l.strip_prefix("btime ")?.trim().parse().ok())?;
    let limits = fs::read_to_string(this.join("limits")).unwrap_or_default();
    let most = limits
        .lines()
        .find_map(|l| l.strip_prefix("Max open files")?.split_whitespace().next()?.parse().ok());
    Some(Process {
        cpu_seconds: seconds(number(11)? + number(12)?),
        started: boot + seconds(number(19)?),
        virtual_bytes: number(20)?,
        resident_bytes: number(21)? * rustix::param::page_size() as u64,
        open_files: fs::read_dir(this.join("fd")).map_or(0, |d| d.count() as u64),
        most_files: most,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_read() {
        let own = own_process(Path::new("/proc")).expect("process");
        assert!(own.resident_bytes > 100_000 && own.virtual_bytes >= own.resident_bytes, "{own:?}");
        assert!(own.open_files >= 3 && own.started > 1.5e9, "{own:?}");
    }
}
