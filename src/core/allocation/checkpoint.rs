//! The files allocated_pods_state and actuated_pods_state, in the kubelet's format with its checksum, so that either agent goes on
//! from what the other has written.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Allocation;
use crate::hash::fnv1a_32;
use crate::ids::PodUid;

/// The content is JSON within JSON: the checksum is of its text.
#[derive(Serialize, Deserialize)]
struct File {
    data: String,
    checksum: u64,
}

#[derive(Serialize)]
struct Content<'a> {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<&'a PodUid, &'a Allocation>,
}

#[derive(Deserialize)]
struct Entries {
    #[serde(default)]
    entries: Option<BTreeMap<String, Allocation>>,
}

/// Why a file cannot be gone on from.
#[derive(Debug, thiserror::Error)]
pub enum BadAllocations {
    #[error("it is no checkpoint: {0}")]
    Unreadable(#[from] serde_json::Error),
    #[error("its checksum is {found}, and that of its content {computed}")]
    Corrupt { found: u64, computed: u64 },
    #[error("{0:?} is no uid of a pod")]
    Uid(String),
}

pub fn encode(entries: &BTreeMap<PodUid, Arc<Allocation>>) -> String {
    let entries = entries.iter().map(|(uid, allocation)| (uid, &**allocation)).collect();
    let data = serde_json::to_string(&Content { entries }).unwrap_or_default();
    let checksum = checksum(&data);
    serde_json::to_string(&File { data, checksum }).unwrap_or_default()
}

pub fn decode(text: &str) -> Result<BTreeMap<PodUid, Arc<Allocation>>, BadAllocations> {
    let file: File = serde_json::from_str(text)?;
    let computed = checksum(&file.data);
    if file.checksum != computed {
        return Err(BadAllocations::Corrupt { found: file.checksum, computed });
    }
    let content: Entries = serde_json::from_str(&file.data)?;
    let entry = |(uid, allocation): (String, Allocation)| {
        let uid = PodUid::try_from(uid.clone()).map_err(|_| BadAllocations::Uid(uid))?;
        Ok((uid, Arc::new(allocation)))
    };
    content.entries.unwrap_or_default().into_iter().map(entry).collect()
}

/// Of the text as Go shows a string.
fn checksum(data: &str) -> u64 {
    u64::from(fnv1a_32(format!("(string){data}").as_bytes()))
}
