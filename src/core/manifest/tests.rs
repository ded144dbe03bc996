use super::*;

const WEB: &str = r#"# A comment.
apiVersion: v1
kind: Pod
metadata:
  name: web
  labels: {app.kubernetes.io/name: web}
  creationTimestamp: null
spec:
  containers:
  - name: main
    image: example/web:1
    args: ["yes", "0644"]
    resources:
      limits: {cpu: 1, memory: 64Mi}
      requests: {cpu: 0.5}
    ports:
    - containerPort: 80
    volumeMounts:
    - {name: data, mountPath: /data}
    livenessProbe:
      httpGet: {port: web, path: /}
  volumes:
  - name: data
    emptyDir: {}
  - name: info
    downwardAPI:
      defaultMode: 0640
      items:
      - path: name
        fieldRef: {fieldPath: metadata.name}
"#;

fn origin() -> Origin<'static> {
    Origin { file: "/manifests/web.yaml", node_name: "Node1", seen: Timestamp::UNIX_EPOCH }
}

fn parse_text(text: &str) -> Result<StaticPod, ManifestError> {
    parse(&origin(), text.as_bytes())
}

fn message(text: &str) -> String {
    parse_text(text).map(|_| ()).expect_err("the manifest should have been refused").to_string()
}

#[test]
fn a_manifest_becomes_a_pod_of_this_node() {
    let found = parse_text(WEB).expect("a good manifest");
    let meta = &found.pod.metadata;
    assert_eq!(meta.name.as_deref(), Some("web-node1"));
    assert_eq!(meta.namespace.as_deref(), Some("default"));
    assert_eq!(meta.uid.as_deref(), Some(found.uid.as_str()));
    assert_eq!(found.uid.as_str().len(), 32);
    let annotations = meta.annotations.as_ref().expect("annotations");
    assert_eq!(annotations[CONFIG_SOURCE], "file");
    assert_eq!(annotations[CONFIG_HASH], found.uid.as_str());
    assert_eq!(annotations[CONFIG_SEEN], "1970-01-01T00:00:00Z");
    let spec = found.pod.spec.as_ref().expect("spec");
    assert_eq!(spec.node_name.as_deref(), Some("Node1"));
    assert_eq!(spec.restart_policy.as_deref(), Some("Always"));
    let toleration = &spec.tolerations.as_ref().expect("tolerations")[0];
    assert_eq!(
        (toleration.operator.as_deref(), toleration.effect.as_deref()),
        (Some("Exists"), Some("NoExecute"))
    );
}

#[test]
fn yaml_is_read_as_kubernetes_reads_it() {
    let found = parse_text(WEB).expect("a good manifest");
    let spec = found.pod.spec.as_ref().expect("spec");
    assert_eq!(spec.containers[0].args.as_deref(), Some(&["yes".to_owned(), "0644".to_owned()][..]));
    let resources = spec.containers[0].resources.as_ref().expect("resources");
    assert_eq!(resources.limits.as_ref().expect("limits")["cpu"].0, "1");
    assert_eq!(resources.requests.as_ref().expect("requests")["cpu"].0, "0.5");
    let volumes = spec.volumes.as_ref().expect("volumes");
    assert_eq!(volumes[1].downward_api.as_ref().expect("downward").default_mode, Some(0o640));
}

#[test]
fn json_is_yaml_too() {
    let json = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"j","namespace":"kube-system"},
        "spec":{"containers":[{"name":"c","image":"i"}]}}"#;
    let found = parse_text(json).expect("a good manifest");
    assert_eq!(found.pod.metadata.namespace.as_deref(), Some("kube-system"));
}

#[test]
fn the_uid_follows_what_the_manifest_says_and_where_it_lies() {
    let uid = |text: &str| parse_text(text).expect("good").uid;
    let base = uid(WEB);
    assert_eq!(base, uid(WEB), "the same file");
    assert_eq!(base, uid(&WEB.replace("# A comment.", "# Another.")), "a comment is no change");
    assert_ne!(base, uid(&WEB.replace("web:1", "web:2")), "an edit is a new pod");
    let elsewhere = Origin { file: "/manifests/other.yaml", ..origin() };
    assert_ne!(base, parse(&elsewhere, WEB.as_bytes()).expect("good").uid, "another file");
    let later = Origin { seen: Timestamp::MAX, ..origin() };
    assert_eq!(base, parse(&later, WEB.as_bytes()).expect("good").uid, "seen later");
    assert_eq!(
        uid(&WEB.replace("name: web\n", "name: web\n  uid: abc-1\n")).as_str(),
        "abc-1",
        "its own uid"
    );
}

