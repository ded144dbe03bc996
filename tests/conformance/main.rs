//! The public Kubernetes e2e suite's conformance tests of a node, on a cluster of one node.
//!
//! What is chosen by a focus runs several tests at once; a table of what passed and failed comes at the end, and the logs of
//! all parts stay.

mod images;
mod report;

use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use keelson_tests::built;
use keelson_tests::cluster::Cluster;
use keelson_tests::containerd::Kind;
use keelson_tests::control_plane::Extent;
use keelson_tests::parts::{CONTROL_PLANE, Part};
use keelson_tests::suite::{Definition, Suite};
use keelson_tests::{registry, schedule};
use serde_json::json;
use tokio::process::Command;

/// The conformance tests of a node, but for those that want the cluster for themselves.
const FOCUS: &str = r"\[sig-node\].*\[Conformance\]";
const SKIP: &str = r"\[Serial\]";
const AT_ONCE: &str = "4";

const SUITES: &[Definition] = &[Definition {
    name: "conformance",
    needs: &[&CONTROL_PLANE, &[Part::Containerd2, Part::E2eSuite, Part::E2eRootfs]],
    wants: &[],
    body: |s| Box::pin(body(s)),
}];

fn main() -> ExitCode {
    schedule::main(SUITES)
}

fn setting(name: &str, usual: &str) -> String {
    std::env::var(name).ok().filter(|v| !v.is_empty()).unwrap_or_else(|| usual.into())
}

async fn body(suite: &mut Suite) -> Result<()> {
    let dir = suite.dir().to_owned();
    let out = built::bench_dir().with_file_name("conformance");
    std::fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    println!("packing the suite's images");
    let archive = images::pack(&dir).await?;
    println!("starting a control plane and a node");
    let cluster = Cluster::start(&dir, Extent::Whole).await?;
    let node = cluster.join("node", 1, Kind::V2, json!({})).await?;
    node.containerd.import(&archive).await?;
    std::fs::remove_file(&archive)?;
    let _registry = match keelson_require::program(registry::PROGRAM) {
        Ok(_) => Some(images::serve(&dir, &node.containerd).await?),
        Err(missing) => {
            println!("what is always pulled cannot be: {missing}");
            None
        }
    };

    let ran = run_suite(&cluster, &out).await;
    report::keep_logs(&dir, &out)?;
    let results = report::read(&out.join("report.json"))?;
    print!("{}", report::table(&results));
    println!("logs: {}", out.display());
    ran?;
    ensure!(!results.is_empty(), "no test matches FOCUS, or SKIP leaves none");
    let failed = results.iter().filter(|r| !r.passed).count();
    suite.tally(results.len() - failed, failed);
    Ok(())
}

async fn run_suite(cluster: &Cluster, out: &Path) -> Result<()> {
    let tools = Part::E2eSuite.dir()?;
    let _ = std::fs::remove_file(out.join("report.json"));
    let log = std::fs::File::create(out.join("suite.log"))?;
    println!("running; {} has the suite's own output", out.join("suite.log").display());
    let mut suite = Command::new(tools.join("ginkgo"));
    suite
        .arg(format!("--procs={}", setting("AT_ONCE", AT_ONCE)))
        .arg(format!("--focus={}", setting("FOCUS", FOCUS)))
        .arg(format!("--skip={}", setting("SKIP", SKIP)))
        .args(["--no-color", "--timeout=60m", "--poll-progress-after=0", "--json-report=report.json"])
        .arg(format!("--output-dir={}", out.display()))
        .arg(tools.join("e2e.test"))
        .arg("--")
        .arg(format!("--kubeconfig={}", cluster.plane.admin().display()))
        .args(["--provider=skeleton", "--num-nodes=1", "--dump-logs-on-failure=false"])
        .args(["--node-os-distro=custom", "--disable-log-dump=true"])
        .arg(format!("--kubectl-path={}", Part::Kubectl.program()?.display()))
        .current_dir(out)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    let mut child = suite.spawn().context("cannot start ginkgo")?;
    let began = std::time::Instant::now();
    loop {
        match tokio::time::timeout(Duration::from_secs(60), child.wait()).await {
            Err(_) => println!("still running after {} s", began.elapsed().as_secs()),
            // A failed test is in the table; this is for a suite that did not get that far.
            Ok(status) if status.as_ref().is_ok_and(|s| s.code().is_some()) => return Ok(()),
            Ok(status) => bail!("the suite ended early: {:?}", status?),
        }
    }
}

/// A program of the suite.
fn tool(name: &str) -> Result<PathBuf> {
    Ok(Part::E2eSuite.dir()?.join(name))
}
