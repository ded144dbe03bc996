//! Calls: their deadlines, their errors, and how they find the runtime again.

use std::time::Duration;

use keelson_core::ids::{ContainerId, SandboxId};
use keelson_cri::containers::{EXEC_OUTPUT_LIMIT, ExecOutput};
use keelson_cri::proto::ImageSpec;
use keelson_cri::{ErrorKind, Runtime};
use keelson_fakes::cri::{FakeCri, Fault, Lie, Rpc};
use tonic::Code;

use crate::{PATIENT, SHORT, bench, pod};

fn container(id: &str) -> ContainerId {
    ContainerId::try_from(id).unwrap()
}

#[tokio::test]
async fn a_socket_that_is_missing_at_start_is_reported_and_found_when_it_appears() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("cri.sock");
    let endpoint = format!("unix://{}", socket.display());
    let runtime = Runtime::connect(&endpoint, None, PATIENT).unwrap();

    let error = runtime.version().await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    let shown = error.to_string();
    assert!(shown.contains(&endpoint) && shown.contains("No such file"), "{shown}");

    let _fake = FakeCri::start(&socket).unwrap();
    assert_eq!(runtime.version().await.unwrap().name, "fake");
}

#[test]
fn an_endpoint_that_is_no_unix_socket_is_refused_with_what_would_be_right() {
    for bad in ["tcp://127.0.0.1:1", "http://x", "relative.sock", "unix://relative", ""] {
        let error = Runtime::connect(bad, None, PATIENT).err().unwrap();
        assert!(error.to_string().contains("unix:///PATH"), "{error}");
    }
}

#[tokio::test]
async fn a_restarted_runtime_is_found_again_by_the_same_client() {
    let mut bench = bench(PATIENT);
    let parts = pod("web");
    bench.run(&parts).await;
    bench.fake.stop();
    for attempt in ["on the connection that broke", "on a new one"] {
        let error = bench.runtime.status().await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable, "{attempt}: {error}");
    }
    bench.fake.restart().unwrap();
    let seen = bench.observe(&parts.uid).await.unwrap();
    assert_eq!(seen.running().count(), 1, "{seen:?}");
}

#[tokio::test]
async fn a_runtime_that_hangs_is_given_up_at_the_deadline_whatever_the_call() {
    let bench = bench(SHORT);
    let parts = pod("web");
    let rpcs = [
        Rpc::Version,
        Rpc::Status,
        Rpc::RunPodSandbox,
        Rpc::StopPodSandbox,
        Rpc::ListPodSandbox,
        Rpc::StopContainer,
        Rpc::ExecSync,
        Rpc::ImageStatus,
    ];
    for rpc in rpcs {
        bench.fake.fault(rpc, Fault::Hang);
    }
    let (sandbox, id) = (SandboxId::try_from("s").unwrap(), container("c"));
    let runtime = &bench.runtime;
    let errors = [
        ("version", runtime.version().await.err()),
        ("status", runtime.status().await.err()),
        ("run", runtime.run_sandbox(parts.sandbox.clone(), "").await.err()),
        ("stop sandbox", runtime.stop_sandbox(&sandbox).await.err()),
        ("list", runtime.list_sandboxes(None).await.err()),
        ("stop container", runtime.stop_container(&id, 0).await.err()),
        ("exec", runtime.exec_sync(&id, &["true".into()], Duration::ZERO).await.err()),
        ("image", runtime.image_status("page:1").await.err()),
    ];
    for (call, error) in errors {
        let error = error.unwrap();
        assert_eq!(error.kind, ErrorKind::Timeout, "{call}: {error}");
    }
    bench.fake.clear();
    runtime.status().await.unwrap();
}

