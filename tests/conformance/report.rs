//! The suite's report as a table.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

pub struct Outcome {
    pub name: String,
    pub passed: bool,
    pub seconds: f64,
    /// The first line of what went wrong.
    pub why: String,
}

/// What ran, of the JSON report that the suite's runner writes.
pub fn read(path: &Path) -> Result<Vec<Outcome>> {
    let text =
        std::fs::read(path).with_context(|| format!("the suite left no report at {}", path.display()))?;
    let report: Value = serde_json::from_slice(&text)?;
    let specs = report.as_array().into_iter().flatten().filter_map(|r| r["SpecReports"].as_array()).flatten();
    let mut all: Vec<Outcome> = specs.filter_map(outcome).collect();
    all.sort_by(|a, b| (a.passed, &a.name).cmp(&(b.passed, &b.name)));
    Ok(all)
}

fn outcome(spec: &Value) -> Option<Outcome> {
    let state = spec["State"].as_str()?;
    // Everything that was not chosen is in the report, too, and so are the nodes that set the suite up.
    if spec["LeafNodeType"] != "It" || matches!(state, "skipped" | "pending") {
        return None;
    }
    let mut names: Vec<&str> =
        spec["ContainerHierarchyTexts"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    names.push(spec["LeafNodeText"].as_str().unwrap_or_default());
    let why = spec["Failure"]["Message"].as_str().unwrap_or_default();
    Some(Outcome {
        name: names.join(" "),
        passed: state == "passed",
        seconds: spec["RunTime"].as_f64().unwrap_or_default() / 1e9,
        why: why.lines().find(|l| !l.trim().is_empty()).unwrap_or_default().trim().into(),
    })
}

pub fn table(outcomes: &[Outcome]) -> String {
    let mut out = String::new();
    for o in outcomes {
        let verdict = if o.passed { "passed" } else { "FAILED" };
        let _ = writeln!(out, "{verdict} {:>6.1} s  {}", o.seconds, o.name);
        if !o.why.is_empty() {
            let _ = writeln!(out, "{:17}{}", "", o.why);
        }
    }
    let passed = outcomes.iter().filter(|o| o.passed).count();
    let _ = writeln!(out, "{passed} passed, {} failed", outcomes.len() - passed);
    out
}

/// Copies the logs of the parts beside the suite's own, since the run's directory goes.
pub fn keep_logs(from: &Path, to: &Path) -> Result<()> {
    let mut waiting = vec![from.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let kind = entry.file_type()?;
            if kind.is_dir()
                && !matches!(entry.file_name().to_str(), Some("root" | "state" | "etcd" | "pod-logs"))
            {
                waiting.push(path);
            } else if kind.is_file() && path.extension().is_some_and(|e| e == "log") {
                std::fs::copy(&path, to.join(entry.file_name()))?;
            }
        }
    }
    Ok(())
}
