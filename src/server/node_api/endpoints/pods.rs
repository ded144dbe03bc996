//! /pods, the pods that this node is to run, and /runningpods, those that the runtime runs.

use http::{Response, StatusCode};
use k8s_openapi::List;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use keelson_agent::NodeHandle;
use keelson_core::observed::{ContainerState, ObservedPod};

use crate::reply::{Reply, json, text};

pub(super) fn ordered(node: &NodeHandle) -> Response<Reply> {
    json(StatusCode::OK, &List { items: node.pods(), ..List::default() })
}

pub(super) async fn running(node: &NodeHandle) -> Response<Reply> {
    match keelson_cri::observe_all(node.runtime()).await {
        Ok(found) => {
            let items: Vec<Pod> = found.values().filter_map(as_running).collect();
            json(StatusCode::OK, &List { items, ..List::default() })
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

/// As little as the runtime knows of it.
fn as_running(pod: &ObservedPod) -> Option<Pod> {
    let running = pod.containers.iter().filter(|c| c.state == ContainerState::Running);
    let containers: Vec<_> = running
        .map(|c| Container { name: c.name.clone(), image: Some(c.image.clone()), ..Container::default() })
        .collect();
    (!containers.is_empty()).then(|| Pod {
        metadata: ObjectMeta {
            name: Some(pod.name.clone()),
            namespace: Some(pod.namespace.clone()),
            uid: Some(pod.uid.to_string()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec { containers, ..PodSpec::default() }),
        status: None,
    })
}
