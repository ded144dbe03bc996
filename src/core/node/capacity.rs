//! How much there is, and how much of it pods may use.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capacity {
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    pub ephemeral_storage_bytes: u64,
    pub pods: u32,
    /// Bytes, by page size in bytes.
    pub huge_pages: BTreeMap<u64, u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amounts {
    pub cpu_millis: u64,
    pub memory_bytes: u64,
    pub ephemeral_storage_bytes: u64,
}

/// What pods may not use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reserved {
    pub system: Amounts,
    pub agent: Amounts,
    /// The hard eviction thresholds in bytes (a percentage is resolved by whoever fills this in): below them pods are
    /// evicted, so nobody can count on that part.
    pub eviction: Amounts,
}

type ResourceList = BTreeMap<String, Quantity>;

/// What is left for pods of one resource each. Never below zero.
pub fn allocatable(capacity: &Capacity, reserved: &Reserved) -> Amounts {
    let left = |of: u64, pick: fn(&Amounts) -> u64| {
        [&reserved.system, &reserved.agent, &reserved.eviction]
            .into_iter()
            .map(pick)
            .fold(of, u64::saturating_sub)
    };
    let huge: u64 = capacity.huge_pages.values().sum();
    Amounts {
        cpu_millis: left(capacity.cpu_millis, |a| a.cpu_millis),
        // Huge pages were taken out of the same memory.
        memory_bytes: left(capacity.memory_bytes, |a| a.memory_bytes).saturating_sub(huge),
        ephemeral_storage_bytes: left(capacity.ephemeral_storage_bytes, |a| a.ephemeral_storage_bytes),
    }
}

/// Capacity and allocatable as the Node lists them.
pub(super) fn lists(
    capacity: &Capacity,
    reserved: &Reserved,
    extended: &BTreeMap<String, u64>,
) -> (ResourceList, ResourceList) {
    let whole = Amounts {
        cpu_millis: capacity.cpu_millis,
        memory_bytes: capacity.memory_bytes,
        ephemeral_storage_bytes: capacity.ephemeral_storage_bytes,
    };
    (list(whole, capacity, extended), list(allocatable(capacity, reserved), capacity, extended))
}

fn list(amounts: Amounts, capacity: &Capacity, extended: &BTreeMap<String, u64>) -> ResourceList {
    let mut list = ResourceList::from([
        ("cpu".to_owned(), cpu_quantity(amounts.cpu_millis)),
        ("memory".to_owned(), binary_quantity(amounts.memory_bytes)),
        ("ephemeral-storage".to_owned(), binary_quantity(amounts.ephemeral_storage_bytes)),
        ("pods".to_owned(), Quantity(capacity.pods.to_string())),
    ]);
    for (page, bytes) in &capacity.huge_pages {
        list.insert(format!("hugepages-{}", binary_quantity(*page).0), binary_quantity(*bytes));
    }
    for (name, count) in extended {
        list.insert(name.clone(), Quantity(count.to_string()));
    }
    list
}

/// Writes ours over theirs. What others advertise on the node (extended resources) stays; a huge page size that the
/// kernel no longer offers goes.
pub(super) fn merge(theirs: &mut ResourceList, ours: ResourceList) {
    theirs.retain(|name, _| ours.contains_key(name) || !name.starts_with("hugepages-"));
    theirs.extend(ours);
}

/// Whole cores without a suffix, else thousandths: the canonical form, so that the server does not rewrite it.
pub fn cpu_quantity(millis: u64) -> Quantity {
    Quantity(if millis.is_multiple_of(1000) { (millis / 1000).to_string() } else { format!("{millis}m") })
}

/// Bytes with the largest binary suffix that loses nothing.
pub fn binary_quantity(bytes: u64) -> Quantity {
    const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let mut value = bytes;
    let mut power = 0;
    while value != 0 && value.is_multiple_of(1024) && power + 1 < SUFFIXES.len() {
        value /= 1024;
        power += 1;
    }
    Quantity(format!("{value}{}", SUFFIXES[power]))
}