#[tokio::test]
async fn a_call_that_hangs_does_not_hold_up_the_others() {
    let bench = bench(PATIENT);
    let parts = pod("web");
    let (_, id) = bench.run(&parts).await;
    bench.fake.fault(Rpc::StopContainer, Fault::Hang);
    let runtime = bench.runtime.clone();
    let stuck = tokio::spawn(async move { runtime.stop_container(&id, 1).await });
    while bench.fake.calls(Rpc::StopContainer) == 0 {
        tokio::task::yield_now().await;
    }
    for other in 0..20 {
        bench.run(&pod(&format!("other-{other}"))).await;
    }
    assert!(!stuck.is_finished());
    bench.fake.clear();
    stuck.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_sandbox_whose_creation_timed_out_is_found_by_its_reserved_name_and_by_its_uid() {
    let bench = bench(SHORT);
    let parts = pod("web");
    bench.fake.fault(Rpc::RunPodSandbox, Fault::HangAfter);
    let first = bench.runtime.run_sandbox(parts.sandbox.clone(), "").await.unwrap_err();
    assert_eq!(first.kind, ErrorKind::Timeout);
    bench.fake.clear();

    let second = bench.runtime.run_sandbox(parts.sandbox.clone(), "").await.unwrap_err();
    assert_eq!(second.kind, ErrorKind::AlreadyExists);
    let seen = bench.observe(&parts.uid).await.unwrap();
    let adopted = seen.latest_sandbox().unwrap();
    assert_eq!(second.reserved_for(), Some(adopted.id.as_str()));
}

#[tokio::test]
async fn stopping_and_removing_what_is_gone_succeeds() {
    let bench = bench(PATIENT);
    for rpc in [
        Rpc::StopContainer,
        Rpc::RemoveContainer,
        Rpc::StopPodSandbox,
        Rpc::RemovePodSandbox,
        Rpc::RemoveImage,
    ] {
        bench.fake.fault(rpc, Fault::Error(Code::NotFound, "not found".into()));
    }
    let (sandbox, id) = (SandboxId::try_from("gone").unwrap(), container("gone"));
    bench.runtime.stop_container(&id, i64::MAX).await.unwrap();
    bench.runtime.remove_container(&id).await.unwrap();
    bench.runtime.stop_sandbox(&sandbox).await.unwrap();
    bench.runtime.remove_sandbox(&sandbox).await.unwrap();
    bench.runtime.remove_image("gone").await.unwrap();
    assert!(bench.runtime.container_status(&id).await.unwrap_err().is_not_found());
    assert_eq!(bench.runtime.image_status("gone").await.unwrap(), None);
}

#[tokio::test]
async fn an_empty_id_or_reference_in_an_answer_is_refused() {
    let bench = bench(PATIENT);
    let parts = pod("web");
    for rpc in [Rpc::RunPodSandbox, Rpc::CreateContainer, Rpc::PullImage] {
        bench.fake.fault(rpc, Fault::Lie(Lie::EmptyId));
    }
    let run = bench.runtime.run_sandbox(parts.sandbox.clone(), "").await.unwrap_err();
    assert_eq!(run.kind, ErrorKind::BadAnswer, "{run}");
    let sandbox = bench.observe(&parts.uid).await.unwrap().sandboxes[0].id.clone();
    let create = bench.runtime.create_container(&sandbox, parts.container.clone(), &parts.sandbox).await;
    assert_eq!(create.unwrap_err().kind, ErrorKind::BadAnswer);
    let pull = bench.runtime.pull_image(ImageSpec::default(), None, &parts.sandbox).await;
    assert_eq!(pull.unwrap_err().kind, ErrorKind::BadAnswer);
}

#[tokio::test]
async fn the_output_of_a_command_is_cut_off_at_its_limit() {
    let bench = bench(PATIENT);
    let (_, id) = bench.run(&pod("web")).await;
    bench.fake.exec_answers(3, &vec![b'x'; EXEC_OUTPUT_LIMIT + 1]);
    let output = bench.runtime.exec_sync(&id, &["noisy".into()], PATIENT).await.unwrap();
    assert_eq!(output, ExecOutput { stdout: vec![b'x'; EXEC_OUTPUT_LIMIT], stderr: vec![], exit_code: 3 });
}

#[tokio::test]
async fn a_runtime_that_is_not_containerd_says_that_it_takes_no_images() {
    let bench = bench(PATIENT);
    let containerd = keelson_cri::containerd::Containerd::connect(&bench.fake.endpoint()).unwrap();
    assert!(containerd.has_pinned("page:1", "sha256:00").await.unwrap_err().is_unimplemented());
}

#[tokio::test]
async fn a_pull_outlives_the_deadline_of_other_calls() {
    let bench = bench(SHORT);
    let parts = pod("web");
    bench.fake.fault(Rpc::PullImage, Fault::Hang);
    bench.fake.fault(Rpc::Version, Fault::Hang);
    let (runtime, sandbox) = (bench.runtime.clone(), parts.sandbox.clone());
    let image = ImageSpec { image: "page:2".into(), ..Default::default() };
    let pull = tokio::spawn(async move { runtime.pull_image(image, None, &sandbox).await });
    while bench.fake.calls(Rpc::PullImage) == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(bench.runtime.version().await.unwrap_err().kind, ErrorKind::Timeout);
    assert!(!pull.is_finished());
    bench.fake.clear();
    let reference = pull.await.unwrap().unwrap();
    assert_eq!(bench.runtime.image_status(&reference).await.unwrap().unwrap().repo_tags, ["page:2"]);
}

#[tokio::test]
async fn the_status_tells_conditions_and_the_cgroup_driver_where_it_is_offered() {
    let bench = bench(PATIENT);
    let status = bench.runtime.status().await.unwrap();
    assert!(status.runtime_ready.ok && status.network_ready.ok);
    assert_eq!(status.cgroup_driver, Some(keelson_cri::status::CgroupDriver::Cgroupfs));

    let older = crate::bench(PATIENT);
    older.fake.fault(Rpc::RuntimeConfig, Fault::Error(Code::Unimplemented, "unknown method".into()));
    assert_eq!(older.runtime.status().await.unwrap().cgroup_driver, None);
}
