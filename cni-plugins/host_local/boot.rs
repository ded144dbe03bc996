//! Which boot of the host this is. Containers do not outlive one, so neither do their leases.

use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, StatxFlags, statfs, statx};
use rustix::time::{ClockId, clock_gettime};

use crate::skel::Failure;

const TMPFS_MAGIC: u64 = 0x0102_1994;

#[derive(Debug, Clone)]
pub struct Boot {
    pub id: String,
    /// No file written before this is of this boot.
    pub began: SystemTime,
}

impl Boot {
    pub fn now() -> Result<Self, Failure> {
        let id = keelson_netkit::sysctl::get("kernel/random/boot_id")?;
        let uptime = clock_gettime(ClockId::Boottime);
        let uptime = Duration::new(uptime.tv_sec.unsigned_abs(), uptime.tv_nsec.unsigned_abs() as u32);
        let by_the_clock = SystemTime::now().checked_sub(uptime).unwrap_or(SystemTime::UNIX_EPOCH);
        // A clock that was set forward since the boot makes the boot look later than it was, and leases
        // older than they are. What was made in memory early in this boot has the clock of that time.
        let began =
            ["/run", "/dev"].into_iter().filter_map(made_in_memory).fold(by_the_clock, SystemTime::min);
        Ok(Boot { id, began })
    }
}

/// When a filesystem in memory was made, as its own clock said then.
fn made_in_memory(path: &str) -> Option<SystemTime> {
    if statfs(path).ok()?.f_type as u64 != TMPFS_MAGIC {
        return None;
    }
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::BTIME).ok()?;
    if found.stx_mask & StatxFlags::BTIME.bits() == 0 {
        return None;
    }
    let since = Duration::new(u64::try_from(found.stx_btime.tv_sec).ok()?, found.stx_btime.tv_nsec);
    SystemTime::UNIX_EPOCH.checked_add(since)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_boot_began_before_this_test() {
        let boot = Boot::now().unwrap();
        assert!(boot.began < SystemTime::now());
        assert_eq!(boot.id.len(), 36);
    }
}
