use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{checksum, hint, same, shortened};
use crate::ids::PodUid;
use crate::memory_manager::{Machine, MemoryPolicy, checkpoint};

#[derive(Deserialize)]
pub struct Case {
    machine: Machine,
    steps: Vec<Step>,
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
    hints: BTreeMap<String, Vec<String>>,
    error: Option<String>,
    state: u64,
}

#[derive(Deserialize)]
struct Wanted {
    name: String,
    kind: String,
    size: BTreeMap<String, u64>,
}

impl Wanted {
    fn container(&self) -> super::Wanted<'_> {
        let mut resources = json!({"cpu": "1"});
        for (name, size) in &self.size {
            resources[name] = Value::String(size.to_string());
        }
        super::Wanted { name: &self.name, kind: &self.kind, resources }
    }
}

pub fn replay(case: &Case) -> Result<(), String> {
    let policy = MemoryPolicy::new(case.machine.clone());
    let mut state = policy.initial();
    let mut pods = BTreeMap::new();
    for (n, step) in case.steps.iter().enumerate() {
        let uid = PodUid::try_from(format!("pod-{}", step.pod)).unwrap();
        if let Some(wanted) = &step.containers {
            pods.insert(step.pod, super::pod(wanted.iter().map(Wanted::container)));
        }
        let mut error = None;
        if step.remove {
            state.release(&uid, &step.container);
        } else {
            let pod = &pods[&step.pod];
            let spec = pod.spec.as_ref().unwrap();
            let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
            let container = all.find(|c| c.name == step.container).unwrap();
            let ours: Vec<_> = policy.wishes(&state, pod, &uid, container).iter().map(shortened).collect();
            let theirs: Vec<_> = step.hints.values().cloned().collect();
            // One that does not care has a wish without hints.
            same(n, "hints", &ours, &if theirs.is_empty() { vec![vec![]] } else { theirs })?;
            let done = policy.allocate(&mut state, pod, &uid, container, hint(step.hint.as_deref().unwrap()));
            error = done.err().map(|e| e.to_string());
        }
        same(n, "error", &error, &step.error)?;
        let file = checkpoint::encode("Static", &state);
        same(n, &file, &checksum(&file), &step.state)?;
        let read = checkpoint::decode(&file, "Static").map_err(|e| e.to_string())?;
        same(n, "read back", &(&read.machine, &read.blocks), &(&state.machine, &state.blocks))?;
    }
    Ok(())
}
