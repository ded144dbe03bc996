//! Slices, made and removed by systemd. On such a machine systemd owns the cgroup tree, and what it was not asked for it
//! may undo; so pods' cgroups are slices that it knows.

use std::path::{Path, PathBuf};

use super::CgroupError;
use super::dbus::{Arg, CallError, Connection, Peer, Target, Value};
use super::layout::Version;
use super::limits::{Limits, shares_to_weight};
use super::names::parent_slice;

const MANAGER: Target<'static> = Target {
    destination: "org.freedesktop.systemd1",
    path: "/org/freedesktop/systemd1",
    interface: "org.freedesktop.systemd1.Manager",
};
const BUS: Target<'static> = Target {
    destination: "org.freedesktop.DBus",
    path: "/org/freedesktop/DBus",
    interface: "org.freedesktop.DBus",
};
const JOB_REMOVED: &str = "type='signal',sender='org.freedesktop.systemd1',interface='org.freedesktop.systemd1.Manager',member='JobRemoved'";

/// Whether systemd can be talked to at all.
pub(super) fn reachable(sockets: &[PathBuf]) -> Result<(), CgroupError> {
    connect(sockets).map(|_| ())
}

/// Makes a slice, or gives one that is there new limits.
pub(super) fn ensure_slice(
    sockets: &[PathBuf],
    slice: &str,
    limits: &Limits,
    version: Version,
) -> Result<(), CgroupError> {
    let mut bus = connect(sockets)?;
    let changing = resources(limits, version);
    let mut properties = vec![
        ("Description", Value::Text(format!("Kubernetes pods, {slice}"))),
        ("Wants", Value::Texts(vec![parent_slice(slice)])),
        ("DefaultDependencies", Value::Bool(false)),
        ("CPUAccounting", Value::Bool(true)),
        ("MemoryAccounting", Value::Bool(true)),
        ("TasksAccounting", Value::Bool(true)),
    ];
    properties.extend(changing.iter().cloned());
    let args = [Arg::Text(slice), Arg::Text("replace"), Arg::Properties(&properties), Arg::NoUnits];
    match bus.call(&MANAGER, "StartTransientUnit", &args) {
        Ok(reply) => await_job(&mut bus, "start", slice, reply.texts().first()),
        Err(CallError::Refused { name, .. }) if name == "org.freedesktop.systemd1.UnitExists" => {
            if changing.is_empty() {
                return Ok(());
            }
            // Runtime only: nothing of a pod shall survive a reboot in a file.
            let args = [Arg::Text(slice), Arg::Bool(true), Arg::Properties(&changing)];
            bus.call(&MANAGER, "SetUnitProperties", &args)
                .map(|_| ())
                .map_err(|e| refused("change", slice, &e))
        }
        Err(e) => Err(refused("start", slice, &e)),
    }
}

/// Stops a slice. One that systemd does not know is as good as stopped.
pub(super) fn stop_slice(sockets: &[PathBuf], slice: &str) -> Result<(), CgroupError> {
    let mut bus = connect(sockets)?;
    match bus.call(&MANAGER, "StopUnit", &[Arg::Text(slice), Arg::Text("replace")]) {
        Ok(reply) => await_job(&mut bus, "stop", slice, reply.texts().first()),
        Err(CallError::Refused { name, .. }) if name == "org.freedesktop.systemd1.NoSuchUnit" => Ok(()),
        Err(e) => Err(refused("stop", slice, &e)),
    }
}

/// Over the system bus, else over systemd's own socket, which is there even without a bus, which root may use, and which
/// sends signals unasked.
fn connect(sockets: &[PathBuf]) -> Result<Connection, CgroupError> {
    let mut problem = "no socket of systemd is known".to_owned();
    for socket in sockets {
        match open(socket) {
            Ok(connection) => return Ok(connection),
            Err(e) => problem = format!("systemd does not answer at {}: {e}", socket.display()),
        }
    }
    Err(CgroupError::NoSystemd(problem))
}

fn open(socket: &Path) -> Result<Connection, CallError> {
    let peer =
        if socket.file_name().is_some_and(|name| name == "private") { Peer::Service } else { Peer::Bus };
    let mut bus = Connection::open(socket, peer)?;
    if peer == Peer::Bus {
        bus.call(&BUS, "Hello", &[])?;
        bus.call(&BUS, "AddMatch", &[Arg::Text(JOB_REMOVED)])?;
        bus.call(&MANAGER, "Subscribe", &[])?;
    }
    Ok(bus)
}

