//! ADD and DEL beside the reference plugins, interleaved in one run, on a host of their own.
//!
//!   bench-cni OUR_PLUGINS [REFERENCE_PLUGINS] [ROUNDS]
//!
//! Timings on shared machines drift, so what counts is the ratio. Every measurement has a second point with
//! ten times the leases, to show how cost grows.

mod counts;
mod table;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use keelson_netkit::NetNs;
use table::{Cell, Row, Samples};

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

/// One call of a plugin.
struct Call<'a> {
    command: &'static str,
    round: usize,
    container: &'a NetNs,
    conf: &'a str,
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
    let work = std::env::temp_dir().join(format!("bench-cni-{}", std::process::id()));
    fs::create_dir_all(&work)?;
    let mut contenders = Vec::new();
    match reference {
        Some(dir) => contenders.push(Contender { label: "reference", plugins: fs::canonicalize(dir)? }),
        None => writeln!(
            io::stdout(),
            "The reference plugins are missing: tests/parts.sh cni-reference builds them."
        )?,
    }
    contenders.extend(earlier(&work)?);
    contenders.push(Contender { label: "ours", plugins: fs::canonicalize(ours)? });
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
        rows.extend(measure(scenario, &contenders, &work)?);
    }
    let counted = &scenarios[..2];
    for scenario in counted {
        rows.extend(count(scenario, &contenders, &work)?);
    }
    fs::remove_dir_all(&work)?;
    table::print(&contenders.iter().map(|c| c.label).collect::<Vec<_>>(), &rows)?;
    let size = fs::metadata(contenders.last().map(|c| c.plugins.join("bridge")).unwrap_or_default())?.len();
    writeln!(io::stdout(), "\nexecutable: {:.2} MB for all plugins", size as f64 / 1e6)
}

/// An earlier build: BENCH_BESIDE names a directory with its keelson-cni.
fn earlier(work: &Path) -> io::Result<Option<Contender>> {
    let Some(dir) = std::env::var_os("BENCH_BESIDE").map(PathBuf::from) else { return Ok(None) };
    let (program, plugins) = (fs::canonicalize(dir.join("keelson-cni"))?, work.join("earlier-plugins"));
    fs::create_dir(&plugins)?;
    for name in ["bridge", "host-local"] {
        std::os::unix::fs::symlink(&program, plugins.join(name))?;
    }
    Ok(Some(Contender { label: "earlier", plugins }))
}

/// Takes turns: each round is an ADD and a DEL of every contender, with a container of its own.
fn measure(scenario: &Scenario, contenders: &[Contender], work: &Path) -> io::Result<Vec<Row>> {
    let mut samples: Vec<(Samples, Samples)> = contenders.iter().map(|_| Default::default()).collect();
    for (i, contender) in contenders.iter().enumerate() {
        hold(&work.join(contender.label), i, scenario.leases)?;
    }
    // One round more than counted: it makes the bridges and finds the leases for the first time.
    for round in 0..=scenario.rounds {
        for (i, contender) in contenders.iter().enumerate() {
            let conf = configuration(work, contender.label, i, scenario.masquerade);
            let container = &NetNs::anonymous().map_err(io::Error::other)?;
            let add = call(contender, &Call { command: "ADD", round, container, conf: &conf }, &[])?;
            let del = call(contender, &Call { command: "DEL", round, container, conf: &conf }, &[])?;
            if round > 0 {
                samples[i].0.push(add);
                samples[i].1.push(del);
            }
        }
    }
    for contender in contenders {
        fs::remove_dir_all(work.join(contender.label))?;
    }
    let row = |command: &str, pick: fn(&(Samples, Samples)) -> &Samples| Row {
        what: format!("{command} {}", scenario.name),
        cells: samples.iter().map(|s| Cell::Times(pick(s).clone())).collect(),
    };
    Ok(vec![row("ADD", |s| &s.0), row("DEL", |s| &s.1)])
}

/// One ADD and one DEL of every contender under each counter, after one of each that makes the bridge.
fn count(scenario: &Scenario, contenders: &[Contender], work: &Path) -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for counter in counts::counters(work) {
        let mut cells = (Vec::new(), Vec::new());
        for (i, contender) in contenders.iter().enumerate() {
            let conf = &configuration(work, contender.label, i, scenario.masquerade);
            for (round, prefix) in [&[][..], &counter.prefix].into_iter().enumerate() {
                let container = &NetNs::anonymous().map_err(io::Error::other)?;
                for (command, cells) in [("ADD", &mut cells.0), ("DEL", &mut cells.1)] {
                    // A counter that a contender does not run under counts nothing.
                    let called = call(contender, &Call { command, round, container, conf }, prefix);
                    if round == 1 {
                        cells.push(Cell::Count(counter.take().filter(|_| called.is_ok())));
                    } else {
                        called?;
                    }
                }
            }
        }
        let row = |command: &str, cells| Row {
            what: format!("{} of {command} {}", counter.what, scenario.name),
            cells,
        };
        rows.extend([row("ADD", cells.0), row("DEL", cells.1)]);
    }
    Ok(rows)
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

/// Calls the plugin, by way of the program in `prefix` if there is one.
fn call(contender: &Contender, call: &Call, prefix: &[OsString]) -> io::Result<Duration> {
    let plugin = contender.plugins.join("bridge");
    let mut command = match prefix.split_first() {
        Some((program, options)) => {
            let mut command = Command::new(program);
            command.args(options).arg(plugin);
            command
        }
        None => Command::new(plugin),
    };
    let began = Instant::now();
    let mut child = command
        .env("CNI_COMMAND", call.command)
        .env("CNI_CONTAINERID", format!("bench-{}", call.round))
        .env("CNI_NETNS", format!("/proc/{}/fd/{}", std::process::id(), call.container.fd().as_raw_fd()))
        .env("CNI_IFNAME", "eth0")
        .env("CNI_PATH", &contender.plugins)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(call.conf.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    let took = began.elapsed();
    match output.status.success() {
        true => Ok(took),
        false => Err(io::Error::other(format!(
            "{} {} failed: {}",
            contender.label,
            call.command,
            String::from_utf8_lossy(&output.stdout)
        ))),
    }
}
