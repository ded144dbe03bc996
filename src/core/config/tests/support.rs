use super::*;

fn not_acted_on(body: &str) -> Vec<String> {
    load(&config(body)).unwrap().not_acted_on
}

#[test]
fn what_is_given_a_value_of_its_own_but_not_acted_on_is_named_with_its_line() {
    for (case, body, expected) in [
        ("a field of the document", "syncFrequency: 2m", "syncFrequency (kubelet.yaml:3)"),
        (
            "a field of a section",
            "port: 10250\nlogging:\n  flushFrequency: 7s",
            "logging.flushFrequency (kubelet.yaml:5)",
        ),
        (
            "one that is acted on in part",
            "evictionHard: {memory.available: 1Gi}",
            "evictionHard (kubelet.yaml:3): it only reduces what the node offers to pods; no pod is evicted",
        ),
    ] {
        assert_eq!(not_acted_on(body), [expected], "{case}");
    }
    let mut input = config("");
    input.flags = vec![
        flag("eviction-soft", "memory.available<1Gi"),
        flag("eviction-soft-grace-period", "memory.available=1m"),
    ];
    let named = load(&input).unwrap().not_acted_on;
    assert_eq!(
        named,
        ["evictionSoft (--eviction-soft)", "evictionSoftGracePeriod (--eviction-soft-grace-period)"]
    );
}

#[test]
fn a_default_that_is_written_out_and_a_field_that_is_acted_on_need_no_warning() {
    for body in [
        "failSwapOn: false",
        "syncFrequency: 1m",
        "evictionHard: {memory.available: 100Mi, nodefs.available: 10%, nodefs.inodesFree: 5%, \
         imagefs.available: 15%, imagefs.inodesFree: 5%}",
        "nodeStatusUpdateFrequency: 20s",
        "maxPods: 7\nauthentication: {webhook: {cacheTTL: 3m}}\nlogging: {format: json}",
    ] {
        assert_eq!(not_acted_on(body), [""; 0], "{body}");
    }
}

#[test]
fn every_field_is_declared_once_and_has_a_place_in_the_printed_configuration() {
    let printed = serde_json::to_value(KubeletConfiguration::default()).unwrap();
    let fields = KubeletConfiguration::declared();
    for (index, field) in fields.iter().enumerate() {
        let pointer = format!("/{}", field.path.join("/"));
        assert!(printed.pointer(&pointer).is_some(), "{} is not printed", field.name());
        assert!(
            fields[..index].iter().all(|other| other.path != field.path),
            "{} is there twice",
            field.name()
        );
    }
    let mut flags: Vec<_> = CONFIG_FLAGS.iter().map(|flag| flag.name).collect();
    flags.sort_unstable();
    let all = flags.len();
    flags.dedup();
    assert_eq!(flags.len(), all, "a flag stands for two fields");
    assert!(all > 100, "the flags of the kubelet are {all}");
}

/// Sections are looked into; what they hold decides, not they themselves.
#[test]
fn a_section_is_acted_on_field_by_field() {
    let support = |name: &str| {
        let fields = KubeletConfiguration::declared();
        fields.into_iter().find(|field| field.name() == name).map(|field| field.support)
    };
    assert_eq!(support("logging"), None);
    assert_eq!(support("logging.format"), Some(Support::ActedOn));
    assert_eq!(support("logging.flushFrequency"), Some(Support::NotActedOn));
    assert_eq!(support("memorySwap.swapBehavior"), Some(Support::ActedOn));
    assert!(matches!(support("evictionHard"), Some(Support::Partly(_))));
}
