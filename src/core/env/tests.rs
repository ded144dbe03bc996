use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::*;

struct World {
    pod: Pod,
    config_maps: BTreeMap<String, Arc<ConfigMap>>,
    secrets: BTreeMap<String, Arc<Secret>>,
    services: Vec<ServiceEnv>,
    files: BTreeMap<EnvFile, EnvFileContent>,
}

/// A pod in namespace shop whose one container is given; ConfigMap cm, Secret sec; services web and kubernetes.
fn world(container: Value) -> World {
    let mut own = container;
    own["name"] = json!("c");
    let data = |pairs: &[(&str, &[u8])]| {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), ByteString(v.to_vec()))).collect()
    };
    let service = |namespace: &str, name: &str, ip: &str, ports: &[(&str, i32, &str)]| ServiceEnv {
        namespace: namespace.into(),
        name: name.into(),
        cluster_ip: ip.into(),
        ports: ports
            .iter()
            .map(|(n, p, t)| ServicePort { name: (*n).into(), port: *p, protocol: (*t).into() })
            .collect(),
    };
    World {
        pod: serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "shop"},
            "spec": {"containers": [own], "enableServiceLinks": false},
        }))
        .unwrap(),
        config_maps: [(
            "cm".to_owned(),
            Arc::new(serde_json::from_value(json!({"data": {"K": "v", "dotted.key": "d"}})).unwrap()),
        )]
        .into(),
        secrets: [(
            "sec".to_owned(),
            Arc::new(Secret { data: Some(data(&[("pw", b"s3"), ("raw", b"\xff")])), ..Default::default() }),
        )]
        .into(),
        services: vec![
            service("default", "kubernetes", "10.96.0.1", &[("https", 443, "TCP")]),
            service("shop", "web-api", "fd00::1", &[("http", 80, ""), ("dns", 53, "UDP")]),
            service("shop", "headless", "None", &[("x", 1, "TCP")]),
            service("other", "far", "10.96.0.9", &[("x", 1, "TCP")]),
        ],
        files: BTreeMap::new(),
    }
}

impl World {
    fn container(&self) -> &Container {
        &self.pod.spec.as_ref().unwrap().containers[0]
    }

    fn variables(&self) -> Result<Variables, ConfigError> {
        environment(&EnvInput {
            pod: &self.pod,
            container: self.container(),
            config_maps: &self.config_maps,
            secrets: &self.secrets,
            files: &self.files,
            services: &self.services,
            pod_ips: &["10.1.0.4".parse().unwrap()],
            host_ips: &["192.0.2.1".parse().unwrap()],
            node_allocatable: &BTreeMap::new(),
        })
    }

    /// Bytes that are no text are shown by their values.
    fn env(&self) -> Result<Vec<(String, String)>, ConfigError> {
        let text =
            |value: Vec<u8>| String::from_utf8(value).unwrap_or_else(|e| format!("{:?}", e.as_bytes()));
        Ok(self.variables()?.into_pairs().into_iter().map(|(name, value)| (name, text(value))).collect())
    }

    /// Without the variables of services.
    fn own(&self) -> Result<BTreeMap<String, String>, String> {
        let all = self.env().map_err(|e| e.to_string())?;
        Ok(all.into_iter().filter(|(name, _)| !name.starts_with("KUBERNETES_")).collect())
    }
}