#[test]
fn the_hash_is_fnv_1a_of_128_bits() {
    let mut hash = Fnv128::new();
    assert_eq!(hash.hex(), "6c62272e07bb014262b821756295c58d");
    hash.write(b"foobar");
    assert_eq!(hash.hex(), "343e1662793c64bf6f0d3597ba446f18");
}

#[test]
fn a_bad_manifest_is_refused_with_file_line_and_field() {
    let cases: &[(&str, &str, &str, &str)] = &[
        (
            "a misspelt field",
            "image: example",
            "imgae: example",
            "line 11, field spec.containers[0].imgae: is not a field",
        ),
        (
            "a field in the wrong place",
            "spec:\n",
            "spec:\n  name: x\n",
            "line 9, field spec.name: is not a field",
        ),
        (
            "a number for a string",
            "image: example/web:1",
            "image: 5",
            "line 11, field spec.containers[0].image: invalid type: integer `5`, expected a string; put it into quotes",
        ),
        ("a broken document", "metadata:", "metadata: [", "line"),
        (
            "another kind",
            "kind: Pod",
            "kind: Deployment",
            "line 3, field kind: is \"Deployment\"; only kind: Pod",
        ),
        ("a list", "kind: Pod", "kind: PodList", "put each pod into a file of its own"),
        ("another version", "apiVersion: v1", "apiVersion: v2", "line 2, field apiVersion"),
        ("two documents", "# A comment.", "kind: Pod\n---", "more than one document"),
        ("no name", "name: web\n", "generateName: web\n", "field metadata.name: is missing"),
        ("a name with a slash", "name: web\n", "name: ../web\n", "line 5, field metadata.name"),
        (
            "a container name in capitals",
            "name: main",
            "name: Main",
            "line 10, field spec.containers[0].name",
        ),
        ("no image", "image: example/web:1", "image: ''", "line 11, field spec.containers[0].image"),
        (
            "a twice-used name",
            "  volumes:",
            "  - {name: main, image: x}\n  volumes:",
            "field spec.containers[1].name: is \"main\"",
        ),
        (
            "a mount of nothing",
            "name: data, mountPath",
            "name: nope, mountPath",
            "field spec.containers[0].volumeMounts[0].name",
        ),
        ("a twice-used volume", "name: info", "name: data", "field spec.volumes[1].name"),
        ("two volume sources", "emptyDir: {}", "emptyDir: {}\n    hostPath: {path: /x}", "names 2 sources"),
        (
            "a bad policy",
            "spec:\n",
            "spec:\n  restartPolicy: Sometimes\n",
            "line 9, field spec.restartPolicy",
        ),
        (
            "a bad port",
            "containerPort: 80",
            "containerPort: 70000",
            "field spec.containers[0].ports[0].containerPort",
        ),
        (
            "a service account",
            "spec:\n",
            "spec:\n  serviceAccountName: x\n",
            "may not: it has to start without the apiserver",
        ),
        (
            "a secret volume",
            "emptyDir: {}",
            "secret: {secretName: s}",
            "field spec.volumes[0].secret: refers to a secret",
        ),
        ("a duplicate key", "    image: example", "    image: x\n    image: example", "line 12"),
        ("a hostile uid", "name: web\n", "name: web\n  uid: ../x\n", "field metadata.uid"),
    ];
    for (case, from, to, expected) in cases {
        assert!(WEB.contains(from), "{case}: the fixture has no {from:?}");
        let text = message(&WEB.replacen(from, to, 1));
        assert!(text.starts_with("manifest /manifests/web.yaml"), "{case}: {text}");
        assert!(text.contains(expected), "{case}: {text}");
    }
}

