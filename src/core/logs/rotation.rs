//! When and how a log is rotated. The names are those that a kubelet gives, so that either goes on where the other
//! stopped: `0.log`, `0.log.20260102-030405`, `0.log.20260102-030405.gz`, and `.tmp` for one that is being compressed.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

const GZ: &str = ".gz";
const TMP: &str = ".tmp";
const FORMAT: &str = "%Y%m%d-%H%M%S";

/// What is to be done before the log itself is moved aside.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    pub remove: Vec<String>,
    pub compress: Vec<String>,
    /// The log's next name.
    pub aside: String,
}

/// `others` are the names beside `log` in its directory; those that are not its rotated files are left alone.
pub fn plan(log: &str, others: &[String], max_files: usize, now: Timestamp) -> Plan {
    let rotated: BTreeSet<&str> = others.iter().map(String::as_str).filter(|n| is_rotated(log, n)).collect();
    let (mut remove, mut kept) = (Vec::new(), Vec::new());
    for name in &rotated {
        // Left by a crash: a half-written archive, or a file whose archive is complete.
        let useless =
            name.ends_with(TMP) || (!name.ends_with(GZ) && rotated.contains(format!("{name}{GZ}").as_str()));
        if useless { remove.push((*name).to_owned()) } else { kept.push((*name).to_owned()) }
    }
    // The log that is now moved aside and the new one count too.
    let excess = kept.len().saturating_sub(max_files.saturating_sub(2));
    remove.extend(kept.drain(..excess));
    let aside = next_name(log, others, now);
    kept.retain(|name| !name.ends_with(GZ));
    Plan { remove, compress: kept, aside }
}

pub fn archive_name(rotated: &str) -> String {
    format!("{rotated}{GZ}")
}

pub fn temporary_name(rotated: &str) -> String {
    format!("{rotated}{TMP}")
}

/// A rotated file that is not compressed: its order among the others is that of its name.
pub fn is_plain_rotated(log: &str, name: &str) -> bool {
    stamp_of(log, name).is_some_and(|(_, rest)| rest.is_empty())
}

fn is_rotated(log: &str, name: &str) -> bool {
    stamp_of(log, name).is_some_and(|(_, rest)| [GZ, TMP, ""].contains(&rest) || rest == ".gz.tmp")
}

/// The time in a rotated file's name, and what follows it.
fn stamp_of<'a>(log: &str, name: &'a str) -> Option<(&'a str, &'a str)> {
    let (stamp, rest) = name.strip_prefix(log)?.strip_prefix('.')?.split_at_checked(15)?;
    let shaped = stamp.bytes().enumerate().all(|(i, b)| if i == 8 { b == b'-' } else { b.is_ascii_digit() });
    shaped.then_some((stamp, rest))
}

/// Names only go up, also when the clock goes back or a second holds two rotations: their order is all that tells
/// which file is older.
fn next_name(log: &str, others: &[String], now: Timestamp) -> String {
    let text = |at: Timestamp| at.to_zoned(TimeZone::UTC).strftime(FORMAT).to_string();
    let newest = others.iter().filter_map(|n| stamp_of(log, n)).map(|(stamp, _)| stamp).max();
    let mut stamp = text(now);
    if let Some(newest) = newest
        && stamp.as_str() <= newest
    {
        let parsed = jiff::civil::DateTime::strptime(FORMAT, newest).ok();
        let after = parsed.and_then(|d| d.to_zoned(TimeZone::UTC).ok());
        let after = after.and_then(|z| z.timestamp().checked_add(SignedDuration::from_secs(1)).ok());
        // A name that holds no date can only have been put there; appending keeps the order all the same.
        stamp = after.map_or_else(|| format!("{newest}0"), text);
    }
    format!("{log}.{stamp}")
}

/// How a log grew between two looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    pub bytes: u64,
    pub during: Duration,
}

/// The least time between two checks of one log, however quickly it grows.
pub const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// When to check a log again. One that grows quickly is checked when it will be full, not an interval later, so
/// that its files are about as large as configured.
pub fn next_check(size: u64, max_size: u64, growth: Option<Growth>, interval: Duration) -> Duration {
    let Some(growth) = growth.filter(|g| g.bytes > 0 && !g.during.is_zero()) else { return interval };
    let room = max_size.saturating_sub(size);
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let seconds = growth.during.as_secs_f64() * room as f64 / growth.bytes as f64;
    let pause = Duration::try_from_secs_f64(seconds).unwrap_or(interval);
    pause.clamp(SHORTEST_PAUSE.min(interval), interval)
}
