//! The cgroups that pods run in: one for all pods, one for each lesser quality of service, one a pod. The runtime makes
//! the containers' own cgroups below the pod's, under the parent that this module names.
//!
//! Nothing outside of this module knows which version of cgroups the machine has, or which driver is used.

mod cgroup_dir;
mod dbus;
mod layout;
mod limits;
mod names;
mod removal;
mod systemd;
mod usage;

use std::collections::BTreeSet;
use std::path::PathBuf;

use keelson_core::ids::PodUid;
use keelson_core::qos::QosClass;
use keelson_core::resources::{KeptMemory, QosCgroups};

pub use cgroup_dir::{CgroupDir, Members};
use layout::Layout;
pub use layout::Version;
pub use limits::{Limits, shares_to_weight};
use names::CgroupName;
pub use usage::Detail;

/// Guaranteed pods lie beside the cgroups of the two lesser classes.
const CLASSES: [QosClass; 3] = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];

/// Who creates cgroups: the agent by making directories, or systemd as slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    Cgroupfs,
    Systemd,
}

#[derive(Debug, Clone)]
pub struct CgroupSettings {
    /// Where cgroups are mounted: /sys/fs/cgroup.
    pub mount: PathBuf,
    pub driver: Driver,
    /// The cgroup that everything is made under; empty or `/` for the root.
    pub cgroup_root: String,
    /// False when pods are to have no cgroups of their own.
    pub per_qos: bool,
    /// Where to reach systemd, for the systemd driver: the system bus, then its own socket, named `private`.
    pub systemd_sockets: Vec<PathBuf>,
}

