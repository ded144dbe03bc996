//! What there is on a machine, to be compared before and after: whatever is more afterwards was left behind.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::leftovers::entries;
use crate::process::output;
use crate::{cgroups, isolation};

/// One line for each thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot(BTreeSet<String>);

impl Snapshot {
    pub async fn take(directories: &[&str]) -> Result<Self> {
        let mut found = BTreeSet::new();
        found.extend(processes().into_iter().map(|p| format!("process {p}")));
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        found.extend(mounts.lines().filter_map(|l| l.split(' ').nth(4)).map(|m| format!("mount {m}")));
        let links = output("ip", &["-brief", "link"]).await?;
        found.extend(
            links.lines().filter_map(|l| l.split([' ', '@']).next()).map(|l| format!("interface {l}")),
        );
        let rules = output("nft", &["list", "ruleset"]).await?;
        found.extend(rules.lines().map(|r| format!("rule {}", r.trim())));
        // Cgroups are seen from everywhere; those of suites beside this one come and go.
        let own = isolation::cgroup_name();
        let of_others = |name: &String| name.starts_with(cgroups::PREFIX) && !name.starts_with(&own);
        found.extend(cgroups::below("").into_iter().filter(|c| !of_others(c)).map(|c| format!("cgroup {c}")));
        let routes = output("ip", &["route", "show", "table", "all"]).await?;
        // Those of the rig's own interfaces come by themselves, some time after them.
        let others = routes.lines().filter(|r| !r.contains("dev rig"));
        found.extend(others.map(|r| format!("route {}", r.trim())));
        for dir in directories {
            found.extend(entries(Path::new(dir)).into_iter().map(|e| format!("file {dir}/{e}")));
        }
        Ok(Self(found))
    }

    /// What is here and was not there.
    pub fn more_than(&self, before: &Self) -> Vec<String> {
        self.0.difference(&before.0).cloned().collect()
    }
}

/// The programs that run, by name and without kernel threads, counted so that a second one shows.
fn processes() -> Vec<String> {
    let mut names: Vec<String> = entries(Path::new("/proc"))
        .into_iter()
        .filter(|n| n.parse::<u32>().is_ok())
        .filter_map(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            (!line.trim().is_empty()).then(|| line.trim().to_owned())
        })
        .collect();
    names.sort();
    let mut counted: Vec<String> = vec![];
    for (n, name) in names.iter().enumerate() {
        let twins = names[..n].iter().filter(|other| *other == name).count();
        counted.push(format!("{name} #{twins}"));
    }
    counted
}