#[test]
fn a_wrong_type_is_told_with_the_line_and_the_field_that_has_it() {
    const PORT: (&str, &str) = ("containerPort: 80", "17, field spec.containers[0].ports[0].containerPort");
    const ARGS: (&str, &str) = ("args: [\"yes\", \"0644\"]", "12, field spec.containers[0].args");
    const LIMIT: (&str, &str) = ("{cpu: 0.5}", "15, field spec.containers[0].resources.requests.cpu");
    const LABEL: (&str, &str) = ("name: web}", "6, field metadata.labels.app.kubernetes.io/name");
    const FIRST: &str = "  containers:\n";
    const LAST: &str = "fieldRef: {fieldPath: metadata.name}\n";
    let cases: &[(&str, &str, &str, &str)] = &[
        (PORT.0, "containerPort: eighty", PORT.1, ": invalid type: string \"eighty\", expected i32"),
        (PORT.0, "containerPort: '80'", PORT.1, ": invalid type: string \"80\""),
        (PORT.0, "containerPort: 80.5", PORT.1, ": invalid type: floating point"),
        (PORT.0, "containerPort: 2147483648", PORT.1, ": invalid value: integer `2147483648`"),
        (PORT.0, "containerPort: 99999999999999999999", PORT.1, ": invalid type: floating point"),
        (PORT.0, "containerPort: {a: 1}", PORT.1, ": invalid type: map"),
        (ARGS.0, "args: {a: b}", ARGS.1, ": invalid type: map"),
        (ARGS.0, "args: [a, no]", ARGS.1, "[1]: invalid type: boolean `false`, expected a string; put it"),
        (
            ARGS.0,
            "args:\n    - a\n    - 0644",
            "14",
            ", field spec.containers[0].args[1]: invalid type: integer `420`",
        ),
        (LIMIT.0, "{cpu: .nan}", "15: ", "non-finite float `.nan`"),
        (LIMIT.0, "{cpu: off}", LIMIT.1, ": invalid type: boolean"),
        (LIMIT.0, "{cpu: {a: {b: c}}}", LIMIT.1, ": invalid type: map"),
        (LIMIT.0, "{cpu: []}", LIMIT.1, ": invalid type: sequence"),
        (LABEL.0, "name: 1}", LABEL.1, ": invalid type: integer `1`, expected a string; put it into quotes"),
        (LABEL.0, "name: }", LABEL.1, ": invalid type: null"),
        (
            "emptyDir: {}",
            "emptyDir: [a, b]",
            "24",
            ", field spec.volumes[0].emptyDir: invalid type: sequence",
        ),
        ("stamp: null", "stamp: soon", "7", ", field metadata.creationTimestamp: "),
        (FIRST, "  hostUsers: maybe\n  containers:\n", "9", ", field spec.hostUsers: invalid type: string"),
        (FIRST, "  priority: &n 5\n  hostname: *n\n  containers:\n", "10", ", field spec.hostname: "),
        ("  volumes:\n", "  - {name: x, tty: 1}\n  volumes:\n", "22", ", field spec.containers[1].tty: "),
        (LAST, "mode: rw\n", "30", ", field spec.volumes[1].downwardAPI.items[0].mode: invalid type: string"),
    ];
    for (from, to, place, problem) in cases {
        assert!(WEB.contains(from), "the fixture has no {from:?}");
        let text = message(&WEB.replacen(from, to, 1));
        let expected = format!("manifest /manifests/web.yaml, line {place}{problem}");
        assert!(text.starts_with(&expected), "{to:?} should be told as {expected:?}, not {text:?}");
    }
}

#[test]
fn what_is_no_manifest_at_all_is_refused() {
    assert!(message("").contains("is empty"));
    assert!(message("# nothing\n---\n").contains("is empty"));
    assert_eq!(
        message("just words"),
        "manifest /manifests/web.yaml, line 1: is not an object; one v1 Pod is expected"
    );
    assert!(message("- a\n- b\n").contains("is not an object"));
    let huge = format!("{WEB}#{}", "x".repeat(MAX_MANIFEST_BYTES));
    assert!(message(&huge).contains("is larger than 1048576 bytes"));
    let error = parse(&origin(), &[0xff, 0xfe, 0x00]).expect_err("bytes");
    assert!(error.to_string().contains("is not UTF-8"), "{error}");
    let deep = "[".repeat(200_000);
    assert!(parse(&origin(), deep.as_bytes()).is_err(), "a deep nest must not exhaust the stack");
    let bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n";
    assert!(parse(&origin(), bomb.as_bytes()).is_err(), "an alias bomb must not exhaust the memory");
}

#[test]
fn a_trailing_separator_and_a_byte_order_mark_do_no_harm() {
    assert!(parse_text(&format!("\u{feff}---\n{WEB}---\n")).is_ok());
}
