//! The file `userns` in a pod's directory, in which a kubelet and this agent remember the pod's ids. On disk.

use serde::{Deserialize, Serialize};

use super::UserNamespace;

/// Why a file is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadRecord {
    #[error("it is no JSON of mappings: {0}")]
    Unreadable(String),
    #[error("it has {uids} mappings of users and {gids} of groups, where one of each is expected")]
    Count { uids: usize, gids: usize },
    #[error("its mappings of users and groups differ")]
    Differ,
    #[error("it does not map id 0, or maps no id at all")]
    Root,
    #[error("its ids {0} are not of those that this node gives to pods")]
    Foreign(UserNamespace),
    #[error("its ids {ids} are those of pod {other}")]
    Taken { ids: UserNamespace, other: String },
}

#[derive(Serialize, Deserialize)]
struct Record {
    #[serde(rename = "uidMappings")]
    uids: Vec<Mapping>,
    #[serde(rename = "gidMappings")]
    gids: Vec<Mapping>,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Mapping {
    #[serde(rename = "hostId")]
    host: u32,
    #[serde(rename = "containerId")]
    container: u32,
    length: u32,
}

/// An empty file says nothing; it is as good as none.
pub fn read_record(text: &[u8]) -> Result<Option<UserNamespace>, BadRecord> {
    if text.is_empty() {
        return Ok(None);
    }
    let record: Record = serde_json::from_slice(text).map_err(|e| BadRecord::Unreadable(e.to_string()))?;
    let ([uids], [gids]) = (&record.uids[..], &record.gids[..]) else {
        return Err(BadRecord::Count { uids: record.uids.len(), gids: record.gids.len() });
    };
    if uids != gids {
        return Err(BadRecord::Differ);
    }
    if uids.container != 0 || uids.length == 0 {
        return Err(BadRecord::Root);
    }
    Ok(Some(UserNamespace { first_host_id: uids.host, length: uids.length }))
}

pub fn write_record(ids: UserNamespace) -> String {
    let UserNamespace { first_host_id, length } = ids;
    // Written out: the order of the names is the kubelet's, and nothing in it needs escaping.
    let mapping = format!(r#"[{{"hostId":{first_host_id},"containerId":0,"length":{length}}}]"#);
    format!(r#"{{"uidMappings":{mapping},"gidMappings":{mapping}}}"#)
}
