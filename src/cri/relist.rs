//! Finds out which pods changed by comparing two lists.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use keelson_core::ids::PodUid;

use crate::Runtime;
use crate::error::CriError;
use crate::events::RuntimeChange;
use crate::validate::Owner;

/// A list that takes longer means that the runtime hangs, and the watch should say so rather than wait.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// What the last list showed.
#[derive(Default)]
pub(crate) struct Relist {
    /// `None` before the first list, and when whatever it showed is no longer to be compared with.
    last: Option<Last>,
    owners: HashMap<String, PodUid>,
}

struct Last {
    /// Which connection showed it. Over another one another life of the runtime may be heard.
    connection: u64,
    pods: BTreeMap<PodUid, Entries>,
}

/// One pod's sandboxes and containers with their states, as listed.
type Entries = BTreeSet<(String, i32)>;

impl Relist {
    /// After this the next comparison reports that everything may have changed.
    pub fn forget(&mut self) {
        self.last = None;
    }

    /// Whose sandbox or container this is, if it was ever reported.
    pub fn owner_of(&self, id: &str) -> Option<PodUid> {
        self.owners.get(id).cloned()
    }

    pub fn remember(&mut self, id: &str, owner: &PodUid) {
        self.owners.insert(id.to_owned(), owner.clone());
    }

    pub async fn compare(&mut self, runtime: &Runtime) -> Result<Vec<RuntimeChange>, CriError> {
        let now = list(runtime).await?;
        let connection = runtime.connections();
        self.owners = now
            .iter()
            .flat_map(|(uid, entries)| entries.iter().map(move |(id, _)| (id.clone(), uid.clone())))
            .collect();
        let changes = match &self.last {
            Some(before) if before.connection == connection => {
                changed(&before.pods, &now).into_iter().map(RuntimeChange::Pod).collect()
            }
            _ => vec![RuntimeChange::Resync],
        };
        self.last = Some(Last { connection, pods: now });
        Ok(changes)
    }
}

async fn list(runtime: &Runtime) -> Result<BTreeMap<PodUid, Entries>, CriError> {
    let both = async { futures::try_join!(runtime.list_sandboxes(None), runtime.list_containers(None)) };
    let (sandboxes, containers) = tokio::time::timeout(LIST_TIMEOUT, both)
        .await
        .map_err(|_| CriError::timeout("list what runs on", runtime.endpoint(), LIST_TIMEOUT))??;
    let mut pods: BTreeMap<PodUid, Entries> = BTreeMap::new();
    let sandboxes = sandboxes.into_iter().map(|s| (s.labels, s.id, s.state));
    let containers = containers.into_iter().map(|c| (c.labels, c.id, c.state));
    for (labels, id, state) in sandboxes.chain(containers) {
        if let Some(owner) = Owner::read(&labels, &id) {
            pods.entry(owner.uid).or_default().insert((id, state));
        }
    }
    Ok(pods)
}

/// Pods that came, went, or hold something in another state than before.
fn changed(before: &BTreeMap<PodUid, Entries>, now: &BTreeMap<PodUid, Entries>) -> Vec<PodUid> {
    let gone = before.keys().filter(|uid| !now.contains_key(*uid));
    let other = now.iter().filter(|(uid, entries)| before.get(*uid) != Some(entries)).map(|(uid, _)| uid);
    gone.chain(other).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(described: &[(&str, &[(&str, i32)])]) -> BTreeMap<PodUid, Entries> {
        let entries =
            |list: &[(&str, i32)]| list.iter().map(|(id, state)| ((*id).to_owned(), *state)).collect();
        described.iter().map(|(uid, list)| (PodUid::try_from(*uid).unwrap(), entries(list))).collect()
    }

    #[test]
    fn only_pods_that_differ_are_reported() {
        let before = pods(&[("same", &[("a", 0)]), ("gone", &[("b", 0)]), ("exits", &[("c", 1), ("d", 1)])]);
        let now = pods(&[("same", &[("a", 0)]), ("new", &[("e", 0)]), ("exits", &[("c", 1), ("d", 2)])]);
        let uids: Vec<String> = changed(&before, &now).iter().map(|uid| uid.to_string()).collect();
        assert_eq!(uids, ["gone", "exits", "new"]);
        assert_eq!(changed(&now, &now), []);
    }
}
