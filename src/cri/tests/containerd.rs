//! The client against real containerds, each with directories and sockets of its own. No image is needed.

// What fails here fails a test, which is the point.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use keelson_cri::proto::GetEventsRequest;
use keelson_cri::proto::runtime_service_client::RuntimeServiceClient;
use keelson_cri::status::CgroupDriver;
use keelson_cri::{ErrorKind, Runtime, RuntimeChange, observe_all, watch};
use keelson_require::{Missing, mounts, network_namespaces, part, program, require};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tonic::Code;

const PATIENT: Duration = Duration::from_secs(60);

/// The one that tests/parts.sh builds.
fn newer() -> Result<PathBuf, Missing> {
    Ok(part("containerd")?.join("containerd"))
}

/// The distribution's, where that is the last series without events.
fn distributions() -> Result<PathBuf, Missing> {
    let path = program("containerd")?;
    let version = Command::new(&path).arg("--version").output().unwrap();
    if String::from_utf8_lossy(&version.stdout).contains(" 1.6.") {
        return Ok(path);
    }
    Err(Missing::by_nature("a distribution with containerd 1.6", "Debian 12 has it"))
}

/// A containerd mounts, and the network of a pod is a namespace.
fn can_run() -> Result<(), Missing> {
    mounts()?;
    network_namespaces()
}

struct Containerd {
    program: PathBuf,
    directory: TempDir,
    child: Child,
}

impl Containerd {
    fn start(program: PathBuf) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("config.toml"), configuration(directory.path())).unwrap();
        let child = spawn(&program, directory.path());
        Self { program, directory, child }
    }

    fn endpoint(&self) -> String {
        format!("unix://{}", self.directory.path().join("c.sock").display())
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Returns once no thread of it runs any more, which a signal alone does not promise.
    async fn freeze(&self) {
        self.signal("-STOP");
        let tasks = format!("/proc/{}/task", self.child.id());
        let stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap_or_default();
            status.contains("State:\tT")
        };
        while !std::fs::read_dir(&tasks).unwrap().all(stopped) {
            tokio::task::yield_now().await;
        }
    }

    fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = spawn(&self.program, self.directory.path());
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // It may have been stopped by a signal; SIGKILL ends it all the same.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(program: &Path, directory: &Path) -> Child {
    let log = std::fs::File::options().create(true).append(true).open(directory.join("log")).unwrap();
    Command::new(program)
        .arg("--config")
        .arg(directory.join("config.toml"))
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// Nothing outside of the directory is touched: what has a default path elsewhere is moved here or turned off.
fn configuration(directory: &Path) -> String {
    let dir = directory.display();
    format!(
        r#"
version = 2
root = "{dir}/root"
state = "{dir}/state"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.tracing"]
[grpc]
address = "{dir}/c.sock"
[ttrpc]
address = "{dir}/c.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
path = "{dir}/opt"
[plugins."io.containerd.grpc.v1.cri"]
restrict_oom_score_adj = true
stream_server_address = "127.0.0.1"
stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".cni]
conf_dir = "{dir}/cni"
bin_dir = "{dir}/bin"
"#
    )
}

async fn expect_resync(changes: &mut mpsc::Receiver<RuntimeChange>) {
    let change = tokio::time::timeout(PATIENT, changes.recv()).await;
    assert_eq!(change, Ok(Some(RuntimeChange::Resync)));
}

/// What holds for every version. `driver` is what the version reports as its cgroup driver.
async fn serves_cri(mut containerd: Containerd, driver: Option<CgroupDriver>) {
    let runtime = Runtime::connect(&containerd.endpoint(), None, Duration::from_secs(5)).unwrap();
    // The watch waits out the start, whatever it takes, and reports when there is something to observe.
    let mut changes = watch(runtime.clone(), Duration::from_millis(50));
    expect_resync(&mut changes).await;

    let version = runtime.version().await.unwrap();
    assert_eq!((version.name.as_str(), version.api_version.as_str()), ("containerd", "v1"));
    let status = runtime.status().await.unwrap();
    assert!(status.runtime_ready.ok, "{status:?}");
    assert!(!status.network_ready.ok && !status.network_ready.reason.is_empty(), "{status:?}");
    assert_eq!(status.cgroup_driver, driver);
    assert!(observe_all(&runtime).await.unwrap().is_empty());
    assert!(runtime.list_images().await.unwrap().is_empty());
    assert_eq!(runtime.image_status("nowhere.example/none:1").await.unwrap(), None);
    runtime.image_fs_info().await.unwrap();
    let gone = keelson_core::ids::ContainerId::try_from("0000").unwrap();
    assert!(runtime.container_status(&gone).await.unwrap_err().is_not_found());
    runtime.stop_container(&gone, 0).await.unwrap();
    runtime.remove_container(&gone).await.unwrap();
    let gone = keelson_core::ids::SandboxId::try_from("0000").unwrap();
    runtime.stop_sandbox(&gone).await.unwrap();
    runtime.remove_sandbox(&gone).await.unwrap();

    containerd.freeze().await;
    let hasty = Runtime::connect(&containerd.endpoint(), None, Duration::from_millis(500)).unwrap();
    assert_eq!(hasty.status().await.unwrap_err().kind, ErrorKind::Timeout);
    containerd.signal("-CONT");
    runtime.status().await.unwrap();

    containerd.restart();
    expect_resync(&mut changes).await;
    runtime.version().await.unwrap();
}

#[tokio::test]
async fn the_distributions_containerd_is_understood_without_events() {
    require!(can_run());
    let containerd = Containerd::start(require!(distributions()));
    let endpoint = containerd.endpoint();
    let runtime = Runtime::connect(&endpoint, None, PATIENT).unwrap();
    expect_resync(&mut watch(runtime, Duration::from_millis(50))).await;
    let mut client = RuntimeServiceClient::connect(endpoint).await.unwrap();
    let refused = client.get_container_events(GetEventsRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented, "{refused}");
    serves_cri(containerd, None).await;
}

#[tokio::test]
async fn a_newer_containerd_is_understood_with_events() {
    require!(can_run());
    let containerd = Containerd::start(require!(newer()));
    serves_cri(containerd, Some(CgroupDriver::Cgroupfs)).await;
}
