//! What a cgroup may use, and how each version of cgroups takes it.

use std::collections::BTreeMap;
use std::path::Path;

use keelson_core::resources::{KeptMemory, PodCgroupResources};

use super::CgroupError;
use super::layout::{Layout, Version, write};

pub(super) const MIN_SHARES: u64 = 2;
const MAX_SHARES: u64 = 262_144;
const DEFAULT_PERIOD_MICROS: u64 = 100_000;

/// What is not set is left as it is; a negative number means no limit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Limits {
    pub cpu_shares: Option<u64>,
    /// Microseconds of processor time in each period.
    pub cpu_quota_micros: Option<i64>,
    /// 100 ms unless set.
    pub cpu_period_micros: Option<u64>,
    pub memory_bytes: Option<i64>,
    pub pids: Option<i64>,
    /// Bytes by the size of a page, as the kernel names it: 2MB, 1GB.
    pub hugepages: BTreeMap<String, u64>,
    /// Bytes that the kernel keeps for the cgroup. v1 has nothing of the kind.
    pub kept_memory: KeptMemory,
}

/// The weight of v2 (1 to 10000) that stands for shares of v1 (2 to 262144), as the kubelet converts it.
pub fn shares_to_weight(shares: u64) -> u64 {
    1 + (shares.clamp(MIN_SHARES, MAX_SHARES) - MIN_SHARES) * 9999 / (MAX_SHARES - MIN_SHARES)
}

impl Limits {
    pub(super) fn period(&self) -> u64 {
        self.cpu_period_micros.unwrap_or(DEFAULT_PERIOD_MICROS)
    }

    /// Writes every limit that is set into the files of a cgroup. A controller that the machine lacks is passed over if
    /// pods can do without it, as they can without pids and hugetlb.
    pub(super) fn write(&self, layout: &Layout, relative: &Path) -> Result<(), CgroupError> {
        let values = match layout.version {
            Version::V1 => self.v1(),
            Version::V2 => self.v2(),
        };
        for (controller, file, value) in values {
            match layout.of(controller) {
                Some(hierarchy) => {
                    let path = hierarchy.path.join(relative).join(&file);
                    // What is set aside and not used yet is counted by newer kernels only.
                    if file.contains(".rsvd.") && !path.exists() {
                        continue;
                    }
                    match write(&path, &value) {
                        // The controller is there, but somebody does not hand it down.
                        Err(e) if controller == "hugetlb" && !path.exists() => {
                            tracing::debug!(error = %e, "huge pages are not bounded");
                        }
                        done => done?,
                    }
                }
                None if controller == "pids" || controller == "hugetlb" => {}
                None => return Err(CgroupError::MissingController { controller }),
            }
        }
        Ok(())
    }

    fn v1(&self) -> Vec<(&'static str, String, String)> {
        let mut values = Vec::new();
        let mut set =
            |controller, file: &str, value: String| values.push((controller, file.to_owned(), value));
        if let Some(shares) = self.cpu_shares {
            set("cpu", "cpu.shares", shares.clamp(MIN_SHARES, MAX_SHARES).to_string());
        }
        if let Some(quota) = self.cpu_quota_micros {
            set("cpu", "cpu.cfs_period_us", self.period().to_string());
            set("cpu", "cpu.cfs_quota_us", quota.max(-1).to_string());
        }
        if let Some(bytes) = self.memory_bytes {
            set("memory", "memory.limit_in_bytes", bytes.max(-1).to_string());
        }
        if let Some(pids) = self.pids {
            set("pids", "pids.max", or_max(pids));
        }
        for (page, bytes) in &self.hugepages {
            set("hugetlb", &format!("hugetlb.{page}.limit_in_bytes"), bytes.to_string());
            set("hugetlb", &format!("hugetlb.{page}.rsvd.limit_in_bytes"), bytes.to_string());
        }
        values
    }

    fn v2(&self) -> Vec<(&'static str, String, String)> {
        let mut values = Vec::new();
        let mut set =
            |controller, file: &str, value: String| values.push((controller, file.to_owned(), value));
        if let Some(shares) = self.cpu_shares {
            set("cpu", "cpu.weight", shares_to_weight(shares).to_string());
        }
        if let Some(quota) = self.cpu_quota_micros {
            set("cpu", "cpu.max", format!("{} {}", or_max(quota), self.period()));
        }
        if let Some(bytes) = self.memory_bytes {
            set("memory", "memory.max", or_max(bytes));
        }
        for (file, kept) in [("memory.min", self.kept_memory.min), ("memory.low", self.kept_memory.low)] {
            if let Some(bytes) = kept {
                set("memory", file, bytes.max(0).to_string());
            }
        }
        if let Some(pids) = self.pids {
            set("pids", "pids.max", or_max(pids));
        }
        for (page, bytes) in &self.hugepages {
            set("hugetlb", &format!("hugetlb.{page}.max"), bytes.to_string());
            set("hugetlb", &format!("hugetlb.{page}.rsvd.max"), bytes.to_string());
        }
        values
    }
}

fn or_max(value: i64) -> String {
    if value < 0 { "max".into() } else { value.to_string() }
}

impl From<PodCgroupResources> for Limits {
    fn from(of: PodCgroupResources) -> Self {
        Self {
            cpu_shares: of.cpu_shares.map(|n| n.try_into().unwrap_or(MIN_SHARES)),
            cpu_quota_micros: of.cpu_quota,
            cpu_period_micros: of.cpu_period.and_then(|n| n.try_into().ok()),
            memory_bytes: of.memory_limit,
            pids: None,
            hugepages: of.hugepages.into_iter().collect(),
            kept_memory: of.kept_memory,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_become_weights_as_other_tools_compute_them() {
        for (shares, weight) in
            [(0, 1), (2, 1), (102, 4), (1024, 39), (2048, 79), (262_144, 10_000), (u64::MAX, 10_000)]
        {
            assert_eq!(shares_to_weight(shares), weight, "{shares} shares");
        }
    }
}