/// A call only queues a job; the slice is there when the job is gone from the queue.
fn await_job(
    bus: &mut Connection,
    operation: &'static str,
    slice: &str,
    job: Option<&String>,
) -> Result<(), CgroupError> {
    let fail = |problem: String| CgroupError::Systemd { operation, unit: slice.to_owned(), problem };
    let job = job.ok_or_else(|| fail("it answered without a job".into()))?;
    loop {
        let signal = bus.signal().map_err(|e| fail(format!("its answer did not come: {e}")))?;
        if signal.member != "JobRemoved" {
            continue;
        }
        if let [path, _unit, result] = &signal.texts()[..]
            && path == job
        {
            return if result == "done" {
                Ok(())
            } else {
                Err(fail(format!("the job ended with {result:?}")))
            };
        }
    }
}

fn refused(operation: &'static str, slice: &str, error: &CallError) -> CgroupError {
    CgroupError::Systemd { operation, unit: slice.to_owned(), problem: error.to_string() }
}

/// Limits in systemd's words. Huge pages have none; they are written to the cgroup's files.
fn resources(limits: &Limits, version: Version) -> Vec<(&'static str, Value)> {
    let or_infinity = |value: i64| Value::U64(u64::try_from(value).unwrap_or(u64::MAX));
    let mut values = Vec::new();
    if let Some(shares) = limits.cpu_shares {
        values.push(match version {
            Version::V1 => ("CPUShares", Value::U64(shares)),
            Version::V2 => ("CPUWeight", Value::U64(shares_to_weight(shares))),
        });
    }
    if let Some(quota) = limits.cpu_quota_micros {
        // systemd counts in hundredths of a second for each second and would round down to nothing.
        let per_second = u64::try_from(quota).map_or(u64::MAX, |q| {
            (q.saturating_mul(1_000_000) / limits.period().max(1)).next_multiple_of(10_000)
        });
        values.push(("CPUQuotaPerSecUSec", Value::U64(per_second)));
    }
    if let Some(bytes) = limits.memory_bytes {
        let name = if version == Version::V1 { "MemoryLimit" } else { "MemoryMax" };
        values.push((name, or_infinity(bytes)));
    }
    // What systemd is not told it takes back when it next writes the slice.
    for (name, kept) in [("MemoryMin", limits.kept_memory.min), ("MemoryLow", limits.kept_memory.low)] {
        if let Some(bytes) = kept.filter(|_| version == Version::V2) {
            values.push((name, Value::U64(u64::try_from(bytes).unwrap_or(0))));
        }
    }
    if let Some(pids) = limits.pids {
        values.push(("TasksMax", or_infinity(pids)));
    }
    values
}

#[cfg(test)]
mod tests {
    use keelson_core::resources::KeptMemory;

    use super::*;

    #[test]
    fn without_systemd_the_error_says_what_to_do() {
        let error = reachable(&["/no/such/socket".into()]).expect_err("nothing listens there");
        let text = error.to_string();
        assert!(text.contains("/no/such/socket") && text.contains("cgroupDriver: cgroupfs"), "{text}");
    }

    #[test]
    fn limits_are_put_in_systemds_words() {
        let limits = Limits {
            cpu_shares: Some(1024),
            cpu_quota_micros: Some(12_345),
            memory_bytes: Some(-1),
            pids: Some(100),
            kept_memory: KeptMemory { min: Some(4096), low: Some(0) },
            ..Limits::default()
        };
        let v2 = resources(&limits, Version::V2);
        assert_eq!(v2[0], ("CPUWeight", Value::U64(39)));
        assert_eq!(v2[1], ("CPUQuotaPerSecUSec", Value::U64(130_000)));
        assert_eq!(v2[2], ("MemoryMax", Value::U64(u64::MAX)));
        assert_eq!(v2[3], ("MemoryMin", Value::U64(4096)));
        assert_eq!(v2[4], ("MemoryLow", Value::U64(0)));
        assert_eq!(v2[5], ("TasksMax", Value::U64(100)));
        let v1 = resources(&limits, Version::V1);
        assert_eq!((v1.len(), &v1[0]), (4, &("CPUShares", Value::U64(1024))));
    }
}
