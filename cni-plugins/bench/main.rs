//! ADD and DEL beside the reference plugins, interleaved in one run, on a host of their own.
//!
//!   bench-cni OUR_PLUGINS [REFERENCE_PLUGINS] [ROUNDS]
//!
//! Timings on shared machines drift, so what counts is the ratio. Every measurement has a second point with
//! ten times the leases, to show how cost grows.

mod table;

use std::fs;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use keelson_netkit::NetNs;
use table::{Row, Samples};

/// What is tried.
struct Scenario {
    name: &'static str,
    masquerade: bool,
    leases: usize,
    /// Walking many leases takes the reference plugins long; fewer rounds tell as much.
    rounds: usize,
}

struct Contender {
    label: &'static str,
    plugins: PathBuf,
}

fn main() -> ExitCode {
    match bench() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "bench-cni: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bench() -> io::Result<()> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let ours = args.next().ok_or_else(|| io::Error::other("give the directory of our plugins"))?;
    let reference = args.next().filter(|dir| dir.join("bridge").is_file());
    let rounds = args.next().and_then(|n| n.to_str()?.parse().ok()).unwrap_or(30);
    let mut contenders = vec![Contender { label: "ours", plugins: fs::canonicalize(ours)? }];
    match reference {
        Some(dir) => contenders.insert(0, Contender { label: "reference", plugins: fs::canonicalize(dir)? }),
        None => writeln!(
            io::stdout(),
            "The reference plugins are missing, so there are no ratios: tests/parts.sh cni-reference builds them."
        )?,
    }
    let host = NetNs::anonymous().map_err(io::Error::other)?;
    rustix::thread::move_into_link_name_space(host.fd(), None)?;
    let few = rounds.min(12);
    let scenarios = [
        Scenario { name: "with ipMasq", masquerade: true, leases: 0, rounds },
        Scenario { name: "without ipMasq", masquerade: false, leases: 0, rounds },
        Scenario { name: "with 6,000 leases held", masquerade: false, leases: 6_000, rounds: few },
        Scenario { name: "with 60,000 leases held", masquerade: false, leases: 60_000, rounds: few },
    ];
    let mut rows = Vec::new();
    for scenario in &scenarios {
        rows.extend(measure(scenario, &contenders)?);
    }
    table::print(&rows)?;
    let size = fs::metadata(contenders.last().map(|c| c.plugins.join("bridge")).unwrap_or_default())?.len();
    writeln!(io::stdout(), "\nexecutable: {:.2} MB for all plugins", size as f64 / 1e6)
}

/// Takes turns: each round is an ADD and a DEL of every contender, with a container of its own.
fn measure(scenario: &Scenario, contenders: &[Contender]) -> io::Result<Vec<Row>> {
    let work = std::env::temp_dir().join(format!("bench-cni-{}", std::process::id()));
    fs::create_dir_all(&work)?;
    let mut samples: Vec<(Samples, Samples)> = contenders.iter().map(|_| Default::default()).collect();
    for (i, contender) in contenders.iter().enumerate() {
        hold(&work.join(contender.label), i, scenario.leases)?;
    }
    // One round more than counted: it makes the bridges and finds the leases for the first time.
    for round in 0..=scenario.rounds {
        for (i, contender) in contenders.iter().enumerate() {
            let conf = configuration(&work, contender.label, i, scenario.masquerade);
            let container = NetNs::anonymous().map_err(io::Error::other)?;
            let add = call(contender, "ADD", round, &container, &conf)?;
            let del = call(contender, "DEL", round, &container, &conf)?;
            if round > 0 {
                samples[i].0.push(add);
                samples[i].1.push(del);
            }
        }
    }
    fs::remove_dir_all(&work)?;
    let row = |command: &str, pick: fn(&(Samples, Samples)) -> &Samples| Row {
        what: format!("{command} {}", scenario.name),
        samples: contenders.iter().zip(&samples).map(|(c, s)| (c.label, pick(s).clone())).collect(),
    };
    Ok(vec![row("ADD", |s| &s.0), row("DEL", |s| &s.1)])
}

/// Leases as they are after many containers were added, in the files that both implementations use.
fn hold(dir: &Path, network: usize, leases: usize) -> io::Result<()> {
    let dir = dir.join(format!("bench{network}"));
    fs::create_dir_all(&dir)?;
    let mut last = String::new();
    for n in 0..leases {
        let host = n + 2;
        last = format!("10.{}.{}.{}", 200 + network, host / 256, host % 256);
        fs::write(dir.join(&last), format!("held-{n:064}\r\neth0"))?;
    }
    if leases > 0 {
        fs::write(dir.join("last_reserved_ip.0"), last)?;
    }
    Ok(())
}

fn configuration(work: &Path, label: &str, network: usize, masquerade: bool) -> String {
    format!(
        r#"{{"cniVersion": "1.0.0", "name": "bench{network}", "type": "bridge", "bridge": "bench{network}",
            "isGateway": true, "ipMasq": {masquerade},
            "ipam": {{"type": "host-local", "dataDir": "{}", "ranges": [[{{"subnet": "10.{}.0.0/16"}}]],
                      "routes": [{{"dst": "0.0.0.0/0"}}]}}}}"#,
        work.join(label).display(),
        200 + network
    )
}

fn call(
    contender: &Contender,
    command: &str,
    round: usize,
    container: &NetNs,
    conf: &str,
) -> io::Result<Duration> {
    let began = Instant::now();
    let mut child = Command::new(contender.plugins.join("bridge"))
        .env("CNI_COMMAND", command)
        .env("CNI_CONTAINERID", format!("bench-{round}"))
        .env("CNI_NETNS", format!("/proc/{}/fd/{}", std::process::id(), container.fd().as_raw_fd()))
        .env("CNI_IFNAME", "eth0")
        .env("CNI_PATH", &contender.plugins)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(conf.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    let took = began.elapsed();
    match output.status.success() {
        true => Ok(took),
        false => Err(io::Error::other(format!(
            "{} {command} failed: {}",
            contender.label,
            String::from_utf8_lossy(&output.stdout)
        ))),
    }
}
