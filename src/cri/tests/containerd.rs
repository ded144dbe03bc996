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
use tempfile::TempDir;
use tokio::sync::mpsc;
use tonic::Code;

const PATIENT: Duration = Duration::from_secs(60);

/// Newer ones are built by tests/parts.sh into its cache.
fn newer() -> Option<PathBuf> {
    let cache = std::env::var_os("KEELSON_PARTS").map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or(home)?;
        Some(cache.join("keelson/parts"))
    })?;
    let mut found: Vec<PathBuf> = std::fs::read_dir(cache)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path().join("containerd")))
        .filter(|path| {
            path.is_file() && path.parent().is_some_and(|p| p.to_string_lossy().contains("containerd-v2"))
        })
        .collect();
    found.sort();
    found.pop()
}

fn distributions() -> Option<PathBuf> {
    let path = PathBuf::from("/usr/bin/containerd");
    path.is_file().then_some(path)
}

struct Containerd {
    program: PathBuf,
    directory: TempDir,
    child: Child,
}

impl Containerd {
    /// `None`, with a line that says why, where it cannot be run here.
    fn start(program: Option<PathBuf>, which: &str) -> Option<Self> {
        let Some(program) = program else {
            println!("left out: {which} is not installed on this machine");
            return None;
        };
        let owner = Command::new("id").arg("-u").output().unwrap();
        if owner.stdout != b"0\n" {
            println!("left out: running {which} takes root");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("config.toml"), configuration(directory.path())).unwrap();
        let child = spawn(&program, directory.path());
        Some(Self { program, directory, child })
    }

    fn endpoint(&self) -> String {
        format!("unix://{}", self.directory.path().join("c.sock").display())
    }

    fn signal(&self, name: &str) {
        let told = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(told.success());
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

/// What holds for every version. `driver` is what the version tells of its cgroup driver.
async fn speaks(mut containerd: Containerd, driver: Option<CgroupDriver>) {
    let runtime = Runtime::connect(&containerd.endpoint(), None, Duration::from_secs(5)).unwrap();
    // The watch waits out the start, whatever it takes, and says when there is something to look at.
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
    let Some(containerd) = Containerd::start(distributions(), "the distribution's containerd") else {
        return;
    };
    let endpoint = containerd.endpoint();
    let version = Command::new(&containerd.program).arg("--version").output().unwrap();
    if String::from_utf8_lossy(&version.stdout).contains(" 1.6.") {
        let runtime = Runtime::connect(&endpoint, None, PATIENT).unwrap();
        expect_resync(&mut watch(runtime, Duration::from_millis(50))).await;
        let mut client = RuntimeServiceClient::connect(endpoint).await.unwrap();
        let refused = client.get_container_events(GetEventsRequest {}).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unimplemented, "{refused}");
        speaks(containerd, None).await;
    } else {
        println!("left out: the distribution's containerd is not 1.6");
    }
}

#[tokio::test]
async fn a_newer_containerd_is_understood_with_events() {
    let Some(containerd) = Containerd::start(newer(), "containerd 2 (tests/parts.sh containerd)") else {
        return;
    };
    speaks(containerd, Some(CgroupDriver::Cgroupfs)).await;
}
