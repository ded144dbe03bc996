//! How Kubernetes wants labels, taints and nodes to be named.

/// `[prefix/]name` as Kubernetes has it for labels and taints.
pub(super) fn is_qualified_name(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let good_prefix = prefix.is_none_or(|prefix| {
        prefix.len() <= 253
            && prefix.split('.').all(|part| {
                !part.is_empty()
                    && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
                    && !part.starts_with('-')
                    && !part.ends_with('-')
            })
    });
    good_prefix && !name.is_empty() && is_label_value(name)
}

pub(super) fn is_label_value(value: &str) -> bool {
    let bytes = value.as_bytes();
    let inner = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    match (bytes.first(), bytes.last()) {
        (Some(first), Some(last)) => {
            bytes.len() <= 63
                && first.is_ascii_alphanumeric()
                && last.is_ascii_alphanumeric()
                && bytes.iter().all(inner)
        }
        _ => true,
    }
}

/// A label in a namespace of Kubernetes, but not one of those that a node may set on itself.
pub(super) fn is_reserved_label(key: &str) -> bool {
    let Some((namespace, _)) = key.split_once('/') else { return false };
    let within = |suffix: &str| namespace == suffix || namespace.ends_with(&format!(".{suffix}"));
    let own = within("node.kubernetes.io") || within("kubelet.kubernetes.io");
    let allowed = [
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
    ];
    (within("kubernetes.io") || within("k8s.io")) && !own && !allowed.contains(&key)
}

pub(super) fn is_dns_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 253
        && name.split('.').all(|part| {
            !part.is_empty()
                && !part.starts_with('-')
                && !part.ends_with('-')
                && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        })
}
