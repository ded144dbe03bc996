//! What the kubelet's own managers decided for generated machines and pods, decided again here. The decisions are those of
//! tests/managers, a program around the kubelet's packages; `make differential` has it write others;
//! without a seed and packed with `gzip -9n` they are those that are kept here.

mod cpu;
mod memory;
mod merging;

use std::io::Read as _;

use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cpuset::CpuSet;
use crate::hash::fnv1a_32;
use crate::topology_manager::{Hint, Wish};

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Decisions {
    Cpu(cpu::Case),
    Memory(memory::Case),
    Merge(merging::Case),
}

/// Decisions to look at instead of those that are kept here.
const FILE: &str = "KEELSON_DECISIONS";

fn decisions() -> String {
    if let Some(path) = std::env::var_os(FILE) {
        return std::fs::read_to_string(path).unwrap();
    }
    let mut text = String::new();
    let packed = include_bytes!("decisions.jsonl.gz").as_slice();
    flate2::read::GzDecoder::new(packed).read_to_string(&mut text).unwrap();
    text
}

#[test]
fn decides_as_the_kubelet_does() {
    let (mut wrong, mut kinds) = (Vec::new(), [0; 3]);
    for (n, line) in decisions().lines().enumerate() {
        let (kind, result) = match serde_json::from_str(line).unwrap() {
            Decisions::Cpu(case) => (0, cpu::replay(&case)),
            Decisions::Memory(case) => (1, memory::replay(&case)),
            Decisions::Merge(case) => (2, merging::replay(&case)),
        };
        kinds[kind] += 1;
        wrong.extend(result.err().map(|why| format!("line {}: {why}", n + 1)));
    }
    assert!(kinds.iter().all(|count| *count >= 200), "there are only {kinds:?} cases");
    assert!(wrong.is_empty(), "{} differ: {:#?}", wrong.len(), &wrong[..wrong.len().min(5)]);
}

/// A container of a generated pod.
struct Wanted<'a> {
    name: &'a str,
    kind: &'a str,
    /// Its requests and limits.
    resources: Value,
}

fn pod<'a>(wanted: impl Iterator<Item = Wanted<'a>> + Clone) -> Pod {
    let of = |main: bool| -> Vec<Value> {
        let these = wanted.clone().filter(|w| (w.kind == "main") == main);
        let container = |w: Wanted<'_>| {
            let resources = json!({"requests": w.resources, "limits": w.resources});
            let policy = (w.kind == "sidecar").then_some("Always");
            json!({"name": w.name, "resources": resources, "restartPolicy": policy})
        };
        these.map(container).collect()
    };
    serde_json::from_value(json!({"spec": {"initContainers": of(false), "containers": of(true)}})).unwrap()
}

/// A list of NUMA nodes, or any of them, with a ! when it is preferred.
fn hint(text: &str) -> Hint {
    let nodes = text.trim_end_matches('!');
    let affinity = (nodes != "any").then(|| nodes.parse::<CpuSet>().unwrap().iter().collect());
    Hint { affinity, preferred: text.ends_with('!') }
}

fn shown(hint: &Hint) -> String {
    let nodes = hint.affinity.map(|mask| mask.nodes().collect::<CpuSet>().to_string());
    format!("{}{}", nodes.as_deref().unwrap_or("any"), if hint.preferred { "!" } else { "" })
}

/// The first few, and a hash of them all, as the decisions hold them.
fn shortened(wish: &Wish) -> Vec<String> {
    let Wish::OneOf(hints) = wish else { return Vec::new() };
    let mut texts: Vec<String> = hints.iter().map(shown).collect();
    if texts.len() > 8 {
        let hash = fnv1a_32(texts.join(" ").as_bytes());
        let rest = format!("{} hints: {hash}", texts.len());
        texts.truncate(4);
        texts.push(rest);
    }
    texts
}

fn same<T: PartialEq + std::fmt::Debug>(step: usize, what: &str, ours: &T, theirs: &T) -> Result<(), String> {
    if ours == theirs { Ok(()) } else { Err(format!("step {step}: {what} {ours:?}, not {theirs:?}")) }
}

/// The checksum in the file that a manager writes.
fn checksum(file: &str) -> u64 {
    serde_json::from_str::<Value>(file).unwrap()["checksum"].as_u64().unwrap()
}
