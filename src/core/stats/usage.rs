//! Measured values, without saying of what. A value that the kernel did not give is `None`, never zero.

/// What one cgroup uses. As wide as the table that it is: a row for each figure that the kernel has, read and shown by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Usage {
    pub cpu_nanos: Option<u64>,
    pub cpu_user_nanos: Option<u64>,
    pub cpu_system_nanos: Option<u64>,
    pub cfs_periods: Option<u64>,
    pub cfs_throttled_periods: Option<u64>,
    pub cfs_throttled_nanos: Option<u64>,
    pub memory: Option<u64>,
    pub working_set: Option<u64>,
    pub rss: Option<u64>,
    pub cache: Option<u64>,
    pub mapped_file: Option<u64>,
    pub kernel: Option<u64>,
    pub page_faults: Option<u64>,
    pub major_page_faults: Option<u64>,
    pub memory_peak: Option<u64>,
    pub memory_failures: Option<u64>,
    pub oom_kills: Option<u64>,
    /// `None` for unlimited too.
    pub memory_limit: Option<u64>,
    pub swap: Option<u64>,
    pub swap_limit: Option<u64>,
    pub processes: Option<u64>,
    pub threads: Option<u64>,
    pub threads_limit: Option<u64>,
    pub cpu_shares: Option<u64>,
    pub cpu_quota_micros: Option<i64>,
    pub cpu_period_micros: Option<u64>,
    pub pressures: Pressures,
    pub devices: Vec<Device>,
}

/// What went to and from one block device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub reads: u64,
    pub writes: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pressures {
    pub cpu: Option<Pressure>,
    pub memory: Option<Pressure>,
    pub io: Option<Pressure>,
}

/// How much work waited: some of it, and all of it at once.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pressure {
    pub some: Stall,
    pub full: Stall,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stall {
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
    pub total_micros: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub received: Counted,
    pub sent: Counted,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    pub bytes: u64,
    pub packets: u64,
    pub errors: u64,
    pub dropped: u64,
}

/// A filesystem, or the part of it that something takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Filesystem {
    pub capacity: Option<u64>,
    pub available: Option<u64>,
    pub used: Option<u64>,
    pub inodes: Option<u64>,
    pub inodes_free: Option<u64>,
    pub inodes_used: Option<u64>,
}

impl Filesystem {
    /// The same filesystem with another share of it in use.
    pub fn with_used(self, bytes: Option<u64>, inodes: Option<u64>) -> Self {
        Self { used: bytes, inodes_used: inodes, ..self }
    }
}

/// The interfaces that carry a pod's or a node's own traffic: not the loopback, and not the host's ends of pods' links.
pub fn counts_as_traffic(name: &str) -> bool {
    !(name == "lo" || ["veth", "docker"].iter().any(|prefix| name.starts_with(prefix)))
}

/// Reads /proc/net/dev.
pub fn interfaces(text: &str) -> Vec<Interface> {
    let mut found = Vec::new();
    for line in text.lines().skip(2) {
        let Some((name, counts)) = line.split_once(':') else { continue };
        let counts: Vec<u64> = counts.split_whitespace().map_while(|n| n.parse().ok()).collect();
        let [
            bytes,
            packets,
            errors,
            dropped,
            _,
            _,
            _,
            _,
            out_bytes,
            out_packets,
            out_errors,
            out_dropped,
            ..,
        ] = counts[..]
        else {
            continue;
        };
        found.push(Interface {
            name: name.trim().to_owned(),
            received: Counted { bytes, packets, errors, dropped },
            sent: Counted {
                bytes: out_bytes,
                packets: out_packets,
                errors: out_errors,
                dropped: out_dropped,
            },
        });
    }
    found
}

/// Reads a pressure file, of a cgroup or of the machine.
pub fn pressure(text: &str) -> Option<Pressure> {
    let mut pressure = Pressure::default();
    let mut any = false;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let stall = match words.next() {
            Some("some") => &mut pressure.some,
            Some("full") => &mut pressure.full,
            _ => continue,
        };
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            match key {
                "avg10" => stall.avg10 = value.parse().ok()?,
                "avg60" => stall.avg60 = value.parse().ok()?,
                "avg300" => stall.avg300 = value.parse().ok()?,
                "total" => stall.total_micros = value.parse().ok()?,
                _ => {}
            }
        }
        any = true;
    }
    any.then_some(pressure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_read_with_both_directions() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
                    face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
                    lo:     840      10    0    0    0     0          0         0      840      10    0    0    0     0       0          0\n  \
                    eth0: 1296       16    1    2    0     0          0         0     1006      13    3    4    0     0       0          0\n \
                    broken: 1 2 3\n";
        let found = interfaces(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[1].name, "eth0");
        assert_eq!(found[1].received, Counted { bytes: 1296, packets: 16, errors: 1, dropped: 2 });
        assert_eq!(found[1].sent, Counted { bytes: 1006, packets: 13, errors: 3, dropped: 4 });
        let names = ["lo", "eth0", "veth12", "docker0", "lot0", "cni0"];
        let counted: Vec<_> = names.into_iter().filter(|n| counts_as_traffic(n)).collect();
        assert_eq!(counted, ["eth0", "lot0", "cni0"]);
    }

    #[test]
    fn pressure_is_read_where_there_is_any() {
        let text = "some avg10=0.50 avg60=1.25 avg300=0.00 total=12345\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        let found = pressure(text).expect("pressure");
        assert_eq!((found.some.avg10, found.some.avg60, found.some.total_micros), (0.5, 1.25, 12345));
        assert_eq!(found.full.total_micros, 7);
        assert_eq!(pressure(""), None);
        assert_eq!(pressure("some avg10=x"), None);
    }
}
