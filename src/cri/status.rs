//! Who the runtime is, and whether it is well.

use std::time::Duration;

use keelson_proto::runtime::v1::{
    self as proto, NetworkConfig, RuntimeConfigRequest, StatusRequest, StatusResponse,
    UpdateRuntimeConfigRequest, VersionRequest,
};

use crate::Runtime;
use crate::error::CriError;
use crate::runtime::Call;

/// A node's health must not wait for a runtime that hangs.
pub const STATUS_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Version {
    /// Such as "containerd".
    pub name: String,
    pub version: String,
    /// Of the interface, such as "v1".
    pub api_version: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuntimeStatus {
    pub runtime_ready: Condition,
    pub network_ready: Condition,
    /// Conditions beside the two that every runtime has, by name.
    pub others: Vec<(String, Condition)>,
    pub handlers: Vec<Handler>,
    /// `None` where the runtime does not report them.
    pub features: Option<Features>,
    /// `None` where the runtime does not report it.
    pub cgroup_driver: Option<CgroupDriver>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub ok: bool,
    pub reason: String,
    pub message: String,
}

impl Default for Condition {
    fn default() -> Self {
        Self {
            ok: false,
            reason: "NotReported".into(),
            message: "the runtime's status does not hold this condition".into(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Handler {
    /// Empty for the default one.
    pub name: String,
    pub recursive_read_only_mounts: bool,
    pub user_namespaces: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    pub supplemental_groups_policy: bool,
    pub user_namespaces_host_network: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupDriver {
    Systemd,
    Cgroupfs,
}

impl Runtime {
    pub async fn version(&self) -> Result<Version, CriError> {
        let call = self.briefly("get version of");
        let request = call.request(VersionRequest { version: "0.1.0".into() });
        let answer = call.answer(self.client().version(request)).await?;
        Ok(Version {
            name: answer.runtime_name,
            version: answer.runtime_version,
            api_version: answer.runtime_api_version,
        })
    }

    /// Answers or fails within [`STATUS_TIMEOUT`], or the usual deadline where that is shorter.
    pub async fn status(&self) -> Result<RuntimeStatus, CriError> {
        let call = self.briefly("get status of");
        let request = call.request(StatusRequest { verbose: false });
        let answer = call.answer(self.client().status(request)).await?;
        let cgroup_driver = self.cgroup_driver().await.unwrap_or_default();
        Ok(read_status(answer, cgroup_driver))
    }

    /// Asked once: a runtime does not change it under running containers. `None` where it does not report it.
    pub async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>, CriError> {
        let ask = || async {
            let call = self.briefly("get configuration of");
            let request = call.request(RuntimeConfigRequest {});
            match call.answer(self.client().runtime_config(request)).await {
                Ok(answer) => Ok(answer.linux.and_then(|linux| match linux.cgroup_driver() {
                    _ if proto::CgroupDriver::try_from(linux.cgroup_driver).is_err() => None,
                    proto::CgroupDriver::Systemd => Some(CgroupDriver::Systemd),
                    proto::CgroupDriver::Cgroupfs => Some(CgroupDriver::Cgroupfs),
                })),
                Err(error) if error.is_unimplemented() => Ok(None),
                Err(error) => Err(error),
            }
        };
        self.known_cgroup_driver().get_or_try_init(ask).await.copied()
    }

    /// Tells the runtime the node's range of pod addresses, for those that write their own network configuration.
    pub async fn update_pod_cidr(&self, cidr: &str) -> Result<(), CriError> {
        let call = self.on("update pod addresses of", self.endpoint());
        let network_config = Some(NetworkConfig { pod_cidr: cidr.to_owned() });
        let request = call.request(UpdateRuntimeConfigRequest {
            runtime_config: Some(proto::RuntimeConfig { network_config }),
        });
        call.answer(self.client().update_runtime_config(request)).await.map(drop)
    }

    fn briefly(&self, operation: &'static str) -> Call<'_> {
        Call { operation, object: self.endpoint(), limit: self.request_timeout().min(STATUS_TIMEOUT) }
    }
}

fn read_status(answer: StatusResponse, cgroup_driver: Option<CgroupDriver>) -> RuntimeStatus {
    let mut status = RuntimeStatus { cgroup_driver, ..Default::default() };
    for reported in answer.status.unwrap_or_default().conditions {
        let condition = Condition { ok: reported.status, reason: reported.reason, message: reported.message };
        match reported.r#type.as_str() {
            "RuntimeReady" => status.runtime_ready = condition,
            "NetworkReady" => status.network_ready = condition,
            _ => status.others.push((reported.r#type, condition)),
        }
    }
    status.handlers = answer
        .runtime_handlers
        .into_iter()
        .map(|handler| {
            let features = handler.features.unwrap_or_default();
            Handler {
                name: handler.name,
                recursive_read_only_mounts: features.recursive_read_only_mounts,
                user_namespaces: features.user_namespaces,
            }
        })
        .collect();
    status.features = answer.features.map(|features| Features {
        supplemental_groups_policy: features.supplemental_groups_policy,
        user_namespaces_host_network: features.user_namespaces_host_network,
    });
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_is_not_reported_is_not_ready() {
        let status = read_status(StatusResponse::default(), None);
        assert!(!status.runtime_ready.ok && !status.network_ready.ok);
        assert_eq!(status.network_ready.reason, "NotReported");
    }
}
