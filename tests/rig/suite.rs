//! A test target's `main`: it brings up the isolation, runs named cases one after the other and counts them.
//!
//! The targets run without the standard harness because their cases share parts that take seconds to start, and because
//! everything they start has to be gone when they end, whichever way they end.

use std::future::Future;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::isolation::{self, Stage};
use crate::logs;
use crate::parts::Part;

/// The environment variable under which the directory of a run is handed from stage to stage.
const DIR: &str = "KEELSON_RIG_DIR";

/// Runs one test target. `needs` are the built parts without which none of its cases makes sense.
pub fn run(title: &str, needs: &[Part], body: impl AsyncFnOnce(&mut Suite) -> Result<()>) -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|a| a == "--list") {
        return ExitCode::SUCCESS;
    }
    match isolation::stage() {
        Stage::Outside => outside(title, needs),
        Stage::Init => isolation::init(),
        Stage::Inside => inside(title, args, body),
    }
}

/// Before the namespaces: what needs the network or the whole machine, and what is to outlive the run.
fn outside(title: &str, needs: &[Part]) -> ExitCode {
    if !rustix::process::geteuid().is_root() {
        return skip(title, "the real parts need root");
    }
    let mut variables = vec![];
    for part in needs {
        match part.ensure() {
            Ok(variable) => variables.push(variable),
            Err(missing) => return skip(title, &format!("{missing:#}")),
        }
    }
    let kept = match tempfile::Builder::new().prefix("keelson-test-").tempdir() {
        Ok(dir) => dir,
        Err(e) => return fail(title, &anyhow!(e).context("cannot make a temporary directory")),
    };
    variables.push((DIR.to_owned(), kept.path().into()));
    match isolation::enter(variables) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(code) => {
            println!("{title}: logs and state are kept in {}", kept.keep().display());
            ExitCode::from(u8::try_from(code).unwrap_or(1))
        }
        Err(e) => fail(title, &e),
    }
}

/// A part that cannot be had leaves the target out, with a plain line; where CI asks for everything it is a failure.
fn skip(title: &str, reason: &str) -> ExitCode {
    println!("SKIPPED: {title}: {reason}");
    if std::env::var("CI").is_ok_and(|v| v == "true") {
        println!("FAILED: {title}: with CI=true nothing may be left out");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn fail(title: &str, e: &anyhow::Error) -> ExitCode {
    println!("FAILED: {title}: {e:#}");
    ExitCode::FAILURE
}

fn inside(title: &str, filter: Vec<String>, body: impl AsyncFnOnce(&mut Suite) -> Result<()>) -> ExitCode {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else {
        return fail(title, &anyhow!("{DIR} is not set"));
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return fail(title, &e.into()),
    };
    let filter = filter.into_iter().filter(|a| !a.starts_with('-')).collect();
    let mut suite = Suite { title: title.into(), filter, dir, passed: 0, failed: 0, left_out: 0 };
    println!("\n{title}");
    let began = Instant::now();
    if let Err(e) = runtime.block_on(body(&mut suite)) {
        suite.report_failure("setting up", &e);
    }
    let Suite { passed, failed, left_out, .. } = suite;
    println!(
        "{title}: {passed} passed, {failed} failed, {left_out} left out, in {:.1} s",
        began.elapsed().as_secs_f32()
    );
    // Parts were stopped when their owners were dropped; what remains dies with the namespace.
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

pub struct Suite {
    title: String,
    filter: Vec<String>,
    dir: PathBuf,
    passed: u32,
    failed: u32,
    left_out: u32,
}

impl Suite {
    /// The directory of this run; every part gets a folder in it.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether a case of this name is to run under the filter of the command line.
    pub fn wants(&self, name: &str) -> bool {
        self.filter.is_empty() || self.filter.iter().any(|f| name.contains(f.as_str()))
    }

    /// Runs one case. A failed one is reported with the ends of all logs, and the next one goes on.
    pub async fn case(&mut self, name: &str, limit: Duration, case: impl Future<Output = Result<()>>) {
        if !self.wants(name) {
            self.left_out += 1;
            return;
        }
        let began = Instant::now();
        let outcome = tokio::time::timeout(limit, case)
            .await
            .map_err(|_| anyhow!("not done after {} s", limit.as_secs()))
            .and_then(|r| r);
        match outcome {
            Ok(()) => {
                self.passed += 1;
                println!("  {} {name} ({:.1} s)", paint("ok", 32), began.elapsed().as_secs_f32());
            }
            Err(e) => self.report_failure(name, &e),
        }
    }

    /// Says why a case is not run here.
    pub fn leave_out(&mut self, name: &str, reason: &str) {
        self.left_out += 1;
        println!("  SKIPPED: {name}: {reason}");
        if std::env::var("CI").is_ok_and(|v| v == "true") {
            self.failed += 1;
        }
    }

    fn report_failure(&mut self, name: &str, e: &anyhow::Error) {
        self.failed += 1;
        println!("  {} {name}: {e:#}", paint("FAILED", 31));
        logs::print_tails(&self.dir);
        println!("  {} ({})", paint("FAILED", 31), self.title);
    }
}

fn paint(word: &str, colour: u8) -> String {
    if std::io::stdout().is_terminal() { format!("\x1b[{colour}m{word}\x1b[0m") } else { word.to_owned() }
}

/// Makes a folder for one part of a run.
pub fn folder(parent: &Path, name: &str) -> Result<PathBuf> {
    let dir = parent.join(name);
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}
