//! The README's first command: `make run` and `make stop`, twice in a row, without a network to the outside.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use keelson_require::Missing;
use keelson_tests::process::output_of;
use keelson_tests::snapshot::Snapshot;
use keelson_tests::suite::Suite;
use tokio::process::Command;

const LIMIT: Duration = Duration::from_secs(300);
/// Where things that are left behind would be found.
const PLACES: &[&str] =
    &["/run", "/run/netns", "/var/lib", "/var/lib/cni", "/var/lib/kubelet", "/var/log", "/etc/cni", "/opt"];

pub async fn body(suite: &mut Suite) -> Result<()> {
    if Path::new("/var/lib/keelson-demo").exists() {
        let free = Missing::new(
            "a machine without a `make run`",
            "`make stop` ends the one in /var/lib/keelson-demo",
        );
        suite.leave_out("make run and make stop, twice", &free);
        return Ok(());
    }
    suite.case("make run and make stop, twice, and nothing is left", LIMIT * 2, twice()).await;
    // What failed half way is not left to the next one.
    if Path::new("/var/lib/keelson-demo").exists() {
        make("stop").await.context("after a failure")?;
    }
    Ok(())
}

async fn twice() -> Result<()> {
    let before = Snapshot::take(PLACES).await?;
    for round in ["first", "second"] {
        let said = make("run").await.with_context(|| format!("the {round} time"))?;
        ensure!(said.contains("Running") && said.contains("example-demo"), "make run shows no pod:\n{said}");
        ensure!(said.contains("http://10."), "make run shows no page:\n{said}");
        make("stop").await.with_context(|| format!("the {round} time"))?;
        let left = Snapshot::take(PLACES).await?.more_than(&before);
        ensure!(left.is_empty(), "left behind the {round} time: {}", left.join(", "));
    }
    make("stop").await.context("with nothing to stop")?;
    Ok(())
}

async fn make(target: &str) -> Result<String> {
    let mut command = Command::new("make");
    command
        .args(["--no-print-directory", target])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .env("CARGO_NET_OFFLINE", "true")
        .env_remove("CRI_SOCKET");
    output_of(command).await
}
