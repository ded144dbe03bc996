use std::collections::BTreeMap;

use serde::Deserialize;

use super::{hint, same, shown};
use crate::topology_manager::{NumaNodes, Policy, Wish, merge};

#[derive(Deserialize)]
pub struct Case {
    policy: String,
    nodes: Vec<u32>,
    distances: Option<BTreeMap<u32, Vec<u64>>>,
    wishes: Vec<Option<Vec<String>>>,
    hint: String,
    admitted: bool,
}

pub fn replay(case: &Case) -> Result<(), String> {
    let policy = match case.policy.as_str() {
        "best-effort" => Policy::BestEffort,
        "restricted" => Policy::Restricted,
        "single-numa-node" => Policy::SingleNumaNode,
        other => return Err(format!("{other:?} is no policy")),
    };
    let numa = NumaNodes { nodes: case.nodes.clone(), distances: case.distances.clone() };
    let wish = |hints: &Option<Vec<String>>| match hints {
        None => Wish::Anywhere,
        Some(hints) => Wish::OneOf(hints.iter().map(|text| hint(text)).collect()),
    };
    let wishes: Vec<Wish> = case.wishes.iter().map(wish).collect();
    let merged = merge(policy, &numa, &wishes);
    same(0, &case.policy, &(shown(&merged.hint), merged.admitted), &(case.hint.clone(), case.admitted))
}
