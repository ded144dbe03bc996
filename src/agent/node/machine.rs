//! What this machine is, put together for the Node object. Read once: none of it changes without a reboot, except the
//! size of the filesystem, which is not worth a poll.

use keelson_core::config::Settings;
use keelson_core::node::{Capacity, Machine, Reserved};
use keelson_core::resources::{HostFacts, HostResources, NodeCapacity};
use keelson_host::cgroup::{Cgroups, Version};
use keelson_host::machine::{self, Roots, filesystem};

use crate::run::AgentError;

pub struct MachineFacts {
    pub machine: Machine,
    pub capacity: Capacity,
    /// How containers are bounded here. Known once the pods' cgroups are there.
    pub resources: HostResources,
    /// Whether the kernel has anything to swap to.
    pub swap_on: bool,
    /// Of a page that is not huge.
    page_bytes: u64,
    /// Hidden in containers, beside what is hidden on every machine.
    pub masked_paths: Vec<String>,
}

impl MachineFacts {
    pub fn read(settings: &Settings) -> Result<Self, AgentError> {
        let found = machine::read(&Roots::default())?;
        let storage = filesystem(&settings.paths.root_dir)?;
        let most = u32::try_from(settings.kubelet.max_pods).unwrap_or(110);
        let per_core = u32::try_from(settings.kubelet.pods_per_core).unwrap_or(0);
        let pods = if per_core > 0 { most.min(per_core.saturating_mul(found.cpus)) } else { most };
        let capacity = Capacity {
            cpu_millis: u64::from(found.cpus) * 1000,
            memory_bytes: found.memory_bytes,
            ephemeral_storage_bytes: storage.bytes,
            pods,
            huge_pages: found.huge_pages,
        };
        let masked = found.thermal_throttle.iter().map(|path| path.to_string_lossy().into_owned());
        let masked_paths = masked.collect();
        let resources = HostResources::default();
        let (swap_on, page_bytes) = (found.swap_on, found.page_bytes);
        Ok(Self { machine: found.machine, capacity, resources, swap_on, page_bytes, masked_paths })
    }

    pub fn node_capacity(&self) -> NodeCapacity {
        NodeCapacity {
            milli_cpu: i64::try_from(self.capacity.cpu_millis).unwrap_or(i64::MAX),
            memory_bytes: i64::try_from(self.capacity.memory_bytes).unwrap_or(i64::MAX),
        }
    }

    /// What `resources` is to be. An error where the configuration does not fit this machine.
    pub fn host_resources(
        &self,
        settings: &Settings,
        cgroups: &Cgroups,
    ) -> Result<HostResources, AgentError> {
        let facts = HostFacts {
            cgroup_v2: cgroups.version() == Version::V2,
            swap_controller: cgroups.limits_swap(),
            swap_on: self.swap_on,
            swap_bytes: self.machine.swap_bytes.unwrap_or(0),
            memory_bytes: self.capacity.memory_bytes,
            allocatable_memory_bytes: self.unreserved_memory(settings),
            page_bytes: self.page_bytes,
            page_sizes: self.capacity.huge_pages.keys().copied().collect(),
        };
        for name in HostResources::without_effect(&settings.kubelet, facts.cgroup_v2) {
            tracing::warn!("{name} has no effect: it needs cgroup v2, and this machine has v1");
        }
        Ok(HostResources::new(&settings.kubelet, facts)?)
    }

    /// The memory that is kept neither for the system nor for the agent.
    fn unreserved_memory(&self, settings: &Settings) -> u64 {
        let reserved = Reserved::of(&settings.kubelet, &self.capacity);
        let kept = reserved.system.memory_bytes.saturating_add(reserved.agent.memory_bytes);
        self.capacity.memory_bytes.saturating_sub(kept)
    }
}
