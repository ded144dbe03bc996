//! What passes validation of what the runtime reports.

use keelson_core::hash::container_hash;
use keelson_core::observed::{ContainerState, SandboxState};
use keelson_cri::proto::{LinuxContainerResources, PodSandboxConfig, PodSandboxMetadata};
use keelson_cri::{observe_all, survey};
use keelson_fakes::cri::{Fault, Lie, Rpc};
use tonic::Code;

use crate::{PATIENT, SHORT, bench, pod};

#[tokio::test]
async fn a_running_pod_is_seen_with_everything_that_was_written_into_the_runtime() {
    let bench = bench(PATIENT);
    let parts = pod("web");
    let (sandbox, container) = bench.run(&parts).await;
    let seen = bench.observe(&parts.uid).await.unwrap();

    assert_eq!((seen.namespace.as_str(), seen.name.as_str()), ("default", "web"));
    assert_eq!(seen.sandboxes.len(), 1);
    assert_eq!((&seen.sandboxes[0].id, seen.sandboxes[0].state), (&sandbox, SandboxState::Ready));
    assert_eq!(seen.sandboxes[0].ips.len(), 1);
    let main = seen.latest("main").unwrap();
    assert_eq!((&main.id, &main.sandbox_id, main.state), (&container, &sandbox, ContainerState::Running));
    assert!(main.started_at.is_some() && main.finished_at.is_none());
    let expected = k8s_openapi::api::core::v1::Container {
        name: "main".into(),
        image: Some("page:1".into()),
        ..Default::default()
    };
    assert_eq!(main.hash, Some(container_hash(&expected)));
    assert_eq!(main.log_path, format!("/var/log/pods/default_web_{}/main/0.log", parts.uid));
    let message_file = format!("/var/lib/kubelet/pods/{}/containers/main/0badcafe", parts.uid);
    assert_eq!(main.termination_message_host_path, Some(message_file));
    assert_eq!(main.termination_grace_seconds, Some(30));
}

#[tokio::test]
async fn an_unknown_pod_is_empty_and_goes_by_its_hint() {
    let bench = bench(PATIENT);
    let seen = bench.observe(&pod("web").uid).await.unwrap();
    assert_eq!((seen.name.as_str(), seen.sandboxes.len(), seen.containers.len()), ("hinted", 0, 0));
}

#[tokio::test]
async fn looking_again_asks_only_about_what_changed() {
    let bench = bench(PATIENT);
    let parts = pod("web");
    let (_, container) = bench.run(&parts).await;
    let first = bench.observe(&parts.uid).await.unwrap();
    let asked = || (bench.fake.calls(Rpc::PodSandboxStatus), bench.fake.calls(Rpc::ContainerStatus));
    assert_eq!(asked(), (1, 1));
    assert_eq!(bench.observe(&parts.uid).await.unwrap(), first);
    assert_eq!(observe_all(&bench.runtime).await.unwrap()[&parts.uid], first);
    assert_eq!(asked(), (1, 1));

    assert!(bench.fake.exit_container(container.as_str(), 7));
    let after = bench.observe(&parts.uid).await.unwrap();
    let main = after.latest("main").unwrap();
    assert_eq!((main.state, main.exit_code, main.reason.as_str()), (ContainerState::Exited, 7, "Error"));
    bench.observe(&parts.uid).await.unwrap();
    assert_eq!(asked(), (1, 2));
}

#[tokio::test]
async fn changed_resources_are_asked_for_again() {
    let bench = bench(PATIENT);
    let parts = pod("web");
    let (_, container) = bench.run(&parts).await;
    bench.observe(&parts.uid).await.unwrap();
    let resources = LinuxContainerResources { cpu_shares: 512, ..Default::default() };
    bench.runtime.update_container_resources(&container, resources).await.unwrap();
    bench.observe(&parts.uid).await.unwrap();
    assert_eq!(bench.fake.calls(Rpc::ContainerStatus), 2);
}

#[tokio::test]
async fn what_is_removed_is_not_remembered() {
    let bench = bench(PATIENT);
    let parts = pod("web");
    let (sandbox, _) = bench.run(&parts).await;
    bench.observe(&parts.uid).await.unwrap();
    bench.runtime.stop_sandbox(&sandbox).await.unwrap();
    let stopped = bench.observe(&parts.uid).await.unwrap();
    assert_eq!((stopped.sandboxes[0].state, stopped.sandboxes[0].ips.len()), (SandboxState::NotReady, 0));
    assert_eq!(stopped.running().count(), 0);
    bench.runtime.remove_sandbox(&sandbox).await.unwrap();
    assert!(bench.observe(&parts.uid).await.unwrap().sandboxes.is_empty());
    assert!(observe_all(&bench.runtime).await.unwrap().is_empty());
}

