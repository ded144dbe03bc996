//! What an emptyDir is made of: a directory, memory, or huge pages.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::resources::{Amount, amount_of, pod_cgroup};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    Disk,
    /// The most that it may hold.
    Memory {
        size: Option<u64>,
    },
    HugePages {
        page_bytes: u64,
    },
}

/// The error is what is wrong, in words, and does not name the volume.
pub fn medium(
    pod: &Pod,
    source: &EmptyDirVolumeSource,
    node_allocatable: &BTreeMap<String, Quantity>,
) -> Result<Medium, String> {
    let limit = source.size_limit.as_ref().map(amount_of).transpose();
    let limit = limit.map_err(|e| format!("sizeLimit: {e}"))?;
    match source.medium.as_deref().unwrap_or_default() {
        "" => Ok(Medium::Disk),
        "Memory" => Ok(Medium::Memory { size: memory_size(pod, limit, node_allocatable) }),
        "HugePages" => only_page(pod).map(|page_bytes| Medium::HugePages { page_bytes }),
        medium => match medium.strip_prefix("HugePages-") {
            Some(size) => page_of(pod, medium, size).map(|page_bytes| Medium::HugePages { page_bytes }),
            None => Err(format!(
                "medium {medium:?} is not supported; \"\", \"Memory\", \"HugePages\" and \"HugePages-\" with a page size are"
            )),
        },
    }
}

/// The volume's own limit, the pod's, and what all pods together may take: the smallest one counts.
fn memory_size(
    pod: &Pod,
    limit: Option<Amount>,
    node_allocatable: &BTreeMap<String, Quantity>,
) -> Option<u64> {
    // The processor's share is not asked for, so any period will do.
    let of_pod = pod_cgroup(pod, true, 100_000).memory_limit;
    let all_pods = node_allocatable.get("memory").and_then(|q| amount_of(q).ok()).map(|a| a.value());
    let own = limit.map(|a| a.value());
    let bytes = |value: i64| u64::try_from(value).ok().filter(|bytes| *bytes > 0);
    [own, of_pod, all_pods].into_iter().flatten().filter_map(bytes).min()
}

/// The one size of pages that the pod asks for.
fn only_page(pod: &Pod) -> Result<u64, String> {
    let mut sizes = page_sizes(pod);
    sizes.dedup();
    match sizes.as_slice() {
        [one] => Ok(*one),
        [] => Err(not_requested("HugePages")),
        _ => Err("medium HugePages can't be used if containers request multiple huge page sizes; name one, such as \
                  HugePages-2Mi"
            .into()),
    }
}

fn page_of(pod: &Pod, medium: &str, size: &str) -> Result<u64, String> {
    let bytes = page_bytes(size).ok_or_else(|| format!("medium {medium:?} names no size of pages"))?;
    match page_sizes(pod).contains(&bytes) {
        true => Ok(bytes),
        false => Err(not_requested(medium)),
    }
}

fn not_requested(medium: &str) -> String {
    format!("medium {medium}: huge pages are asked for, but no container requests pages of that size")
}

/// Of all that the pod and its containers request, in order. Limits are the same as requests here.
fn page_sizes(pod: &Pod) -> Vec<u64> {
    let Some(spec) = &pod.spec else { return vec![] };
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let all = containers.map(|c| c.resources.as_ref()).chain([spec.resources.as_ref()]);
    let requests = all.flatten().filter_map(|r| r.requests.as_ref()).flat_map(|list| list.keys());
    let mut sizes: Vec<u64> =
        requests.filter_map(|name| page_bytes(name.strip_prefix("hugepages-")?)).collect();
    sizes.sort_unstable();
    sizes
}

fn page_bytes(size: &str) -> Option<u64> {
    u64::try_from(size.parse::<Amount>().ok()?.value()).ok().filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const MI: u64 = 1 << 20;

    fn of(source: Value, resources: &[Value]) -> Result<Medium, String> {
        let container = |(index, r): (usize, &Value)| json!({"name": format!("c{index}"), "resources": r});
        let containers: Vec<Value> = resources.iter().enumerate().map(container).collect();
        let pod: Pod = serde_json::from_value(json!({"spec": {"containers": containers}})).unwrap();
        let allocatable = [("memory".to_owned(), Quantity("100Mi".into()))].into();
        medium(&pod, &serde_json::from_value(source).unwrap(), &allocatable)
    }

    #[test]
    fn memory_is_bounded_by_the_least_of_what_the_volume_the_pod_and_all_pods_may_have() {
        let limit = |size: &str| json!({"limits": {"memory": size}, "requests": {"memory": "1Mi"}});
        let cases = [
            ("nothing but the node", json!({"medium": "Memory"}), json!({}), 100 * MI),
            ("the pod", json!({"medium": "Memory"}), limit("64Mi"), 64 * MI),
            ("the volume", json!({"medium": "Memory", "sizeLimit": "8Mi"}), limit("64Mi"), 8 * MI),
            (
                "a volume that asks for more",
                json!({"medium": "Memory", "sizeLimit": "80Mi"}),
                limit("64Mi"),
                64 * MI,
            ),
            ("a pod that may have more than there is", json!({"medium": "Memory"}), limit("1Gi"), 100 * MI),
            (
                "a limit of nothing is none",
                json!({"medium": "Memory", "sizeLimit": "0"}),
                json!({}),
                100 * MI,
            ),
        ];
        for (name, source, resources, size) in cases {
            assert_eq!(of(source, &[resources]), Ok(Medium::Memory { size: Some(size) }), "{name}");
        }
        assert_eq!(of(json!({}), &[]), Ok(Medium::Disk));
        assert!(of(json!({"sizeLimit": "much"}), &[]).is_err_and(|e| e.contains("sizeLimit")));
        assert!(of(json!({"medium": "Tape"}), &[]).is_err_and(|e| e.contains("\"Tape\" is not supported")));
    }

    #[test]
    fn huge_pages_are_of_a_size_that_a_container_requests() {
        let pages = |size: &str| json!({"requests": {format!("hugepages-{size}"): "4Gi", "memory": "1Gi"}});
        let both = [pages("2Mi"), pages("1Gi")];
        let cases = [
            ("HugePages", &[pages("2Mi")][..], Ok(2 * MI)),
            ("HugePages", &[pages("2Mi"), pages("2Mi")], Ok(2 * MI)),
            ("HugePages", &both, Err("multiple huge page sizes")),
            ("HugePages", &[json!({})], Err("no container requests")),
            ("HugePages-2Mi", &both, Ok(2 * MI)),
            ("HugePages-1Gi", &both, Ok(1024 * MI)),
            ("HugePages-2048Ki", &both, Ok(2 * MI)),
            ("HugePages-1Gi", &[pages("2Mi")], Err("medium HugePages-1Gi: huge pages are asked for")),
            ("HugePages-", &both, Err("names no size")),
            ("HugePages-big", &both, Err("names no size")),
            ("HugePages-0", &both, Err("names no size")),
            ("hugepages", &both, Err("not supported")),
        ];
        for (medium, resources, expected) in cases {
            let said = of(json!({"medium": medium}), resources);
            let same = match (&said, expected) {
                (Ok(Medium::HugePages { page_bytes }), Ok(expected)) => *page_bytes == expected,
                (Err(error), Err(expected)) => error.contains(expected),
                _ => false,
            };
            assert!(same, "{medium}: {said:?}");
        }
    }
}