#[test]
fn variables_come_from_all_their_sources() {
    let set =
        |pairs: &[(&str, &str)]| Ok(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
    let err = |words: &str| Err(words.to_owned());
    let from = |kind: &str, name: &str, key: &str, optional: bool| json!({"env": [{"name": "A", "valueFrom": {kind: {"name": name, "key": key, "optional": optional}}}]});
    for (what, container, want) in [
        ("plain values", json!({"env": [{"name": "A", "value": "1"}]}), set(&[("A", "1")])),
        (
            "a later one replaces an earlier one",
            json!({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}),
            set(&[("A", "2")]),
        ),
        (
            "references see what stands above",
            json!({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)$(C)"}, {"name": "C", "value": "3"}]}),
            set(&[("A", "1"), ("B", "1$(C)"), ("C", "3")]),
        ),
        (
            "references see services",
            json!({"env": [{"name": "B", "value": "$(KUBERNETES_SERVICE_HOST)"}]}),
            set(&[("B", "10.96.0.1")]),
        ),
        (
            "references see envFrom",
            json!({"envFrom": [{"configMapRef": {"name": "cm"}}], "env": [{"name": "B", "value": "$(K)"}]}),
            set(&[("K", "v"), ("dotted.key", "d"), ("B", "v")]),
        ),
        (
            "env replaces envFrom",
            json!({"envFrom": [{"configMapRef": {"name": "cm"}}], "env": [{"name": "K", "value": "own"}]}),
            set(&[("K", "own"), ("dotted.key", "d")]),
        ),
        (
            "a prefix is put before every key",
            json!({"envFrom": [{"prefix": "P_", "configMapRef": {"name": "cm"}}]}),
            set(&[("P_K", "v"), ("P_dotted.key", "d")]),
        ),
        ("a key of a ConfigMap", from("configMapKeyRef", "cm", "K", false), set(&[("A", "v")])),
        ("a key of a Secret", from("secretKeyRef", "sec", "pw", false), set(&[("A", "s3")])),
        ("an optional key that is not there", from("configMapKeyRef", "cm", "nope", true), set(&[])),
        ("an optional Secret that is not there", from("secretKeyRef", "nope", "k", true), set(&[])),
        (
            "an optional envFrom that is not there",
            json!({"envFrom": [{"secretRef": {"name": "nope", "optional": true}}]}),
            set(&[]),
        ),
        (
            "a field",
            json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]}),
            set(&[("A", "10.1.0.4")]),
        ),
        ("an empty value", json!({"env": [{"name": "A"}]}), set(&[("A", "")])),
        ("no ConfigMap", from("configMapKeyRef", "nope", "k", false), err("configmap \"nope\" not found")),
        ("no Secret", from("secretKeyRef", "nope", "k", false), err("secret \"nope\" not found")),
        (
            "no key in the ConfigMap",
            from("configMapKeyRef", "cm", "y", false),
            err("couldn't find key y in ConfigMap shop/cm"),
        ),
        (
            "no key in the Secret",
            from("secretKeyRef", "sec", "y", false),
            err("couldn't find key y in Secret shop/sec"),
        ),
        (
            "no ConfigMap for envFrom",
            json!({"envFrom": [{"configMapRef": {"name": "nope"}}]}),
            err("configmap \"nope\" not found"),
        ),
        ("a value that is no text", from("secretKeyRef", "sec", "raw", false), set(&[("A", "[255]")])),
        (
            "a Secret with a value that is no text",
            json!({"envFrom": [{"secretRef": {"name": "sec"}}]}),
            set(&[("pw", "s3"), ("raw", "[255]")]),
        ),
        (
            "a NUL",
            json!({"env": [{"name": "A", "value": "x\u{0}y"}]}),
            err("environment variable A: its value contains a NUL byte, which no environment can hold"),
        ),
        (
            "an unknown field",
            json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}}]}),
            err("environment variable A: field label not supported: spec.x"),
        ),
    ] {
        assert_eq!(world(container).own(), want, "{what}");
    }
}

#[test]
fn services_announce_themselves() {
    let mut w = world(json!({}));
    let names = |w: &World| w.env().unwrap().into_iter().map(|(n, _)| n).collect::<Vec<_>>();
    assert!(names(&w).iter().all(|n| n.starts_with("KUBERNETES_")), "only the API's without links");
    assert!(names(&w).contains(&"KUBERNETES_SERVICE_PORT_HTTPS".to_owned()));

    w.pod.spec.as_mut().unwrap().enable_service_links = None;
    let env: BTreeMap<_, _> = w.env().unwrap().into_iter().collect();
    for (name, value) in [
        ("KUBERNETES_PORT", "tcp://10.96.0.1:443"),
        ("WEB_API_SERVICE_HOST", "fd00::1"),
        ("WEB_API_SERVICE_PORT", "80"),
        ("WEB_API_SERVICE_PORT_DNS", "53"),
        ("WEB_API_PORT", "tcp://[fd00::1]:80"),
        ("WEB_API_PORT_53_UDP", "udp://[fd00::1]:53"),
        ("WEB_API_PORT_53_UDP_PROTO", "udp"),
        ("WEB_API_PORT_53_UDP_PORT", "53"),
        ("WEB_API_PORT_53_UDP_ADDR", "fd00::1"),
    ] {
        assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert!(!env.keys().any(|n| n.starts_with("HEADLESS") || n.starts_with("FAR")));
}

#[test]
fn a_variable_of_its_own_hides_a_services() {
    let w = world(json!({"env": [{"name": "KUBERNETES_PORT", "value": "mine"}]}));
    let found: Vec<_> = w.env().unwrap().into_iter().filter(|(n, _)| n == "KUBERNETES_PORT").collect();
    assert_eq!(found, [("KUBERNETES_PORT".to_owned(), "mine".to_owned())]);
}

/// A kilobyte, and variables that are each made of a hundred of the one before.
fn steps(count: usize) -> Vec<Value> {
    let mut all = vec![json!({"name": "V0", "value": "x".repeat(1000)})];
    for step in 1..=count {
        let value = format!("$(V{})", step - 1).repeat(100);
        all.push(json!({"name": format!("V{step}"), "value": value}));
    }
    all
}

#[test]
fn what_refers_to_what_refers_to_what_is_bounded() {
    let error = |container: Value| world(container).variables().map(drop).unwrap_err().to_string();
    assert!(world(json!({"env": steps(1)})).env().is_ok(), "100 KB are fine");
    assert!(
        error(json!({"env": steps(9)})).starts_with("environment variable V2 is longer than 131072 bytes")
    );
    let many: Vec<Value> =
        (0..50).map(|n| json!({"name": format!("N{n}"), "value": "y".repeat(100_000)})).collect();
    let said = error(json!({"env": many}));
    assert!(said.starts_with("environment variable N20 makes the environment"), "{said}");
    assert!(said.contains("2097152 bytes"), "{said}");
    let same: Vec<Value> = (0..50).map(|_| json!({"name": "SAME", "value": "y".repeat(100_000)})).collect();
    assert!(world(json!({"env": same})).env().is_ok(), "what is replaced does not count");
}

#[test]
fn services_alone_can_be_too_much() {
    let mut w = world(json!({}));
    let service = w.services[1].clone();
    w.services.extend((0..20_000).map(|n| ServiceEnv { name: format!("s{n}"), ..service.clone() }));
    assert!(w.env().is_ok(), "without links they are not told of");
    w.pod.spec.as_mut().unwrap().enable_service_links = Some(true);
    let said = w.variables().map(drop).unwrap_err().to_string();
    assert!(said.contains("larger than 2097152 bytes") && said.contains("enableServiceLinks"), "{said}");
}

#[test]
fn commands_and_arguments_share_the_room_with_the_environment() {
    let run = |container: Value| {
        let w = world(container);
        let line = w.variables().and_then(|env| env.command_line(w.container()));
        line.map(|l| (l.command, l.args)).map_err(|e| e.to_string())
    };
    let words = |list: &[&str]| list.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        run(
            json!({"env": [{"name": "A", "value": "1"}], "command": ["sh", "$(A)"], "args": ["$$(A)", "$(B)"]})
        ),
        Ok((words(&["sh", "1"]), words(&["$(A)", "$(B)"])))
    );
    for (what, container, want) in [
        (
            "one argument of many values",
            json!({"env": steps(1), "args": ["a", "$(V1)$(V1)"]}),
            "args[1] is longer than 131072 bytes",
        ),
        (
            "many arguments of one value",
            json!({"env": steps(1), "command": vec!["$(V1)"; 40]}),
            "command[19] makes the environment and the arguments larger than 2097152 bytes",
        ),
        (
            "an argument of a value that is no text",
            json!({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "raw"}}}], "args": ["$(A)"]}),
            "args[0] refers to a value that is not UTF-8 text",
        ),
    ] {
        let said = run(container).expect_err(what);
        assert!(said.starts_with(want), "{what}: {said}");
    }
}

