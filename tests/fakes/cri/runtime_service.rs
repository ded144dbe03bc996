//! The runtime half of the fake.

use std::collections::BTreeMap;
use std::pin::Pin;

use futures::Stream;
use futures::StreamExt;
use keelson_proto::runtime::v1::runtime_service_server::RuntimeService;
use keelson_proto::runtime::v1::*;
use tokio_stream::wrappers::BroadcastStream;
use tonic::{Request, Response, Status};

use super::Shared;
use super::faults::{Lie, Rpc};
use super::world::{World, missing};

type Events = Pin<Box<dyn Stream<Item = Result<ContainerEventResponse, Status>> + Send>>;
type Nothing<T> = tokio_stream::Empty<Result<T, Status>>;

/// On the wire, like the other names of the kubelet's.
const POD_UID: &str = "io.kubernetes.pod.uid";

impl Shared {
    /// Counts the call, does its work between the faults that were asked for, and answers.
    pub(super) async fn serve<T>(
        &self,
        rpc: Rpc,
        work: impl FnOnce(&mut World, Option<Lie>) -> Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        let passed = self.faults.enter(rpc).await?;
        let answer = work(&mut self.world(), passed.lie)?;
        self.faults.leave(passed, answer).await.map(Response::new)
    }

    pub(super) async fn not_offered<T>(&self, rpc: Rpc) -> Result<Response<T>, Status> {
        self.faults.enter(rpc).await?;
        Err(Status::unimplemented(format!("the fake does not have {rpc:?}")))
    }
}

/// Calls that the fake only counts.
macro_rules! not_offered {
    ($($method:ident, $rpc:ident, $request:ty => $answer:ty;)*) => {$(
        fn $method<'me, 'run>(
            &'me self,
            _request: Request<$request>,
        ) -> Pin<Box<dyn Future<Output = Result<Response<$answer>, Status>> + Send + 'run>>
        where
            'me: 'run,
            Self: 'run,
        {
            Box::pin(self.not_offered(Rpc::$rpc))
        }
    )*};
}

#[tonic::async_trait]
impl RuntimeService for Shared {
    type GetContainerEventsStream = Events;
    type StreamPodSandboxesStream = Nothing<StreamPodSandboxesResponse>;
    type StreamContainersStream = Nothing<StreamContainersResponse>;
    type StreamContainerStatsStream = Nothing<StreamContainerStatsResponse>;
    type StreamPodSandboxStatsStream = Nothing<StreamPodSandboxStatsResponse>;
    type StreamPodSandboxMetricsStream = Nothing<StreamPodSandboxMetricsResponse>;

    async fn version(&self, _: Request<VersionRequest>) -> Result<Response<VersionResponse>, Status> {
        self.serve(Rpc::Version, |_, _| {
            Ok(VersionResponse {
                version: "0.1.0".into(),
                runtime_name: "fake".into(),
                runtime_version: "v0".into(),
                runtime_api_version: "v1".into(),
            })
        })
        .await
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        self.serve(Rpc::Status, |world, _| {
            let handler = |(name, features): &(String, RuntimeHandlerFeatures)| RuntimeHandler {
                name: name.clone(),
                features: Some(*features),
            };
            let runtime_handlers = world.handlers.iter().map(handler).collect();
            let conditions = ["RuntimeReady", "NetworkReady"].map(|name| RuntimeCondition {
                r#type: name.into(),
                status: true,
                ..Default::default()
            });
            let status = Some(RuntimeStatus { conditions: conditions.to_vec() });
            Ok(StatusResponse { status, runtime_handlers, ..Default::default() })
        })
        .await
    }

    async fn runtime_config(
        &self,
        _: Request<RuntimeConfigRequest>,
    ) -> Result<Response<RuntimeConfigResponse>, Status> {
        self.serve(Rpc::RuntimeConfig, |_, _| {
            let linux = LinuxRuntimeConfiguration { cgroup_driver: CgroupDriver::Cgroupfs.into() };
            Ok(RuntimeConfigResponse { linux: Some(linux) })
        })
        .await
    }

