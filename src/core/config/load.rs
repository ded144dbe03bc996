//! From texts and flags to settings: read, merge, override, decode, check. All problems of one stage are reported at once.

use std::fmt;

use super::decode::{Misfit, decode};
use super::fields::FieldValue;
use super::flags::ConfigFlag;
use super::kubelet::{API_VERSION, KIND, default_eviction_hard};
use super::tree::{self, Entry, Node, Origin, Value};
use super::{KubeletConfiguration, NodeFlags, Period, Settings, settings, together};

/// A configuration file that was read: its name for messages, and what is in it.
#[derive(Debug, Clone)]
pub struct ConfigText {
    pub name: String,
    pub text: String,
}

/// Everything that decides the settings. Later entries win: defaults, config, drop-ins in order, flags in order.
#[derive(Debug, Clone, Default)]
pub struct ConfigInput {
    pub config: Option<ConfigText>,
    pub drop_ins: Vec<ConfigText>,
    pub flags: Vec<(&'static ConfigFlag, String)>,
    pub node: NodeFlags,
    /// The machine's own name, for a node that is given no other.
    pub hostname: String,
}

/// One problem, and where it was written, if it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    pub origin: Option<Origin>,
    pub field: String,
    pub problem: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors(pub Vec<ConfigError>);

pub fn load(input: &ConfigInput) -> Result<Settings, ConfigErrors> {
    let mut problems = vec![];
    let mut merged = match &input.config {
        Some(text) => read(text, &mut problems),
        None => Node::empty_map(Origin::Default),
    };
    // The kubelet fills these in before it reads the drop-ins, so a drop-in that names one signal keeps the others.
    if merged.get("evictionHard").is_none() {
        merged.set(&["evictionHard"], default_thresholds());
    }
    for text in &input.drop_ins {
        merged.merge(read(text, &mut problems));
    }
    for (flag, given) in &input.flags {
        if let Err(problem) = flag.apply(&mut merged, given) {
            problems.push(ConfigError {
                origin: Some(Origin::Flag(flag.name)),
                field: flag.path.join("."),
                problem,
            });
        }
    }
    give_up_on(&problems)?;

    let mut kubelet: KubeletConfiguration =
        decode(&merged).map_err(|misfit| ConfigErrors(vec![misfit.into()]))?;
    settle(&mut kubelet, &merged);
    for (field, problem) in kubelet.problems().into_iter().chain(together::check(&kubelet)) {
        problems.push(ConfigError::at(&merged, field, problem));
    }
    let settings = settings::build(kubelet, &merged, input, &mut problems);
    give_up_on(&problems)?;
    Ok(settings)
}

fn give_up_on(problems: &[ConfigError]) -> Result<(), ConfigErrors> {
    if problems.is_empty() { Ok(()) } else { Err(ConfigErrors(problems.to_vec())) }
}

/// Reads one file and checks it on its own, so that a bad value is found even where a later file overrides it.
fn read(file: &ConfigText, problems: &mut Vec<ConfigError>) -> Node {
    let nowhere = || Node::empty_map(Origin::Default);
    let origin = |line| Origin::File { name: file.name.as_str().into(), line };
    let node = match tree::read(&file.name, &file.text) {
        Ok(node) => node,
        Err((line, problem)) => {
            let origin = Some(origin(line.unwrap_or(1)));
            problems.push(ConfigError { origin, field: String::new(), problem });
            return nowhere();
        }
    };
    for (field, right) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let (origin, problem) = match node.get(field) {
            Some(Node { value: Value::Text(text), .. }) if text == right => continue,
            Some(found) => (found.place.clone(), format!("this must be {right}")),
            None => (origin(1), format!("is missing, write {field}: {right}")),
        };
        problems.push(ConfigError { origin: Some(origin), field: field.into(), problem });
        return nowhere();
    }
    if let Err(misfit) = decode::<KubeletConfiguration>(&node) {
        problems.push(misfit.into());
        return nowhere();
    }
    node
}

fn default_thresholds() -> Node {
    let node = |value| Node { place: Origin::Default, value };
    let entries = default_eviction_hard().into_iter().map(|(key, threshold)| {
        let tree = node(Value::Text(threshold.as_str().into()));
        Entry { key, place: Origin::Default, tree }
    });
    node(Value::Map(entries.collect()))
}

/// Defaults that depend on other fields.
fn settle(kubelet: &mut KubeletConfiguration, given: &Node) {
    if !is_period(given, "nodeStatusReportFrequency") && is_period(given, "nodeStatusUpdateFrequency") {
        kubelet.node_status_report_frequency = kubelet.node_status_update_frequency;
    }
    if given.get("serializeImagePulls").is_none() {
        kubelet.serialize_image_pulls = kubelet.max_parallel_image_pulls.is_none_or(|pulls| pulls < 2);
    }
    if kubelet.pod_pids_limit < 0 {
        kubelet.pod_pids_limit = -1;
    }
    if kubelet.merge_default_eviction_settings {
        for (signal, threshold) in default_eviction_hard() {
            kubelet.eviction_hard.entry(signal).or_insert(threshold);
        }
    }
    if kubelet.image_service_endpoint.is_empty() {
        kubelet.image_service_endpoint = kubelet.container_runtime_endpoint.clone();
    }
}

/// Whether the field was given, other than as zero, which stands for its default.
fn is_period(given: &Node, field: &str) -> bool {
    match given.get(field).map(|node| &node.value) {
        Some(Value::Text(text)) => text.parse().is_ok_and(|period: Period| !period.is_zero()),
        _ => false,
    }
}

impl ConfigError {
    fn at(tree: &Node, field: String, problem: String) -> Self {
        let origin = Some(tree.origin_of(&field)).filter(|origin| *origin != Origin::Default);
        Self { origin, field, problem }
    }
}

impl From<Misfit> for ConfigError {
    fn from(misfit: Misfit) -> Self {
        Self { origin: misfit.origin, field: misfit.path, problem: misfit.problem }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}: ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.problem)
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}
