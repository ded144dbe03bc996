//! The overlay's manifest on a real cluster, with an image packed from the program that was built.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use keelson_tests::built;
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::process::output;
use keelson_tests::wait::until_true;
use serde_json::{Value, json};

const MANIFEST: &str = include_str!("../../../packaging/overlay/keelson-overlay.yaml");
const LIMIT: Duration = Duration::from_secs(60);

pub async fn runs(cluster: &Cluster, node: &Node, dir: &Path) -> Result<()> {
    // A node forwards; kubeadm accepts no other, and a container without privileges cannot switch it on.
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
    let strict = ["--dry-run=server", "--validate=strict"];
    // What is in a namespace cannot be tried before the namespace is there.
    cluster.kubectl.run(&["create", "namespace", "keelson-overlay"]).await?;
    cluster.kubectl.apply_with(MANIFEST, &strict).await.context("the manifest as it is")?;
    node.containerd.import(&image(dir).await?).await?;
    cluster.kubectl.apply(&adapted(cluster, dir)?).await?;
    let name = ["-n", "keelson-overlay", "get", "daemonset", "keelson-overlay", "-o", "json"];
    until_true("the overlay's pod is ready", LIMIT, async || {
        let found: Value = serde_json::from_str(&cluster.kubectl.run(&name).await?)?;
        Ok(found["status"]["numberReady"] == 1)
    })
    .await?;
    let found = cluster.node_object("node").await?;
    let range = found.spec.as_ref().and_then(|s| s.pod_cidr.clone()).context("the node has no podCIDR")?;
    let env = std::fs::read_to_string(dir.join("run/flannel/subnet.env"))?;
    ensure!(env.contains(&range.replace(".0/24", ".1/24")), "{range} is not in {env}");
    let network = std::fs::read_to_string(dir.join("etc/cni/net.d/10-keelson.conflist"))?;
    ensure!(network.contains(&range), "{range} is not in {network}");
    ensure!(output("ip", &["-d", "link", "show", "flannel.1"]).await?.contains("vxlan id 1"));
    until_true("the Node says that the overlay is well", LIMIT, async || {
        let status = cluster.node_object("node").await?.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let healthy = conditions.iter().find(|c| c.type_ == "OverlayHealthy").context("no such condition")?;
        ensure!(healthy.status == "True", "its message is {:?}", healthy.message);
        Ok(true)
    })
    .await?;
    let socket = dir.join("run/keelson/overlay.sock").display().to_string();
    let status = output(built::agent()?, &["overlay", "--socket", &socket, "status"]).await?;
    ensure!(status.contains(&format!("this host   {range}")), "{status}");
    cluster.kubectl.run(&["delete", "namespace", "keelson-overlay", "--timeout=40s"]).await?;
    output("ip", &["link", "show", "flannel.1"]).await.context("the network goes on without the pod")?;
    Ok(())
}

/// The manifest with this test's folders instead of the machine's, and the apiserver where it is.
fn adapted(cluster: &Cluster, dir: &Path) -> Result<String> {
    let mut text = MANIFEST.to_owned();
    for path in ["/etc/cni/net.d", "/run/flannel", "/run/keelson", "/var/lib/keelson"] {
        let own = dir.join(path.trim_start_matches('/')).display().to_string();
        let (from, to) = (format!("hostPath: {{path: {path},"), format!("hostPath: {{path: {own},"));
        ensure!(text.contains(&from), "the manifest has no volume {path}");
        text = text.replace(&from, &to);
    }
    // There is no kube-proxy that would lead to the service's address.
    let port = cluster.plane.apiserver_port();
    let flag = format!("        - --kube-subnet-mgr\n        - --kube-api-url=https://127.0.0.1:{port}");
    Ok(text.replace("        - --kube-subnet-mgr", &flag))
}

/// Packs the program with the libraries that it needs.
async fn image(dir: &Path) -> Result<PathBuf> {
    let program = built::agent()?;
    let needs = output("ldd", &[&program.display().to_string()]).await?;
    let libraries =
        needs.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    let mut files = json!({
        "/usr/bin/keelson": {"file": program, "mode": 0o755},
        "/tmp": {"directory": true, "mode": 0o1777},
    });
    for library in libraries {
        files[library] = json!({"file": std::fs::canonicalize(library)?, "mode": 0o755});
    }
    let names = ["docker.io/library/keelson:0.1.0"];
    let spec =
        json!({"images": [{"names": names, "layers": [{"files": files}], "config": {"WorkingDir": "/"}}]});
    let (from, to) = (dir.join("image.yaml"), dir.join("image.tar"));
    std::fs::write(&from, spec.to_string())?;
    let (from, out) = (from.display().to_string(), to.display().to_string());
    output(program, &["image", "pack", &from, "-o", &out]).await.context("packing the image")?;
    Ok(to)
}
