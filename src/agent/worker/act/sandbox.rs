//! The pod's sandbox, and the configuration that its containers are made with too.

use k8s_openapi::api::core::v1::Pod;
use keelson_core::desired::DesiredPod;
use keelson_core::dns::{NodeDns, pod_dns, pod_names};
use keelson_core::ids::SandboxId;
use keelson_core::pod::{ActionOutcome, SandboxFailure, SandboxFailureCause, Step};
use keelson_core::qos::qos_of;
use keelson_core::resources::{sandbox_overhead, sandbox_resources};
use keelson_core::timeline::{Place, Step as Timed};
use keelson_core::user_namespaces::{UserNamespace, wants_own_users};
use keelson_cri::convert::{SandboxInput, sandbox_config};
use keelson_cri::proto::{DnsConfig, PodSandboxConfig};

use super::Stop;
use crate::worker::Worker;
use crate::worker::blocking::blocking;

impl Worker {
    pub(super) async fn create_sandbox(&mut self, attempt: u32) -> Result<(), Stop> {
        let Some(desired) = self.state.desired.clone() else { return Ok(()) };
        let attempt = self.state.sandbox.attempt(attempt);
        if let Some(failure) = self.network_not_ready(&desired) {
            return self.settle(ActionOutcome::SandboxCreated(Err(failure)));
        }
        let made = async {
            let handler = self.runtime_handler(&desired).await?;
            self.ensure_own_users(&desired, &handler).await?;
            let config = self.sandbox_config(&desired, attempt, true).await?;
            let (logs, uid) = (self.node.logs.clone(), self.uid.clone());
            let (namespace, name) = (desired.namespace().to_owned(), desired.name().to_owned());
            blocking(move || logs.ensure_pod(&namespace, &name, &uid)).await?;
            let timing = self.recorder.begin(Timed::Sandbox, None, network_place(&desired));
            let answer = self.node.runtime.run_sandbox(config, &handler).await;
            let took = timing.ended(&answer);
            self.node.reports.metrics.starts.sandbox_run(&handler, took, answer.is_err());
            Ok(answer)
        };
        let made: Result<_, String> = made.await;
        let result = match made {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(e)) => {
                let reserved = e.reserved_for().is_some();
                let cause =
                    if reserved { SandboxFailureCause::NameReserved } else { SandboxFailureCause::Other };
                Err(SandboxFailure { message: e.to_string(), cause })
            }
            Err(message) => Err(SandboxFailure { message, cause: SandboxFailureCause::Other }),
        };
        if wants_own_users(&desired.pod) {
            self.node.reports.metrics.own_users(result.is_ok());
        }
        self.settle(ActionOutcome::SandboxCreated(result))?;
        self.node.reports.metrics.sandbox_made();
        // Its addresses are needed by what is started next.
        self.observe().await.map_err(|_| Stop)
    }

    /// A pod on the host's network needs none of the runtime's.
    fn network_not_ready(&self, desired: &DesiredPod) -> Option<SandboxFailure> {
        if on_host_network(desired) {
            return None;
        }
        let message = self.node.state.network_problem()?;
        Some(SandboxFailure { message, cause: SandboxFailureCause::NetworkNotReady })
    }

    pub(super) async fn stop_sandbox(&mut self, id: &SandboxId) -> Result<(), Stop> {
        let place = self.state.desired.as_ref().map_or(Place::RuntimeAndNetwork, network_place);
        let timing = self.recorder.begin(Timed::SandboxStopped, None, place);
        let done = self.node.runtime.stop_sandbox(id).await;
        timing.ended(&done);
        self.settle_step(Step::StopSandbox, done)
    }

    pub(super) async fn remove_sandbox(&mut self, id: &SandboxId) -> Result<(), Stop> {
        let timing = self.removal(Place::Runtime);
        let done = self.node.runtime.remove_sandbox(id).await;
        timing.map(|timing| timing.ended(&done));
        self.settle_step(Step::RemoveSandbox, done)
    }

    /// `warn`: what had to be cut from the pod's resolver becomes an event; once for each sandbox is enough.
    pub(super) async fn sandbox_config(
        &self,
        desired: &DesiredPod,
        attempt: u32,
        warn: bool,
    ) -> Result<PodSandboxConfig, String> {
        let pod = &desired.pod;
        let kubelet = &self.node.settings.kubelet;
        let names = pod_names(pod, &kubelet.cluster_domain).map_err(|e| e.to_string())?;
        let dns = pod_dns(
            pod,
            &NodeDns {
                cluster_dns: kubelet.cluster_dns.iter().filter_map(|a| a.to_string().parse().ok()).collect(),
                cluster_domain: kubelet.cluster_domain.clone(),
                host: self.node.host_dns().await,
                node_ips: self.node.state.addresses(),
            },
        );
        if warn {
            dns.warnings.iter().for_each(|w| self.event(true, w.reason, &w.message, None));
        }
        let logs = self.node.logs.pod(desired.namespace(), desired.name(), &self.uid);
        let period = self.node.cfs_period_micros();
        let parent = self.node.cgroups.pod_parent(&self.uid, qos_of(pod));
        let complete = |resources| self.node.machine.resources.complete_sandbox(resources);
        sandbox_config(&SandboxInput {
            pod,
            uid: &self.uid,
            attempt,
            hostname: &names.kernel,
            dns: Some(DnsConfig {
                servers: dns.config.servers,
                searches: dns.config.searches,
                options: dns.config.options,
            }),
            cgroup_parent: &parent,
            log_directory: &logs.to_string_lossy(),
            extra_groups: &self.state.admitted.groups(),
            resources: Some(&complete(sandbox_resources(pod, kubelet.cpu_cfs_quota, period))),
            overhead: Some(&complete(sandbox_overhead(pod, kubelet.cpu_cfs_quota, period))),
            user_namespace: self.own_users(pod),
        })
        .map_err(|e| e.to_string())
    }

    /// Gives the pod the ids for its own users, if it asks for some and has none.
    pub(super) async fn ensure_own_users(&self, desired: &DesiredPod, handler: &str) -> Result<(), String> {
        if !wants_own_users(&desired.pod) {
            return Ok(());
        }
        self.node.state.check_user_namespaces(handler)?;
        self.node.user_namespaces.assign(&self.uid).await.map(drop)
    }

    pub(super) fn own_users(&self, pod: &Pod) -> Option<UserNamespace> {
        self.node.user_namespaces.held(&self.uid).filter(|_| wants_own_users(pod))
    }

    /// The runtime's name for the pod's RuntimeClass; empty is its default.
    async fn runtime_handler(&self, desired: &DesiredPod) -> Result<String, String> {
        let class =
            desired.pod.spec.as_ref().and_then(|s| s.runtime_class_name.as_deref()).unwrap_or_default();
        if class.is_empty() {
            return Ok(String::new());
        }
        let Some(api) = &self.node.api else {
            return Err(format!("RuntimeClass {class:?} cannot be looked up: this node has no apiserver"));
        };
        match api.runtime_classes.get(class).await {
            Ok(Some(found)) => Ok(found.handler.clone()),
            Ok(None) => Err(format!("runtimeclass.node.k8s.io {class:?} not found")),
            Err(e) => Err(e.to_string()),
        }
    }
}

fn on_host_network(desired: &DesiredPod) -> bool {
    desired.pod.spec.as_ref().is_some_and(|s| s.host_network == Some(true))
}

/// Who is waited for when a sandbox is made or stopped.
fn network_place(desired: &DesiredPod) -> Place {
    if on_host_network(desired) { Place::Runtime } else { Place::RuntimeAndNetwork }
}