    async fn update_runtime_config(
        &self,
        request: Request<UpdateRuntimeConfigRequest>,
    ) -> Result<Response<UpdateRuntimeConfigResponse>, Status> {
        let network = request.into_inner().runtime_config.and_then(|config| config.network_config);
        self.serve(Rpc::UpdateRuntimeConfig, |world, _| {
            world.pod_ranges = network.map(|network| network.pod_cidr).unwrap_or_default();
            Ok(UpdateRuntimeConfigResponse {})
        })
        .await
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<RunPodSandboxRequest>,
    ) -> Result<Response<RunPodSandboxResponse>, Status> {
        let request = request.into_inner();
        self.serve(Rpc::RunPodSandbox, |world, lie| {
            let id = world.run_sandbox(request.config.unwrap_or_default(), request.runtime_handler)?;
            Ok(RunPodSandboxResponse { pod_sandbox_id: told_id(id, lie) })
        })
        .await
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<StopPodSandboxRequest>,
    ) -> Result<Response<StopPodSandboxResponse>, Status> {
        let id = request.into_inner().pod_sandbox_id;
        self.serve(Rpc::StopPodSandbox, |world, _| {
            world.stop_sandbox(&id);
            Ok(StopPodSandboxResponse {})
        })
        .await
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<RemovePodSandboxRequest>,
    ) -> Result<Response<RemovePodSandboxResponse>, Status> {
        let id = request.into_inner().pod_sandbox_id;
        self.serve(Rpc::RemovePodSandbox, |world, _| {
            world.remove_sandbox(&id);
            Ok(RemovePodSandboxResponse {})
        })
        .await
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<PodSandboxStatusRequest>,
    ) -> Result<Response<PodSandboxStatusResponse>, Status> {
        let id = request.into_inner().pod_sandbox_id;
        self.serve(Rpc::PodSandboxStatus, |world, lie| {
            let mut status = world.sandbox_status(&id).ok_or_else(|| missing("sandbox", &id))?;
            twist(lie, &mut status.id, &mut status.state, &mut status.labels);
            Ok(PodSandboxStatusResponse { status: Some(status), ..Default::default() })
        })
        .await
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<ListPodSandboxRequest>,
    ) -> Result<Response<ListPodSandboxResponse>, Status> {
        let filter = request.into_inner().filter.unwrap_or_default();
        self.serve(Rpc::ListPodSandbox, |world, lie| {
            let wanted = |status: &PodSandboxStatus| {
                (filter.id.is_empty() || filter.id == status.id)
                    && filter.state.is_none_or(|state| state.state == status.state)
                    && has(&status.labels, &filter.label_selector)
            };
            let statuses = world.sandboxes.keys().filter_map(|id| world.sandbox_status(id)).filter(wanted);
            let items = statuses.map(|mut status| {
                twist(lie, &mut status.id, &mut status.state, &mut status.labels);
                PodSandbox {
                    id: status.id,
                    metadata: status.metadata,
                    state: status.state,
                    created_at: status.created_at,
                    labels: status.labels,
                    annotations: status.annotations,
                    runtime_handler: status.runtime_handler,
                }
            });
            Ok(ListPodSandboxResponse { items: items.collect() })
        })
        .await
    }

    async fn create_container(
        &self,
        request: Request<CreateContainerRequest>,
    ) -> Result<Response<CreateContainerResponse>, Status> {
        let request = request.into_inner();
        self.serve(Rpc::CreateContainer, |world, lie| {
            let id = world.create_container(&request.pod_sandbox_id, request.config.unwrap_or_default())?;
            Ok(CreateContainerResponse { container_id: told_id(id, lie) })
        })
        .await
    }

