//! The pod's sandbox and the cgroup it lives in.

use std::time::Duration;

use jiff::Timestamp;
use keelson_core::backoff::Policy;
use keelson_core::desired::DesiredPod;
use keelson_core::dns::{NodeDns, pod_dns, pod_names};
use keelson_core::facts::Waiting;
use keelson_core::qos::qos_of;
use keelson_core::resources::pod_cgroup;
use keelson_cri::convert::{SandboxInput, sandbox_config};
use keelson_cri::proto::{DnsConfig, PodSandboxConfig};
use keelson_host::cgroup::{Limits, PodCgroup};

use super::Worker;
use super::clean::blocking;
use super::execute::Stop;

/// A network that is not ready yet often is a moment later.
const RETRY: Policy = Policy {
    first: Duration::from_secs(1),
    most: Duration::from_secs(15),
    forgive_after: Duration::from_secs(600),
};

/// How often the runtime may claim that a sandbox's name is taken before another name is tried.
const RESERVED_PATIENCE: u32 = 3;

impl Worker {
    pub(super) async fn ensure_cgroup(&mut self) -> Result<(), Stop> {
        let Some(desired) = self.last_desired.clone() else { return Ok(()) };
        let kubelet = &self.ctx.settings.kubelet;
        let wanted = pod_cgroup(&desired.pod, kubelet.cpu_cfs_quota, self.ctx.cfs_period_micros());
        let positive = |v: Option<i64>| v.and_then(|v| u64::try_from(v).ok());
        let limits = Limits {
            cpu_shares: positive(wanted.cpu_shares),
            cpu_quota_micros: wanted.cpu_quota,
            cpu_period_micros: positive(wanted.cpu_period),
            memory_bytes: wanted.memory_limit,
            pids: Some(kubelet.pod_pids_limit).filter(|n| *n > 0),
            ..Limits::default()
        };
        let pod = PodCgroup { uid: self.uid.clone(), qos: qos_of(&desired.pod), limits };
        let cgroups = self.ctx.cgroups.clone();
        let done = blocking(move || cgroups.ensure_pod(&pod)).await;
        if let Err(e) = &done {
            self.event(
                true,
                "FailedToCreatePodContainer",
                &format!("unable to ensure pod container exists: {e}"),
                None,
            );
        }
        self.checked("make the pod's cgroup", done).map(|_| ())
    }

    pub(super) async fn create_sandbox(&mut self, attempt: u32) -> Result<(), Stop> {
        let Some(desired) = self.last_desired.clone() else { return Ok(()) };
        // A name that stays reserved belongs to a call that the runtime has lost; the next attempt has another name.
        let attempt = attempt + self.name_reserved.saturating_sub(RESERVED_PATIENCE);
        let made = async {
            let config = self.sandbox_config(&desired, attempt, true).await?;
            let handler = self.runtime_handler(&desired).await?;
            let (logs, uid) = (self.ctx.logs.clone(), self.uid.clone());
            let (namespace, name) = (desired.namespace().to_owned(), desired.name().to_owned());
            blocking(move || logs.ensure_pod(&namespace, &name, &uid)).await?;
            Ok(self.ctx.runtime.run_sandbox(config, &handler).await)
        };
        let made: Result<_, String> = made.await;
        let error = match made {
            Ok(Ok(_)) => {
                self.ctx.metrics.sandbox_made();
                self.sandbox_failure = None;
                self.sandbox_backoff = Default::default();
                self.name_reserved = 0;
                // Its addresses are needed by what is started next.
                return self.look().await.map_err(|()| Stop::Failed);
            }
            Ok(Err(e)) => {
                self.name_reserved = if e.reserved_for().is_some() { self.name_reserved + 1 } else { 0 };
                e.to_string()
            }
            Err(e) => e,
        };
        let message = format!("Failed to create pod sandbox: {error}");
        self.event(true, "FailedCreatePodSandBox", &message, None);
        tracing::warn!(error, "sandbox not created");
        self.sandbox_backoff = self.sandbox_backoff.next(RETRY, Duration::ZERO);
        let retry_at = Some(self.sandbox_backoff.retry_at(Timestamp::now()));
        self.sandbox_failure = Some(Waiting { reason: "FailedCreatePodSandBox".into(), message, retry_at });
        Err(Stop::Failed)
    }

    /// `tell`: the pod hears of what had to be cut from its resolver; once for each sandbox is enough.
    pub(super) async fn sandbox_config(
        &self,
        desired: &DesiredPod,
        attempt: u32,
        tell: bool,
    ) -> Result<PodSandboxConfig, String> {
        let pod = &desired.pod;
        let kubelet = &self.ctx.settings.kubelet;
        let names = pod_names(pod, &kubelet.cluster_domain).map_err(|e| e.to_string())?;
        let dns = pod_dns(
            pod,
            &NodeDns {
                cluster_dns: kubelet.cluster_dns.iter().filter_map(|a| a.to_string().parse().ok()).collect(),
                cluster_domain: kubelet.cluster_domain.clone(),
                host: self.ctx.host_dns().await,
                node_ips: self.ctx.host_ips.borrow().clone(),
            },
        );
        if tell {
            dns.warnings.iter().for_each(|w| self.event(true, w.reason, &w.message, None));
        }
        let logs = self.ctx.logs.pod(desired.namespace(), desired.name(), &self.uid);
        let parent = self.ctx.cgroups.pod_parent(&self.uid, qos_of(pod));
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
            extra_groups: &[],
            resources: None,
            overhead: None,
            user_namespace: None,
        })
        .map_err(|e| e.to_string())
    }

    /// The runtime's name for the pod's RuntimeClass; empty is its default.
    async fn runtime_handler(&self, desired: &DesiredPod) -> Result<String, String> {
        let class =
            desired.pod.spec.as_ref().and_then(|s| s.runtime_class_name.as_deref()).unwrap_or_default();
        if class.is_empty() {
            return Ok(String::new());
        }
        let Some(api) = &self.ctx.api else {
            return Err(format!("RuntimeClass {class:?} cannot be looked up: this node has no apiserver"));
        };
        match api.runtime_classes.get(class).await {
            Ok(Some(found)) => Ok(found.handler.clone()),
            Ok(None) => Err(format!("RuntimeClass {class:?} not found")),
            Err(e) => Err(e.to_string()),
        }
    }
}