#[tokio::test]
async fn entries_of_other_tools_on_the_same_runtime_are_left_alone() {
    let bench = bench(PATIENT);
    let metadata = PodSandboxMetadata { name: "by-hand".into(), uid: "x".into(), ..Default::default() };
    let config = PodSandboxConfig { metadata: Some(metadata), ..Default::default() };
    bench.runtime.run_sandbox(config, "").await.unwrap();
    assert!(observe_all(&bench.runtime).await.unwrap().is_empty());
}

#[tokio::test]
async fn something_removed_between_the_list_and_the_question_is_not_there() {
    let bench = bench(PATIENT);
    let parts = pod("web");
    bench.run(&parts).await;
    bench.fake.fault(Rpc::ContainerStatus, Fault::Error(Code::NotFound, "gone".into()));
    let seen = bench.observe(&parts.uid).await.unwrap();
    assert_eq!((seen.sandboxes.len(), seen.containers.len()), (1, 0));
}

#[tokio::test]
async fn a_pod_that_cannot_be_read_is_told_apart_from_the_others_and_from_a_missing_one() {
    for fault in [Fault::Hang, Fault::Error(Code::Internal, "broken shim".into())] {
        let bench = bench(SHORT);
        let (well, ill) = (pod("well"), pod("ill"));
        bench.run(&well).await;
        bench.observe(&well.uid).await.unwrap();
        bench.run(&ill).await;
        bench.fake.fault(Rpc::ContainerStatus, fault.clone());
        let seen = survey(&bench.runtime).await.unwrap();
        assert_eq!(seen.pods.keys().collect::<Vec<_>>(), [&well.uid], "{fault:?}");
        assert_eq!(seen.unread.keys().collect::<Vec<_>>(), [&ill.uid], "{fault:?}");
        bench.observe(&ill.uid).await.unwrap_err();
        assert_eq!(bench.observe(&well.uid).await.unwrap().running().count(), 1, "{fault:?}");
    }
}

#[tokio::test]
async fn a_lie_costs_the_entry_or_the_part_that_it_is_about_and_nothing_else() {
    struct Case {
        name: &'static str,
        rpc: Rpc,
        lie: Lie,
        sandboxes: usize,
        containers: usize,
    }
    let case = |name, rpc, lie, sandboxes, containers| Case { name, rpc, lie, sandboxes, containers };
    let cases = [
        case("log path outside the pod's directory", Rpc::ContainerStatus, Lie::LogPath, 1, 1),
        case("empty container ids in the list", Rpc::ListContainers, Lie::EmptyId, 1, 0),
        case("empty container id in the status", Rpc::ContainerStatus, Lie::EmptyId, 1, 0),
        case("container state that does not exist", Rpc::ContainerStatus, Lie::UnknownState, 1, 1),
        case("container that is another pod's", Rpc::ListContainers, Lie::HostileUid, 1, 0),
        case("empty sandbox ids in the list", Rpc::ListPodSandbox, Lie::EmptyId, 0, 1),
        case("empty sandbox id in the status", Rpc::PodSandboxStatus, Lie::EmptyId, 0, 1),
        case("sandbox state that does not exist", Rpc::PodSandboxStatus, Lie::UnknownState, 1, 1),
        case("sandbox with a hostile uid", Rpc::ListPodSandbox, Lie::HostileUid, 0, 1),
    ];
    for Case { name, rpc, lie, sandboxes, containers } in cases {
        let bench = bench(PATIENT);
        let parts = pod("web");
        bench.run(&parts).await;
        bench.fake.fault(rpc, Fault::Lie(lie));
        let seen = bench.observe(&parts.uid).await.unwrap();
        assert_eq!((seen.sandboxes.len(), seen.containers.len()), (sandboxes, containers), "{name}");
        if lie == Lie::LogPath {
            assert_eq!(seen.containers[0].log_path, "", "{name}");
        }
        if (rpc, lie) == (Rpc::ContainerStatus, Lie::UnknownState) {
            assert_eq!(seen.containers[0].state, ContainerState::Unknown, "{name}");
        }
        if (rpc, lie) == (Rpc::PodSandboxStatus, Lie::UnknownState) {
            assert_eq!(seen.sandboxes[0].state, SandboxState::NotReady, "{name}");
        }
        bench.fake.clear();
        let honest = bench.observe(&parts.uid).await.unwrap();
        assert_eq!((honest.sandboxes.len(), honest.containers.len()), (1, 1), "{name}, afterwards");
    }
}