    async fn start_container(
        &self,
        request: Request<StartContainerRequest>,
    ) -> Result<Response<StartContainerResponse>, Status> {
        let id = request.into_inner().container_id;
        self.serve(Rpc::StartContainer, |world, _| {
            world.start_container(&id).map(|()| StartContainerResponse {})
        })
        .await
    }

    async fn stop_container(
        &self,
        request: Request<StopContainerRequest>,
    ) -> Result<Response<StopContainerResponse>, Status> {
        let request = request.into_inner();
        self.serve(Rpc::StopContainer, |world, _| {
            let code = if request.timeout > 0 { 143 } else { 137 };
            world.exit_container(&request.container_id, code, "Error");
            match world.containers.contains_key(&request.container_id) {
                true => Ok(StopContainerResponse {}),
                false => Err(missing("container", &request.container_id)),
            }
        })
        .await
    }

    async fn remove_container(
        &self,
        request: Request<RemoveContainerRequest>,
    ) -> Result<Response<RemoveContainerResponse>, Status> {
        let id = request.into_inner().container_id;
        self.serve(Rpc::RemoveContainer, |world, _| {
            world.remove_container(&id);
            Ok(RemoveContainerResponse {})
        })
        .await
    }

    async fn container_status(
        &self,
        request: Request<ContainerStatusRequest>,
    ) -> Result<Response<ContainerStatusResponse>, Status> {
        let id = request.into_inner().container_id;
        self.serve(Rpc::ContainerStatus, |world, lie| {
            let mut status = world.container_status(&id).ok_or_else(|| missing("container", &id))?;
            twist(lie, &mut status.id, &mut status.state, &mut status.labels);
            if lie == Some(Lie::LogPath) {
                status.log_path = "/etc/shadow".into();
            }
            Ok(ContainerStatusResponse { status: Some(status), ..Default::default() })
        })
        .await
    }

    async fn list_containers(
        &self,
        request: Request<ListContainersRequest>,
    ) -> Result<Response<ListContainersResponse>, Status> {
        let filter = request.into_inner().filter.unwrap_or_default();
        self.serve(Rpc::ListContainers, |world, lie| {
            let wanted = |(id, container): &(&String, &super::world::Container)| {
                (filter.id.is_empty() || filter.id == **id)
                    && (filter.pod_sandbox_id.is_empty() || filter.pod_sandbox_id == container.sandbox_id)
                    && filter.state.is_none_or(|state| state.state() == container.state)
                    && has(&container.config.labels, &filter.label_selector)
            };
            let containers = world.containers.iter().filter(wanted).map(|(id, container)| {
                let mut listed = Container {
                    id: id.clone(),
                    pod_sandbox_id: container.sandbox_id.clone(),
                    metadata: container.config.metadata.clone(),
                    image: container.config.image.clone(),
                    state: container.state.into(),
                    created_at: container.created_at,
                    labels: container.config.labels.clone(),
                    annotations: container.config.annotations.clone(),
                    ..Default::default()
                };
                twist(lie, &mut listed.id, &mut listed.state, &mut listed.labels);
                listed
            });
            Ok(ListContainersResponse { containers: containers.collect() })
        })
        .await
    }

    async fn update_container_resources(
        &self,
        request: Request<UpdateContainerResourcesRequest>,
    ) -> Result<Response<UpdateContainerResourcesResponse>, Status> {
        let request = request.into_inner();
        self.serve(Rpc::UpdateContainerResources, |world, _| {
            let id = &request.container_id;
            let container = world.containers.get_mut(id).ok_or_else(|| missing("container", id))?;
            container.config.linux.get_or_insert_default().resources = request.linux;
            Ok(UpdateContainerResourcesResponse {})
        })
        .await
    }

    async fn reopen_container_log(
        &self,
        _: Request<ReopenContainerLogRequest>,
    ) -> Result<Response<ReopenContainerLogResponse>, Status> {
        self.serve(Rpc::ReopenContainerLog, |_, _| Ok(ReopenContainerLogResponse {})).await
    }