impl CgroupSettings {
    pub fn new(driver: Driver) -> Self {
        Self {
            mount: "/sys/fs/cgroup".into(),
            driver,
            cgroup_root: "/".into(),
            per_qos: true,
            systemd_sockets: vec!["/run/dbus/system_bus_socket".into(), "/run/systemd/private".into()],
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodCgroup {
    pub uid: PodUid,
    pub qos: QosClass,
    pub limits: Limits,
}

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("no cgroups are mounted at {}: neither cgroup.controllers (v2) nor a directory a controller (v1) is there", .0.display())]
    NotMounted(PathBuf),
    #[error(
        "this machine offers no {controller} controller for cgroups, which pods need; enable it on the kernel's command line"
    )]
    MissingController { controller: &'static str },
    #[error("cgroup root {0:?} does not exist; create it or change --cgroup-root")]
    NoRoot(String),
    #[error("cgroup root {0:?} is not usable: its parts may contain neither '_' nor '..'")]
    BadRoot(String),
    #[error("cannot {operation} cgroup file {}: {source}", path.display())]
    File { operation: &'static str, path: PathBuf, source: std::io::Error },
    #[error("the cgroup driver is systemd, but {0}; start systemd or set cgroupDriver: cgroupfs")]
    NoSystemd(String),
    #[error("systemd would not {operation} {unit}: {problem}")]
    Systemd { operation: &'static str, unit: String, problem: String },
    #[error("cgroup {} could not be removed: {problem}", path.display())]
    Busy { path: PathBuf, problem: String },
}

/// The pods' cgroups on this machine. Its methods block, `remove_pod` for seconds: call them where that does no harm.
#[derive(Debug, Clone)]
pub struct Cgroups {
    layout: Layout,
    driver: Driver,
    root: CgroupName,
    per_qos: bool,
    sockets: Vec<PathBuf>,
}

impl Cgroups {
    /// Finds out what is mounted and whether it will do. Nothing is created yet.
    pub fn detect(settings: CgroupSettings) -> Result<Self, CgroupError> {
        let layout = Layout::detect(&settings.mount)?;
        for controller in ["cpu", "memory"] {
            if settings.per_qos && layout.of(controller).is_none() {
                return Err(CgroupError::MissingController { controller });
            }
        }
        let root = CgroupName::parse(&settings.cgroup_root)
            .ok_or(CgroupError::BadRoot(settings.cgroup_root.clone()))?;
        let found = Self {
            layout,
            driver: settings.driver,
            root,
            per_qos: settings.per_qos,
            sockets: settings.systemd_sockets,
        };
        if settings.driver == Driver::Systemd {
            systemd::reachable(&found.sockets)?;
        }
        if !found.root.is_empty() && !found.exists(&found.root) {
            return Err(CgroupError::NoRoot(settings.cgroup_root));
        }
        Ok(found)
    }

    pub fn version(&self) -> Version {
        self.layout.version
    }
    /// Whether swap can be bounded here: a kernel may be built or booted without it. To be asked when the root is there, since
    /// v2 has no such file in its own root.
    pub fn limits_swap(&self) -> bool {
        let Some(memory) = self.layout.of("memory") else { return false };
        match self.layout.version {
            Version::V1 => memory.path.join("memory.memsw.limit_in_bytes").exists(),
            Version::V2 => {
                let name = if self.per_qos { self.all_pods() } else { self.root.clone() };
                memory.path.join(self.path(&name)).join("memory.swap.max").exists()
            }
        }
    }
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// Makes or updates the cgroup of all pods, and below it those of the lesser classes.
    pub fn ensure_root(&self, allocatable: &Limits) -> Result<(), CgroupError> {
        if !self.per_qos {
            return Ok(());
        }
        self.ensure(&self.all_pods(), allocatable)?;
        self.ensure(
            &self.class(QosClass::BestEffort),
            &Limits { cpu_shares: Some(limits::MIN_SHARES), ..Limits::default() },
        )?;
        self.ensure(&self.class(QosClass::Burstable), &Limits::default())
    }

    /// Sets what follows the requests of the pods: the processor share of the burstable ones together, and the memory that is kept
    /// for them and for all.
    pub fn set_classes(&self, classes: &QosCgroups) -> Result<(), CgroupError> {
        if !self.per_qos {
            return Ok(());
        }
        if classes.all_pods != KeptMemory::default() {
            self.ensure(&self.all_pods(), &Limits { kept_memory: classes.all_pods, ..Limits::default() })?;
        }
        let burstable = Limits {
            cpu_shares: u64::try_from(classes.burstable_shares).ok(),
            kept_memory: classes.burstable,
            ..Limits::default()
        };
        self.ensure(&self.class(QosClass::Burstable), &burstable)
    }

    /// Makes or updates a pod's cgroup and returns the parent for the runtime.
    pub fn ensure_pod(&self, pod: &PodCgroup) -> Result<String, CgroupError> {
        if self.per_qos {
            self.ensure(&self.pod(&pod.uid, pod.qos), &pod.limits)?;
        }
        Ok(self.pod_parent(&pod.uid, pod.qos))
    }

    /// The `cgroup_parent` of a pod's sandbox: a path for cgroupfs, the name of a slice for systemd.
    pub fn pod_parent(&self, uid: &PodUid, qos: QosClass) -> String {
        let name = if self.per_qos { self.pod(uid, qos) } else { self.root.clone() };
        match self.driver {
            Driver::Cgroupfs => name.cgroupfs_path(),
            Driver::Systemd => name.slice(),
        }
    }

    /// Kills every process in the pod's cgroups, whichever container it belongs to.
    pub fn kill_pod(&self, uid: &PodUid) {
        if !self.per_qos {
            return;
        }
        for class in CLASSES {
            removal::kill_all(&self.pod_paths(&self.pod(uid, class)));
        }
    }

    /// Kills what is left in a pod's cgroup and removes it with everything below. A pod without one is a success. The
    /// class need not be known: a pod that is only found on disk has no object that says it.
    pub fn remove_pod(&self, uid: &PodUid) -> Result<(), CgroupError> {
        if !self.per_qos {
            return Ok(());
        }
        for class in CLASSES {
            let name = self.pod(uid, class);
            let paths = self.pod_paths(&name);
            if paths.is_empty() {
                continue;
            }
            removal::kill_all(&paths);
            if self.driver == Driver::Systemd {
                systemd::stop_slice(&self.sockets, &name.slice())?;
            }
            removal::remove_all(&paths)?;
        }
        Ok(())
    }

    /// Where a pod's cgroup is there, in every hierarchy.
    fn pod_paths(&self, name: &CgroupName) -> Vec<PathBuf> {
        let relative = self.path(name);
        self.layout.everywhere().map(|h| h.join(&relative)).filter(|p| p.is_dir()).collect()
    }

    /// The pods that have a cgroup, in any hierarchy, whether anybody still wants them or not.
    pub fn list_pods(&self) -> Result<BTreeSet<PodUid>, CgroupError> {
        let mut found = BTreeSet::new();
        if !self.per_qos {
            return Ok(found);
        }
        for class in CLASSES {
            let name = self.class(class);
            let relative = self.path(&name);
            for hierarchy in self.layout.everywhere() {
                for entry in layout::subdirectories(&hierarchy.join(&relative))? {
                    let uid = name.pod_in(&entry, self.driver).map(PodUid::try_from);
                    found.extend(uid.and_then(Result::ok));
                }
            }
        }
        Ok(found)
    }

    fn all_pods(&self) -> CgroupName {
        self.root.child("kubepods")
    }

    fn class(&self, qos: QosClass) -> CgroupName {
        match qos {
            QosClass::Guaranteed => self.all_pods(),
            QosClass::Burstable => self.all_pods().child("burstable"),
            QosClass::BestEffort => self.all_pods().child("besteffort"),
        }
    }

    fn pod(&self, uid: &PodUid, qos: QosClass) -> CgroupName {
        self.class(qos).child(&format!("pod{uid}"))
    }

    /// Where a pod's cgroup lies below the hierarchies; `None` where pods have none.
    pub fn pod_place(&self, uid: &PodUid, qos: QosClass) -> Option<PathBuf> {
        self.per_qos.then(|| self.path(&self.pod(uid, qos)))
    }

    /// The same for all pods together.
    pub fn all_pods_place(&self) -> Option<PathBuf> {
        self.per_qos.then(|| self.path(&self.all_pods()))
    }

    /// The path below a hierarchy.
    fn path(&self, name: &CgroupName) -> PathBuf {
        match self.driver {
            Driver::Cgroupfs => name.relative_path(),
            Driver::Systemd => name.relative_slice_path(),
        }
    }

    fn exists(&self, name: &CgroupName) -> bool {
        let relative = self.path(name);
        self.layout.hierarchies.iter().all(|h| h.path.join(&relative).is_dir())
    }

    fn ensure(&self, name: &CgroupName, limits: &Limits) -> Result<(), CgroupError> {
        if self.driver == Driver::Systemd {
            systemd::ensure_slice(&self.sockets, &name.slice(), limits, self.layout.version)?;
        }
        let relative = self.path(name);
        self.layout.make(&relative)?;
        limits.write(&self.layout, &relative)
    }
}

#[cfg(test)]
mod tests;
