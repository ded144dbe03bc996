//! Suites of named cases. Each suite runs in namespaces of its own, as a process of its own; a few run at once.
//!
//! They run without the standard harness because the cases of a suite share parts that take seconds to start, and because
//! everything they start has to be gone when they end, whichever way they end.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use keelson_require::Missing;

use crate::logs;
use crate::parts::Part;

/// What a suite does; it is handed the means to run its cases.
pub type Body = for<'a> fn(&'a mut Suite) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

pub struct Definition {
    pub name: &'static str,
    /// The built parts without which none of its cases makes sense.
    pub needs: &'static [&'static [Part]],
    /// Parts that some of its cases can do without; those are left out then.
    pub wants: &'static [Part],
    pub body: Body,
}

/// Runs a suite in this process, which is in its namespaces already.
pub fn run_here(definition: &Definition, dir: PathBuf, filter: Vec<String>) -> ExitCode {
    let name = definition.name;
    let mut suite = Suite { title: name.into(), filter, dir, passed: 0, failed: 0, left_out: 0 };
    let began = Instant::now();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let outcome =
        runtime.map_err(Into::into).and_then(|runtime| runtime.block_on((definition.body)(&mut suite)));
    if let Err(e) = outcome {
        suite.fail("setting up", &e);
    }
    let Suite { passed, failed, left_out, .. } = suite;
    let took = began.elapsed().as_secs_f32();
    println!("{name}: {passed} passed, {failed} failed, {left_out} left out, in {took:.1} s");
    // Parts were stopped when their owners were dropped; what remains dies with the namespaces.
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
                println!("ok      {name} ({:.1} s)", began.elapsed().as_secs_f32());
            }
            Err(e) => self.fail(name, &e),
        }
    }

    /// Counts cases that ran elsewhere and have been reported already.
    pub fn tally(&mut self, passed: usize, failed: usize) {
        self.passed += u32::try_from(passed).unwrap_or(u32::MAX);
        self.failed += u32::try_from(failed).unwrap_or(u32::MAX);
    }

    /// Reports why a case is not run here, which is a failure where nothing may be missing.
    pub fn leave_out(&mut self, name: &str, missing: &Missing) {
        self.left_out += 1;
        println!("SKIPPED: {}: {name}: {missing}", self.title);
        keelson_require::left_out(&format!("{}: {name}", self.title), missing);
        if missing.is_failure() {
            self.failed += 1;
        }
    }

    /// Reports a failure with the ends of all logs.
    pub fn fail(&mut self, name: &str, e: &anyhow::Error) {
        self.failed += 1;
        println!("FAILED  {name}: {e:#}");
        logs::print_tails(&self.dir);
    }
}

/// Makes a folder for one part of a run.
pub fn folder(parent: &Path, name: &str) -> Result<PathBuf> {
    let dir = parent.join(name);
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}
