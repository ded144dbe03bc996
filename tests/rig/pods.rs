//! Pods as the tests make them and as they wait for them.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::images::BUSYBOX;
use crate::objects;

/// A shell line that serves until it is asked to end, and then ends at once.
pub const SLEEP: &str = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done";

#[derive(Clone)]
pub struct Pods {
    pub api: Api<Pod>,
    events: Api<Event>,
}

impl Pods {
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client.clone(), namespace), events: Api::namespaced(client, namespace) }
    }

    /// Makes a pod from JSON, asks for nothing back.
    pub async fn create(&self, pod: Value) -> Result<Pod> {
        let pod: Pod = serde_json::from_value(pod).context("not a pod")?;
        Ok(self.api.create(&PostParams::default(), &pod).await?)
    }

    pub async fn get(&self, name: &str) -> Result<Pod> {
        Ok(self.api.get(name).await?)
    }

    pub async fn wait(
        &self,
        name: &str,
        what: &str,
        limit: Duration,
        holds: impl Fn(&Pod) -> bool,
    ) -> Result<Pod> {
        objects::wait_for(&self.api, name, what, limit, holds).await
    }

    pub async fn wait_ready(&self, name: &str, limit: Duration) -> Result<Pod> {
        self.wait(name, "Ready", limit, is_ready).await
    }

    /// Waits until a container waits for the given reason.
    pub async fn wait_waiting(&self, name: &str, reason: &str, limit: Duration) -> Result<Pod> {
        let what = format!("a container waits with {reason}");
        self.wait(name, &what, limit, |pod| waiting_reasons(pod).iter().any(|r| r == reason)).await
    }

    pub async fn wait_phase(&self, name: &str, phase: &str, limit: Duration) -> Result<Pod> {
        let what = format!("phase is {phase}");
        self.wait(name, &what, limit, |pod| self::phase(pod) == phase).await
    }

    /// Deletes a pod with its own grace period and waits until it is gone.
    pub async fn delete(&self, name: &str, limit: Duration) -> Result<()> {
        self.api.delete(name, &DeleteParams::default()).await?;
        objects::wait_gone(&self.api, name, None, limit).await
    }

    pub async fn list(&self) -> Result<Vec<Pod>> {
        Ok(self.api.list(&ListParams::default()).await?.items)
    }

    /// The reasons of the events about a pod, oldest first.
    pub async fn event_reasons(&self, name: &str) -> Result<Vec<String>> {
        Ok(self.events_about(name).await?.into_iter().filter_map(|e| e.reason).collect())
    }

    pub async fn events_about(&self, name: &str) -> Result<Vec<Event>> {
        let about = ListParams::default().fields(&format!("involvedObject.name={name}"));
        Ok(self.events.list(&about).await?.items)
    }
}

/// A pod with the given containers, bound to a node, that tolerates anything and dies quickly.
pub fn pod(name: &str, node: &str, containers: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 2,
            "tolerations": [{"operator": "Exists"}], "containers": containers,
        },
    })
}

/// A container that runs a shell line.
pub fn shell(name: &str, line: &str) -> Value {
    json!({"name": name, "image": BUSYBOX, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", line]})
}

/// A container that is ready when `first` is done, a trap set or a file made, and goes on with `then`. One without a probe is
/// ready before it has done anything.
pub fn prepared(name: &str, first: &str, then: &str) -> Value {
    let mut container = shell(name, &format!("{first}; touch /tmp/prepared; {then}"));
    let probe = json!({"exec": {"command": ["test", "-e", "/tmp/prepared"]}, "periodSeconds": 1});
    container["readinessProbe"] = probe;
    container
}

/// A container that serves `SLEEP`.
pub fn sleeper(name: &str) -> Value {
    shell(name, SLEEP)
}

pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").as_deref() == Some("True")
}

/// The status of one of the pod's conditions.
pub fn condition(pod: &Pod, kind: &str) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|c| c.type_ == kind).map(|c| c.status.clone())
}

pub fn phase(pod: &Pod) -> String {
    pod.status.as_ref().and_then(|s| s.phase.clone()).unwrap_or_default()
}

pub fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

pub fn ip(pod: &Pod) -> Option<String> {
    pod.status.as_ref()?.pod_ip.clone()
}

/// Why containers of the pod, init ones too, are waiting.
pub fn waiting_reasons(pod: &Pod) -> Vec<String> {
    let Some(status) = &pod.status else { return vec![] };
    let all =
        status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
    all.filter_map(|c| c.state.as_ref()?.waiting.as_ref()?.reason.clone()).collect()
}

/// The restart count of one container.
pub fn restarts(pod: &Pod, container: &str) -> i32 {
    let statuses = pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
    statuses.filter(|c| c.name == container).map(|c| c.restart_count).sum()
}
