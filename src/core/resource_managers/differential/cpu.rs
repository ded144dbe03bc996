use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::json;

use super::super::configure::cpu_options;
use super::{checksum, hint, same, shortened};
use crate::cpu_manager::{CpuPlace, StaticPolicy, Topology, checkpoint};
use crate::cpuset::CpuSet;
use crate::ids::PodUid;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Case {
    /// Number, NUMA node, socket, core, uncore cache.
    cpus: Vec<[u32; 5]>,
    sockets: usize,
    reserved: usize,
    #[serde(default)]
    options: BTreeMap<String, String>,
    refused: Option<String>,
    reserved_cpus: CpuSet,
    steps: Option<Vec<Step>>,
}

#[derive(Deserialize)]
struct Step {
    pod: usize,
    containers: Option<Vec<Wanted>>,
    container: String,
    #[serde(default)]
    remove: bool,
    hint: Option<String>,
    #[serde(default)]
    hints: Vec<String>,
    error: Option<String>,
    state: u64,
}

#[derive(Deserialize)]
struct Wanted {
    name: String,
    cpus: u32,
    kind: String,
}

impl Wanted {
    fn container(&self) -> super::Wanted<'_> {
        let cpu = if self.cpus == 0 { "500m".to_owned() } else { self.cpus.to_string() };
        let resources = json!({"cpu": cpu, "memory": "1Mi"});
        super::Wanted { name: &self.name, kind: &self.kind, resources }
    }
}

fn policy(case: &Case) -> Result<StaticPolicy, String> {
    let places = case.cpus.iter().map(|[cpu, numa_node, socket, core, uncore_cache]| {
        let place =
            CpuPlace { numa_node: *numa_node, socket: *socket, core: *core, uncore_cache: *uncore_cache };
        (*cpu, place)
    });
    let topology = Topology::new(places.collect(), case.sockets);
    let options = cpu_options(&case.options, &[("CPUManagerPolicyAlphaOptions".to_owned(), true)].into())?;
    StaticPolicy::new(topology, CpuSet::default(), case.reserved, options)
}

pub fn replay(case: &Case) -> Result<(), String> {
    let policy = match (policy(case), &case.refused) {
        (Ok(policy), None) => policy,
        (Err(_), Some(_)) => return Ok(()),
        (Ok(_), Some(why)) => return Err(format!("{:?} are taken, and refused with {why}", case.options)),
        (Err(why), None) => return Err(why),
    };
    same(0, "reserved", policy.reserved(), &case.reserved_cpus)?;
    let mut assignments = policy.initial();
    let mut pods = BTreeMap::new();
    for (n, step) in case.steps.iter().flatten().enumerate() {
        let uid = PodUid::try_from(format!("pod-{}", step.pod)).unwrap();
        if let Some(wanted) = &step.containers {
            pods.insert(step.pod, super::pod(wanted.iter().map(Wanted::container)));
        }
        let mut error = None;
        if step.remove {
            assignments.release(&uid, &step.container);
        } else {
            let pod = &pods[&step.pod];
            let spec = pod.spec.as_ref().unwrap();
            let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
            let container = all.find(|c| c.name == step.container).unwrap();
            let ours = shortened(&policy.wish(&assignments, pod, &uid, container));
            same(n, "hints", &ours, &step.hints)?;
            let affinity = hint(step.hint.as_deref().unwrap_or("any")).affinity;
            let done = policy.allocate(&mut assignments, pod, &uid, container, affinity);
            error = done.err().map(|e| e.to_string());
        }
        same(n, "error", &error, &step.error)?;
        let file = checkpoint::encode("static", &assignments);
        same(n, &file, &checksum(&file), &step.state)?;
        let read = checkpoint::decode(&file, "static").map_err(|e| e.to_string())?;
        same(n, "read back", &read, &assignments)?;
    }
    Ok(())
}
