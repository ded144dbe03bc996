//! The file cpu_manager_state, in the kubelet's format with its checksum, so that either agent goes on from what the other
//! has written.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::policy::Assignments;
use crate::cpuset::BadCpuSet;
use crate::hash::fnv1a_32;
use crate::ids::PodUid;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    policy_name: String,
    default_cpu_set: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, BTreeMap<String, String>>,
    checksum: u64,
}

/// Why a file cannot be gone on from.
#[derive(Debug, thiserror::Error)]
pub enum BadCheckpoint {
    #[error("it is no checkpoint: {0}")]
    Unreadable(#[from] serde_json::Error),
    #[error("its checksum is {found}, and that of its content {computed}")]
    Corrupt { found: u64, computed: u64 },
    #[error("it is of the policy {found:?}, and {wanted:?} is configured")]
    OtherPolicy { found: String, wanted: String },
    #[error(transparent)]
    Cpus(#[from] BadCpuSet),
    #[error("{0:?} is no uid of a pod")]
    Uid(String),
}

pub fn encode(policy: &str, assignments: &Assignments) -> String {
    let of_pod = |containers: &BTreeMap<String, crate::cpuset::CpuSet>| {
        containers.iter().map(|(name, cpus)| (name.clone(), cpus.to_string())).collect()
    };
    let mut file = File {
        policy_name: policy.into(),
        default_cpu_set: assignments.shared.to_string(),
        entries: assignments.exclusive.iter().map(|(uid, c)| (uid.to_string(), of_pod(c))).collect(),
        checksum: 0,
    };
    file.checksum = checksum(&file);
    serde_json::to_string(&file).unwrap_or_default()
}

pub fn decode(text: &str, policy: &str) -> Result<Assignments, BadCheckpoint> {
    let file: File = serde_json::from_str(text)?;
    let computed = checksum(&file);
    // Files from before there were checksums have none.
    if file.checksum != 0 && file.checksum != computed {
        return Err(BadCheckpoint::Corrupt { found: file.checksum, computed });
    }
    if file.policy_name != policy {
        return Err(BadCheckpoint::OtherPolicy { found: file.policy_name, wanted: policy.into() });
    }
    let mut assignments = Assignments { shared: file.default_cpu_set.parse()?, ..Assignments::default() };
    for (uid, containers) in file.entries {
        let uid = PodUid::try_from(uid.clone()).map_err(|_| BadCheckpoint::Uid(uid))?;
        for (name, cpus) in containers {
            assignments.exclusive.entry(uid.clone()).or_default().insert(name, cpus.parse()?);
        }
    }
    Ok(assignments)
}

/// Of the structure as Go shows it.
fn checksum(file: &File) -> u64 {
    let mut entries = String::new();
    for (n, (pod, containers)) in file.entries.iter().enumerate() {
        let containers: Vec<String> =
            containers.iter().map(|(name, cpus)| format!("{name}:{cpus}")).collect();
        let _ = write!(entries, "{}{pod}:map[{}]", if n > 0 { " " } else { "" }, containers.join(" "));
    }
    let shown = format!(
        "(*state.CPUManagerCheckpoint){{PolicyName:(string){} DefaultCPUSet:(string){} \
         Entries:(map[string]map[string]string)map[{entries}] Checksum:(checksum.Checksum)0}}",
        file.policy_name, file.default_cpu_set
    );
    fnv1a_32(shown.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#;
    const TWO: &str =
        r#"{"policyName":"static","defaultCpuSet":"0-1,3","entries":{"b":{"a":"5-6","z":"4"}},"checksum":"#;

    fn two() -> Assignments {
        let containers = [("a".to_owned(), "5-6".parse().unwrap()), ("z".to_owned(), "4".parse().unwrap())];
        let uid = PodUid::try_from("b".to_owned()).unwrap();
        Assignments { shared: "0-1,3".parse().unwrap(), exclusive: [(uid, containers.into())].into() }
    }

    #[test]
    fn files_are_those_of_a_kubelet() {
        assert_eq!(encode("none", &Assignments::default()), EMPTY);
        assert_eq!(decode(EMPTY, "none").unwrap(), Assignments::default());
        let written = encode("static", &two());
        assert!(written.starts_with(TWO), "{written}");
        assert_eq!(decode(&written, "static").unwrap(), two());
    }

    #[test]
    fn a_file_that_was_changed_cut_or_made_for_another_policy_is_not_gone_on_from() {
        let good = encode("static", &two());
        let cases = [
            (good.replace("5-6", "5-7"), "checksum"),
            (good[..20].to_owned(), "no checkpoint"),
            (String::new(), "no checkpoint"),
            (good.clone(), "is configured"),
            (r#"{"policyName":"none","defaultCpuSet":"x","checksum":0}"#.to_owned(), "no set of CPUs"),
        ];
        for (text, why) in cases {
            let error = decode(&text, "none").unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
