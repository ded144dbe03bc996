//! The rig itself: its parts start beside each other and leave nothing.

use std::time::Duration;

use anyhow::{Result, ensure};
use keelson_tests::containerd::{Containerd, Kind};
use keelson_tests::control_plane::{ControlPlane, Extent};
use keelson_tests::images::BUSYBOX;
use keelson_tests::registry::Registry;
use keelson_tests::runtime::Runtime;
use keelson_tests::suite::{self, Suite};

pub async fn body(suite: &mut Suite) -> Result<()> {
    let dir = suite.dir().to_owned();
    let limit = Duration::from_secs(120);
    suite.case("two runtimes of different age run side by side", limit, two_runtimes(&dir)).await;
    suite.case("a control plane makes its default service account", limit, control_plane(&dir)).await;
    suite.case("a registry takes an image and gives it back", limit, registry(&dir)).await;
    Ok(())
}

async fn two_runtimes(dir: &std::path::Path) -> Result<()> {
    let (old, new) = (suite::folder(dir, "old")?, suite::folder(dir, "new")?);
    for (kind, dir, number, version) in [(Kind::Distribution, old, 1, "1."), (Kind::V2, new, 2, "v2.")] {
        let containerd = Containerd::start(kind, &dir, number).await?;
        let runtime = Runtime::connect(&containerd.socket()).await?;
        let answer =
            runtime.runtime.clone().version(keelson_proto::runtime::v1::VersionRequest::default()).await?;
        let said = answer.into_inner().runtime_version;
        ensure!(said.starts_with(version), "{kind:?} says it is {said}");
        ensure!(runtime.sandboxes().await?.is_empty());
    }
    Ok(())
}

async fn control_plane(dir: &std::path::Path) -> Result<()> {
    let mut plane = ControlPlane::start(dir, Extent::Whole).await?;
    plane.kill_apiserver()?;
    plane.restart_apiserver().await
}

async fn registry(dir: &std::path::Path) -> Result<()> {
    let dir = suite::folder(dir, "with-registry")?;
    let registry = Registry::start(&dir).await?;
    let containerd = Containerd::start(Kind::V2, &dir, 3).await?;
    let name = registry.push(&containerd, BUSYBOX, "pushed:1").await?;
    containerd.ctr(&["-n", "k8s.io", "images", "pull", "--plain-http", &name]).await?;
    Ok(())
}