    async fn exec_sync(
        &self,
        request: Request<ExecSyncRequest>,
    ) -> Result<Response<ExecSyncResponse>, Status> {
        let id = request.into_inner().container_id;
        self.serve(Rpc::ExecSync, |world, _| match world.containers.get(&id) {
            Some(container) if container.is_running() => Ok(world.exec_answer.clone()),
            Some(_) => Err(Status::unknown(format!("container {id} is not running"))),
            None => Err(missing("container", &id)),
        })
        .await
    }

    async fn get_container_events(
        &self,
        _: Request<GetEventsRequest>,
    ) -> Result<Response<Self::GetContainerEventsStream>, Status> {
        let cut = BroadcastStream::new(self.cut.subscribe());
        self.serve(Rpc::GetContainerEvents, |world, lie| {
            let events = BroadcastStream::new(world.events.subscribe()).map(move |event| {
                let mut event = event.map_err(|lagged| Status::data_loss(lagged.to_string()))?;
                for status in &mut event.containers_statuses {
                    twist(lie, &mut status.id, &mut status.state, &mut status.labels);
                }
                Ok(event)
            });
            let cut = cut.map(|_| Err(Status::unavailable("event stream cut")));
            // An error ends a stream on the wire.
            Ok(Box::pin(futures::stream::select(events, cut)) as Events)
        })
        .await
    }

    not_offered! {
        exec, Exec, ExecRequest => ExecResponse;
        attach, Attach, AttachRequest => AttachResponse;
        port_forward, PortForward, PortForwardRequest => PortForwardResponse;
        checkpoint_container, CheckpointContainer, CheckpointContainerRequest => CheckpointContainerResponse;
        update_pod_sandbox_resources, UpdatePodSandboxResources,
            UpdatePodSandboxResourcesRequest => UpdatePodSandboxResourcesResponse;
        container_stats, ContainerStats, ContainerStatsRequest => ContainerStatsResponse;
        list_container_stats, ListContainerStats, ListContainerStatsRequest => ListContainerStatsResponse;
        pod_sandbox_stats, PodSandboxStats, PodSandboxStatsRequest => PodSandboxStatsResponse;
        list_pod_sandbox_stats, ListPodSandboxStats, ListPodSandboxStatsRequest => ListPodSandboxStatsResponse;
        list_metric_descriptors, ListMetricDescriptors,
            ListMetricDescriptorsRequest => ListMetricDescriptorsResponse;
        list_pod_sandbox_metrics, ListPodSandboxMetrics,
            ListPodSandboxMetricsRequest => ListPodSandboxMetricsResponse;
        stream_pod_sandboxes, StreamPodSandboxes, StreamPodSandboxesRequest => Self::StreamPodSandboxesStream;
        stream_containers, StreamContainers, StreamContainersRequest => Self::StreamContainersStream;
        stream_container_stats, StreamContainerStats,
            StreamContainerStatsRequest => Self::StreamContainerStatsStream;
        stream_pod_sandbox_stats, StreamPodSandboxStats,
            StreamPodSandboxStatsRequest => Self::StreamPodSandboxStatsStream;
        stream_pod_sandbox_metrics, StreamPodSandboxMetrics,
            StreamPodSandboxMetricsRequest => Self::StreamPodSandboxMetricsStream;
    }
}

fn told_id(id: String, lie: Option<Lie>) -> String {
    if lie == Some(Lie::EmptyId) { String::new() } else { id }
}

/// Makes an entry of an answer untrue in the way that was asked for.
fn twist(lie: Option<Lie>, id: &mut String, state: &mut i32, labels: &mut BTreeMap<String, String>) {
    match lie {
        Some(Lie::EmptyId) => id.clear(),
        Some(Lie::UnknownState) => *state = 99,
        Some(Lie::HostileUid) => drop(labels.insert(POD_UID.into(), "../../etc".into())),
        Some(Lie::LogPath) | None => {}
    }
}

fn has(labels: &BTreeMap<String, String>, selector: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}