#[test]
fn every_reference_is_found() {
    let pod: Pod = serde_json::from_value(json!({"spec": {
        "containers": [{"name": "a", "env": [
            {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "cm-env", "key": "k"}}},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s-env", "key": "k"}}},
        ]}],
        "initContainers": [{"name": "i", "envFrom": [{"configMapRef": {"name": "cm-from"}}, {"secretRef": {"name": "s-from"}}]}],
        "ephemeralContainers": [{"name": "e", "envFrom": [{"configMapRef": {"name": "cm-eph"}}]}],
        "volumes": [
            {"name": "v1", "configMap": {"name": "cm-vol"}},
            {"name": "v2", "secret": {"secretName": "s-vol"}},
            {"name": "v3", "projected": {"sources": [{"configMap": {"name": "cm-proj"}}, {"secret": {"name": "s-proj"}}]}},
        ],
        "imagePullSecrets": [{"name": "s-pull"}, {}],
    }}))
    .unwrap();
    let refs = object_refs(&pod);
    let list = |set: &std::collections::BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(list(&refs.config_maps), "cm-env cm-eph cm-from cm-proj cm-vol");
    assert_eq!(list(&refs.secrets), "s-env s-from s-proj s-pull s-vol");
}

#[test]
fn a_variable_comes_from_a_file_and_later_ones_refer_to_it() {
    let reference = |key: &str, optional: bool| json!({"fileKeyRef": {"volumeName": "shared", "path": "dir/env", "key": key, "optional": optional}});
    let mut world = world(json!({"env": [
        {"name": "MODE", "valueFrom": reference("mode", false)},
        {"name": "MAYBE", "valueFrom": reference("absent", true)},
        {"name": "TOLD", "value": "it is $(MODE)"},
    ]}));
    world.pod.spec.as_mut().unwrap().volumes =
        Some(serde_json::from_value(json!([{"name": "shared", "emptyDir": {}}])).unwrap());
    let file = EnvFile { volume: "shared".into(), path: "dir/env".into() };
    assert_eq!(env_files(&world.pod, world.container()), std::slice::from_ref(&file));
    world.files.insert(file.clone(), Ok(Some(b"mode='dark'\n".to_vec())));
    let own = world.own().unwrap();
    assert_eq!((own["MODE"].as_str(), own["TOLD"].as_str(), own.get("MAYBE")), ("dark", "it is dark", None));
    world.files.insert(file.clone(), Ok(None));
    let error = world.own().unwrap_err();
    assert_eq!(error, "environment variable MODE: there is no file \"dir/env\" in volume \"shared\"");
    world.files.insert(file, Ok(Some(b"mode='a\0b'".to_vec())));
    assert!(world.own().unwrap_err().contains("NUL"));
}
