//! Runs suites beside each other, each in its own namespaces, and reports how they went.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use keelson_require::Missing;

use crate::isolation::{self, Stage};
use crate::suite::{self, Definition};

const SUITE: &str = "KEELSON_RIG_SUITE";
const DIR: &str = "KEELSON_RIG_DIR";

/// The `main` of a test target. Arguments choose what runs: `pods` is all of that suite, `pods::grace` the cases of it whose
/// names contain that.
pub fn main(suites: &[Definition]) -> ExitCode {
    let jobs = std::env::var("KEELSON_JOBS").ok().and_then(|j| j.parse().ok());
    main_with(suites, jobs.unwrap_or_else(usual_jobs))
}

/// Suites wait more than they compute, so one more than there are processors; and no more than memory is sure to hold.
fn usual_jobs() -> usize {
    std::thread::available_parallelism().map_or(2, |n| (n.get() + 1).clamp(2, 4))
}

/// The same with a number of suites that run at once.
pub fn main_with(suites: &[Definition], jobs: usize) -> ExitCode {
    let filters: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    match isolation::stage() {
        Stage::Init => isolation::init(),
        Stage::Inside => inside(suites, &filters),
        Stage::Outside if std::env::args().any(|a| a == "--list") => {
            suites.iter().for_each(|s| println!("{}: test", s.name));
            ExitCode::SUCCESS
        }
        Stage::Outside => outside(suites.iter().filter(|s| chosen(s.name, &filters)).collect(), jobs),
    }
}

fn chosen(suite: &str, filters: &[String]) -> bool {
    let wanted = |f: &String| f.split("::").next().is_some_and(|s| suite.starts_with(s));
    filters.is_empty() || filters.iter().any(wanted)
}

fn inside(suites: &[Definition], filters: &[String]) -> ExitCode {
    let named = std::env::var(SUITE).ok();
    let definition = suites.iter().find(|s| Some(s.name) == named.as_deref());
    let (Some(definition), Some(dir)) = (definition, std::env::var_os(DIR)) else {
        println!("FAILED: inside the namespaces, but without the name of a suite to run");
        return ExitCode::FAILURE;
    };
    let mine = |f: &&String| chosen(definition.name, std::slice::from_ref(*f));
    let cases =
        filters.iter().filter(mine).filter_map(|f| f.split_once("::")).map(|(_, case)| case.to_owned());
    suite::run_here(definition, PathBuf::from(dir), cases.collect())
}

enum Outcome {
    Passed,
    Failed,
    Skipped,
}

/// Before the namespaces: what needs the network or the whole machine, and what is to outlive the run.
fn outside(suites: Vec<&Definition>, jobs: usize) -> ExitCode {
    let alone = suites.len() == 1;
    let waiting: Mutex<VecDeque<&Definition>> = Mutex::new(suites.into());
    let outcomes: Mutex<Vec<(&str, Outcome)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    // In a statement of its own, so that the lock is not held while the suite runs.
                    let next = lock(&waiting).pop_front();
                    let Some(suite) = next else { break };
                    let outcome = one(suite, alone);
                    lock(&outcomes).push((suite.name, outcome));
                }
            });
        }
    });
    let outcomes = lock(&outcomes);
    let names = |of: fn(&Outcome) -> bool| -> Vec<&str> {
        outcomes.iter().filter(|(_, o)| of(o)).map(|(name, _)| *name).collect()
    };
    let (failed, skipped) =
        (names(|o| matches!(o, Outcome::Failed)), names(|o| matches!(o, Outcome::Skipped)));
    println!("{} suites: failed [{}], skipped [{}]", outcomes.len(), failed.join(", "), skipped.join(", "));
    if !skipped.is_empty() && keelson_require::ci() {
        println!("FAILED: with CI=true nothing may be skipped");
        return ExitCode::FAILURE;
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn one(suite: &Definition, alone: bool) -> Outcome {
    let name = suite.name;
    let mut variables: Vec<(String, OsString)> = vec![(SUITE.into(), name.into())];
    match needs_of(suite) {
        Ok(parts) => variables.extend(parts),
        Err(missing) => {
            keelson_require::left_out(&format!("suite {name}"), &missing);
            return Outcome::Skipped;
        }
    }
    // Cases that want one which is missing leave themselves out.
    variables.extend(suite.wants.iter().filter_map(|part| part.ensure().ok()));
    match in_namespaces(name, variables, alone) {
        Ok(true) => Outcome::Passed,
        Ok(false) => Outcome::Failed,
        Err(e) => {
            println!("[{name}] FAILED: {e:#}");
            Outcome::Failed
        }
    }
}

/// Where the parts are without which a suite makes no sense.
fn needs_of(suite: &Definition) -> Result<Vec<(String, OsString)>, Missing> {
    keelson_require::network_namespaces()?;
    keelson_require::mounts()?;
    suite.needs.iter().copied().flatten().map(|part| part.ensure()).collect()
}

/// True when everything passed. A failed run's directory is kept.
fn in_namespaces(name: &str, mut variables: Vec<(String, OsString)>, alone: bool) -> Result<bool> {
    let dir = tempfile::Builder::new().prefix("keelson-test-").tempdir().context("no temporary directory")?;
    variables.push((DIR.into(), dir.path().into()));
    let (mut child, cgroup) = isolation::enter(variables, dir.path())?;
    for line in BufReader::new(child.stdout.take().context("a suite without output")?).lines() {
        if alone { println!("{}", line?) } else { println!("[{name}] {}", line?) }
    }
    let status = child.wait()?;
    crate::cgroups::remove(&cgroup);
    if !status.success() {
        println!("[{name}] logs and state are kept in {}", dir.keep().display());
    }
    Ok(status.success())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
