//! Which pod was meant.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::PodTimeline;
use crate::likeness::distance;

pub struct Query<'a> {
    /// NAME, NAMESPACE/NAME or a uid.
    pub pod: &'a str,
    pub namespace: Option<&'a str>,
}

/// A pod that there is a record of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub ending: bool,
    pub gone: Option<Timestamp>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// Indexes into what was known.
    pub pod: usize,
    /// Other pods with its name.
    pub others: Vec<usize>,
}

impl PodTimeline {
    pub fn known(&self) -> Known {
        Known {
            uid: self.uid.to_string(),
            namespace: self.namespace.to_string(),
            name: self.name.to_string(),
            ending: self.end.is_some(),
            gone: self.gone.map(|at| at.wall()),
        }
    }
}

/// `known` has those that are here first, then those that are gone, latest first. The error says what is known.
pub fn find(query: &Query<'_>, known: &[Known]) -> Result<Found, String> {
    let by_uid =
        known.iter().position(|k| k.uid == query.pod && query.namespace.is_none_or(|n| n == k.namespace));
    if let Some(pod) = by_uid {
        return Ok(with_others(pod, known));
    }
    let (namespace, name) = match (query.pod.split_once('/'), query.namespace) {
        (Some((of_pod, _)), Some(namespace)) if of_pod != namespace => {
            return Err(format!("{} is not in namespace {namespace}: leave out one of the two", query.pod));
        }
        (Some((namespace, name)), _) => (Some(namespace), name),
        (None, namespace) => (namespace, query.pod),
    };
    let named = |k: &&Known| k.name == name && namespace.is_none_or(|n| n == k.namespace);
    let is_here = known.iter().filter(named).any(|k| k.gone.is_none());
    let here = |k: &&Known| named(k) && k.gone.is_none() == is_here;
    let namespaces: BTreeSet<&str> = known.iter().filter(here).map(|k| k.namespace.as_str()).collect();
    if namespaces.len() > 1 {
        let all: Vec<String> = namespaces.iter().map(|n| format!("{n}/{name}")).collect();
        return Err(format!("several pods are called {name}: {}; say which one", all.join(", ")));
    }
    let matching = known.iter().enumerate().filter(|(_, k)| here(k));
    // One that stays before one that goes.
    match matching.min_by_key(|(_, k)| k.ending && is_here) {
        Some((pod, _)) => Ok(with_others(pod, known)),
        None => Err(unknown(namespace, name, known)),
    }
}

fn with_others(pod: usize, known: &[Known]) -> Found {
    let found = &known[pod];
    let same = |k: &Known| (&k.namespace, &k.name) == (&found.namespace, &found.name);
    let others = known.iter().enumerate().filter(|(index, k)| *index != pod && same(k));
    Found { pod, others: others.map(|(index, _)| index).collect() }
}

/// How many names an error lists.
const LISTED: usize = 10;

fn unknown(namespace: Option<&str>, name: &str, known: &[Known]) -> String {
    let place = namespace.map_or(String::new(), |n| format!(" in namespace {n}"));
    let gone = known.iter().filter(|k| k.gone.is_some()).count();
    let head = format!(
        "no pod called {name}{place} is on this node, nor is there one among the {gone} that are remembered as gone"
    );
    let alike = |k: &&Known| {
        k.name.contains(name) || distance(name, &k.name) <= 2.max(k.name.len() / 4) || k.name == name
    };
    let similar = listed(known.iter().filter(alike));
    let all = listed(known.iter());
    match (similar.is_empty(), all.is_empty()) {
        (false, _) => format!("{head}; similar: {similar}"),
        (true, false) => format!("{head}; known: {all}"),
        (true, true) => head,
    }
}

fn listed<'a>(pods: impl Iterator<Item = &'a Known>) -> String {
    let mut names: Vec<String> = vec![];
    let mut more = 0;
    for k in pods {
        let gone = if k.gone.is_some() { " (gone)" } else { "" };
        let name = format!("{}/{}{gone}", k.namespace, k.name);
        if names.contains(&name) {
            continue;
        }
        if names.len() < LISTED {
            names.push(name);
        } else {
            more += 1;
        }
    }
    if more > 0 {
        names.push(format!("and {more} more"));
    }
    names.join(", ")
}
