//! The steps of a pod's life, and where the time of each goes.

/// In the order in which they mostly happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// From the binding to this agent's first sight of the pod.
    Seen,
    Admitted,
    Cgroup,
    Volumes,
    Sandbox,
    /// The ConfigMaps and Secrets that a container's environment and image refer to.
    Config,
    Pull,
    Created,
    Started,
    PostStart,
    /// An init container, from its start to its end. As a failure: the end of any container.
    Run,
    Ready,
    /// The cgroups of a pod that runs are given what was granted.
    Resize,
    /// From the first status that says that the pod runs to the apiserver's word that it has it.
    Reported,
    /// From the request to end the pod to this agent's sight of it.
    Asked,
    PreStop,
    Stopped,
    SandboxStopped,
    VolumesUnmounted,
    CgroupRemoved,
    ObjectRemoved,
    /// Containers, sandboxes, directories and logs.
    Removed,
    /// Only of failures.
    Probe,
    Status,
    Observe,
}

/// Where the time of a step goes, or where a failure comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Agent,
    Apiserver,
    /// What the pod asks for, and the objects that it refers to.
    Spec,
    /// Cgroups and directories of this machine.
    Node,
    Volume,
    Runtime,
    /// A runtime makes a sandbox and its network in one call, and does not say how long either took.
    RuntimeAndNetwork,
    NetworkPlugin,
    Registry,
    Hook,
    Probe,
    /// Conditions that somebody else sets.
    ReadinessGate,
    /// What runs in the pod.
    Container,
    /// Between two tries of something that failed.
    BackOff,
}

/// The parts of a pod's life that are measured apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Start,
    /// What was done last for a pod that had started: restarts, volumes that follow their objects.
    Since,
    Stop,
}

impl Step {
    /// Seen in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Seen => "seen",
            Self::Admitted => "admitted",
            Self::Cgroup => "cgroup",
            Self::Volumes => "volumes",
            Self::Sandbox => "sandbox",
            Self::Config => "config",
            Self::Pull => "pull",
            Self::Created => "created",
            Self::Started => "started",
            Self::PostStart => "postStart",
            Self::Run => "run",
            Self::Ready => "ready",
            Self::Resize => "resize",
            Self::Reported => "reported",
            Self::Asked => "asked",
            Self::PreStop => "preStop",
            Self::Stopped => "stopped",
            Self::SandboxStopped => "sandboxStopped",
            Self::VolumesUnmounted => "volumesUnmounted",
            Self::CgroupRemoved => "cgroupRemoved",
            Self::ObjectRemoved => "objectRemoved",
            Self::Removed => "removed",
            Self::Probe => "probe",
            Self::Status => "status",
            Self::Observe => "observe",
        }
    }

    /// What goes on while the step does, and what ends it.
    pub(super) fn going_on(self) -> (&'static str, &'static str) {
        match self {
            Self::Seen | Self::Admitted => ("it is being admitted", "it goes on when this node has decided"),
            Self::Cgroup => ("its cgroup is being made", "it goes on when the kernel or systemd has made it"),
            Self::Volumes => ("its volumes are being set up", "it goes on when all of them are there"),
            Self::Sandbox => (
                "the runtime is making its sandbox, with its network",
                "it goes on when the runtime and its network plugin have answered",
            ),
            Self::Config => {
                ("what it refers to is being fetched", "it goes on when the apiserver has answered")
            }
            Self::Pull => (
                "its image is being pulled, or waits for another pull of it",
                "it goes on when the image is here",
            ),
            Self::Created => {
                ("the runtime is creating the container", "it goes on when the runtime has answered")
            }
            Self::Started => {
                ("the runtime is starting the container", "it goes on when the runtime has answered")
            }
            Self::PostStart => ("its postStart hook is running", "it goes on when the hook has returned"),
            Self::Run => ("it is running", "the pod goes on when it has ended"),
            Self::Ready => ("it is not ready yet", "its probes decide"),
            Self::Resize => ("its cgroups are being resized", "it goes on when the runtime has done it"),
            Self::Reported => (
                "the apiserver does not show yet that it is running",
                "it does when it has taken the status and the watch has brought it back",
            ),
            Self::Asked => ("it is to end", "its containers are stopped next"),
            Self::PreStop => {
                ("its preStop hook is running", "it goes on when the hook has returned or the grace is over")
            }
            Self::Stopped => (
                "it has been asked to end",
                "it is killed when its grace period is over, if it has not ended",
            ),
            Self::SandboxStopped => (
                "the runtime is stopping its sandbox, with its network",
                "it goes on when the runtime and its network plugin have answered",
            ),
            Self::VolumesUnmounted => {
                ("its volumes are being taken away", "it goes on when none is mounted any more")
            }
            Self::CgroupRemoved => {
                ("its cgroup is being removed", "it goes on when its last process has gone")
            }
            Self::ObjectRemoved => (
                "the apiserver is to take its last status, and to remove its object",
                "it goes on when the apiserver has answered",
            ),
            Self::Removed => (
                "what it has left is being removed",
                "it is gone when the runtime and the disk hold nothing of it",
            ),
            Self::Probe | Self::Status | Self::Observe => ("", ""),
        }
    }

    /// The first step of another start of a container, or of its end before that.
    pub(super) fn opens_cycle(self) -> bool {
        matches!(self, Self::PreStop | Self::Stopped | Self::Config | Self::Pull | Self::Created)
    }

    /// Somebody acts while it goes on; else it is only waited for.
    pub(super) fn is_acted(self) -> bool {
        !matches!(self, Self::Seen | Self::Admitted | Self::Run | Self::Ready | Self::Reported)
    }

    /// Belongs to the start of a container, and comes when that was started.
    pub(super) fn follows_start(self) -> bool {
        matches!(self, Self::PostStart | Self::Run | Self::Ready)
    }
}

impl Place {
    /// Seen in JSON and by people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Apiserver => "apiserver",
            Self::Spec => "spec",
            Self::Node => "node",
            Self::Volume => "volume",
            Self::Runtime => "runtime",
            Self::RuntimeAndNetwork => "runtime and network plugin",
            Self::NetworkPlugin => "network plugin",
            Self::Registry => "registry",
            Self::Hook => "hook",
            Self::Probe => "probe",
            Self::ReadinessGate => "readiness gate",
            Self::Container => "container",
            Self::BackOff => "back-off",
        }
    }
}

impl Stage {
    /// Seen in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Since => "since",
            Self::Stop => "stop",
        }
    }
}
