//! The client against a runtime that misbehaves on demand, over a real socket.

// What fails here fails a test, which is the point.
#![allow(clippy::unwrap_used, clippy::panic)]

mod calls;
mod events;
mod observe;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use keelson_core::hash::container_hash;
use keelson_core::ids::{ContainerId, PodUid, SandboxId};
use keelson_core::observed::ObservedPod;
use keelson_core::resources::LinuxResources;
use keelson_cri::convert::{
    ContainerInput, ImageUser, Mount, SandboxInput, container_config, sandbox_config,
};
use keelson_cri::proto::{ContainerConfig, PodSandboxConfig};
use keelson_cri::{CriError, PodHint, Runtime, observe_pod};
use keelson_fakes::cri::FakeCri;
use tempfile::TempDir;

/// Long enough that a busy machine does not pass it by accident.
const PATIENT: Duration = Duration::from_secs(20);
/// For calls that are meant to run into their deadline.
const SHORT: Duration = Duration::from_millis(300);

struct Bench {
    fake: FakeCri,
    runtime: Runtime,
    _directory: TempDir,
}

fn bench(request_timeout: Duration) -> Bench {
    let directory = tempfile::tempdir().unwrap();
    let fake = FakeCri::start(&directory.path().join("cri.sock")).unwrap();
    fake.add_image("page:1");
    let runtime = Runtime::connect(&fake.endpoint(), None, request_timeout).unwrap();
    Bench { fake, runtime, _directory: directory }
}

struct PodParts {
    uid: PodUid,
    sandbox: PodSandboxConfig,
    container: ContainerConfig,
}

/// A pod with one container, "main", as the agent would describe it.
fn pod(name: &str) -> PodParts {
    let container = Container {
        name: "main".into(),
        image: Some("page:1".into()),
        termination_message_path: Some("/dev/termination-log".into()),
        termination_message_policy: Some("File".into()),
        ..Default::default()
    };
    let pod = Pod {
        metadata: ObjectMeta {
            name: Some(name.into()),
            namespace: Some("default".into()),
            labels: Some(BTreeMap::from([("app".into(), name.into())])),
            ..Default::default()
        },
        spec: Some(PodSpec {
            containers: vec![container.clone()],
            termination_grace_period_seconds: Some(30),
            ..Default::default()
        }),
        status: None,
    };
    let uid = PodUid::try_from(format!("uid-of-{name}")).unwrap();
    let sandbox = sandbox_config(&SandboxInput {
        pod: &pod,
        uid: &uid,
        attempt: 0,
        hostname: name,
        dns: None,
        cgroup_parent: "/kubepods/besteffort",
        log_directory: &format!("/var/log/pods/default_{name}_{uid}"),
        extra_groups: &[],
        resources: None,
        overhead: None,
        user_namespace: None,
    });
    let container = container_config(&ContainerInput {
        pod: &pod,
        container: &container,
        uid: &uid,
        attempt: 0,
        image_ref: "page:1",
        image_user: ImageUser::Uid(0),
        command: vec![],
        args: vec![],
        envs: vec![],
        mounts: vec![Mount {
            container_path: "/dev/termination-log".into(),
            host_path: format!("/var/lib/kubelet/pods/{uid}/containers/main/0badcafe"),
            ..Default::default()
        }],
        devices: vec![],
        cdi_devices: vec![],
        log_path: "main/0.log",
        resources: &LinuxResources::default(),
        hash: &container_hash(&container),
        extra_groups: &[],
        extra_masked_paths: &[],
        user_namespace: None,
        target: None,
        seccomp_root: Path::new("/var/lib/kubelet/seccomp"),
        seccomp_default: false,
    });
    PodParts { uid, sandbox: sandbox.unwrap(), container: container.unwrap() }
}

impl Bench {
    /// Takes a pod all the way to a running container.
    async fn run(&self, pod: &PodParts) -> (SandboxId, ContainerId) {
        let sandbox = self.runtime.run_sandbox(pod.sandbox.clone(), "").await.unwrap();
        let container =
            self.runtime.create_container(&sandbox, pod.container.clone(), &pod.sandbox).await.unwrap();
        self.runtime.start_container(&container).await.unwrap();
        (sandbox, container)
    }

    async fn observe(&self, uid: &PodUid) -> Result<ObservedPod, CriError> {
        observe_pod(&self.runtime, uid, PodHint { namespace: "default", name: "hinted" }).await
    }
}
