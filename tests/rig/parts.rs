//! Where the real parts are: built into a cache by `tests/parts.sh`, or given from outside.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use keelson_require::{Missing, missing_part};

/// A program that `tests/parts.sh` knows how to build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Etcd,
    ApiServer,
    Scheduler,
    ControllerManager,
    Kubectl,
    Kubelet,
    Containerd2,
    Runc,
    CniReference,
    MetricsServer,
    Flanneld,
    Machine,
    E2eSuite,
    E2eRootfs,
}

/// What a control plane consists of.
pub const CONTROL_PLANE: [Part; 5] =
    [Part::Etcd, Part::ApiServer, Part::Scheduler, Part::ControllerManager, Part::Kubectl];

impl Part {
    /// The name `tests/parts.sh` and the cache use.
    pub fn name(self) -> &'static str {
        match self {
            Part::Etcd => "etcd",
            Part::ApiServer => "kube-apiserver",
            Part::Scheduler => "kube-scheduler",
            Part::ControllerManager => "kube-controller-manager",
            Part::Kubectl => "kubectl",
            Part::Kubelet => "kubelet",
            Part::Containerd2 => "containerd",
            Part::Runc => "runc",
            Part::CniReference => "cni-reference",
            Part::MetricsServer => "metrics-server",
            Part::Flanneld => "flanneld",
            Part::Machine => "machine",
            Part::E2eSuite => "e2e-suite",
            Part::E2eRootfs => "e2e-rootfs",
        }
    }

    fn variable(self) -> String {
        format!("KEELSON_PART_{}", self.name().to_uppercase().replace('-', "_"))
    }

    /// Builds the part if it is not there yet, showing progress. The variable that is returned says where it is to the
    /// stages to come.
    pub fn ensure(self) -> Result<(String, OsString), Missing> {
        if let Some(dir) = std::env::var_os(self.variable()) {
            return Ok((self.variable(), dir));
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("parts.sh");
        let out = Command::new(&script).arg(self.name()).stderr(Stdio::inherit()).output().ok();
        let out = out.filter(|out| out.status.success());
        let dir = out.map(|out| PathBuf::from(String::from_utf8_lossy(&out.stdout).trim().to_owned()));
        let dir = dir.filter(|dir| dir.is_dir()).ok_or_else(|| missing_part(self.name()))?;
        Ok((self.variable(), dir.into()))
    }

    /// The directory of a part that was ensured.
    pub fn dir(self) -> Result<PathBuf> {
        std::env::var_os(self.variable())
            .map(PathBuf::from)
            .with_context(|| format!("{} is not named among the target's needs", self.name()))
    }

    /// The part's program of the same name.
    pub fn program(self) -> Result<PathBuf> {
        Ok(self.dir()?.join(self.name()))
    }

    /// Whether a part that is only wanted was ensured.
    pub fn available(self) -> Result<(), Missing> {
        std::env::var_os(self.variable()).map(|_| ()).ok_or_else(|| missing_part(self.name()))
    }
}
