use std::fs;

use clap::error::ErrorKind;
use keelson_core::config::{CgroupDriver, Settings};

use crate::{args, config_command, notify, sources};

fn settings(arguments: &[&str]) -> anyhow::Result<Settings> {
    let matches = args::command().try_get_matches_from(["keelson"].iter().chain(arguments))?;
    match matches.subcommand() {
        Some((_, matches)) => sources::settings(matches),
        None => sources::settings(&matches),
    }
}

#[test]
fn the_command_line_is_well_formed() {
    args::command().debug_assert();
}

#[test]
fn flags_as_kubeadm_writes_them_are_taken() {
    let settings = settings(&[
        "--container-runtime-endpoint=unix:///run/containerd/containerd.sock",
        "--pod-infra-container-image=registry.k8s.io/pause:3.10",
        "--node-labels=a=b,c=d",
        "--node-labels",
        "e=f",
        "--register-with-taints=node-role.kubernetes.io/control-plane:NoSchedule",
        "--hostname-override",
        "Node-7",
        "--cgroup-driver=systemd",
        "--fail-swap-on=false",
        "--rotate-certificates",
        "--v=2",
        "--log-format=json",
        "--node-ip=10.0.0.7",
        "--runtime-cgroups=/system.slice/containerd.service",
    ])
    .unwrap();
    assert_eq!(settings.node_name, "node-7");
    assert_eq!(settings.kubelet.cgroup_driver, CgroupDriver::Systemd);
    assert_eq!(settings.node_labels.len(), 3);
    assert!(!settings.kubelet.fail_swap_on);
    // Not acted on, so nothing outside of the configuration can read it; it is shown and named.
    let shown = serde_json::to_value(&settings.kubelet).unwrap();
    assert_eq!(shown["rotateCertificates"], true);
    assert_eq!(settings.not_acted_on, ["rotateCertificates (--rotate-certificates)"]);
    assert_eq!(settings.kubelet.logging.verbosity, 2);
    assert_eq!(settings.kubelet.logging.format.as_str(), "json");
    assert_eq!(settings.runtime_cgroups.as_deref(), Some("/system.slice/containerd.service"));
}

#[test]
fn credential_providers_are_a_file_or_a_directory_and_their_programs_must_be_there() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let file = |name: &str| {
        format!(
            "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: {name}\n  \
             matchImages: [r.io]\n  defaultCacheDuration: 0s\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n"
        )
    };
    for place in ["bin", "config"] {
        fs::create_dir(at(place)).unwrap();
    }
    fs::write(at("config/b.yaml"), file("cat")).unwrap();
    fs::write(at("config/a.json"), file("sh")).unwrap();
    fs::write(at("config/c.txt"), "no configuration").unwrap();
    let bin = |dir: &str| format!("--image-credential-provider-bin-dir={dir}");
    let config = |path: &str| format!("--image-credential-provider-config={}", at(path).display());
    let names = |path: &str, dir: &str| {
        let settings = settings(&[&config(path), &bin(dir)]).map_err(|e| e.to_string())?;
        Ok::<_, String>(settings.credential_providers.into_iter().map(|p| p.name).collect::<Vec<_>>())
    };
    assert_eq!(names("config", "/bin").unwrap(), ["sh", "cat"]);
    assert_eq!(names("config/b.yaml", "/bin").unwrap(), ["cat"]);
    fs::write(at("bin/cat"), "").unwrap();
    let error = names("config/b.yaml", &at("bin").display().to_string()).unwrap_err();
    assert!(error.contains("credential provider cat: ") && error.contains("bin/cat"), "{error}");
    let error = names("bin", "/bin").unwrap_err();
    assert!(error.contains("no *.json"), "{error}");
}

#[test]
fn run_may_be_named_and_takes_the_same_flags() {
    assert_eq!(settings(&["run", "--max-pods", "7"]).unwrap().kubelet.max_pods, 7);
    assert_eq!(settings(&["--max-pods", "8"]).unwrap().kubelet.max_pods, 8);
}

#[test]
fn the_socket_may_be_named_before_or_after_wait() {
    for arguments in [["pods", "--socket", "/s", "wait", "a"], ["pods", "wait", "a", "--socket", "/s"]] {
        let matches = args::command().try_get_matches_from(["keelson"].iter().chain(&arguments)).unwrap();
        let (_, pods) = matches.subcommand().unwrap();
        let (_, wait) = pods.subcommand().unwrap();
        assert_eq!(
            wait.get_one::<std::path::PathBuf>("socket").unwrap().to_str(),
            Some("/s"),
            "{arguments:?}"
        );
    }
}

#[test]
fn an_unknown_flag_is_a_usage_error() {
    let error = args::command().try_get_matches_from(["keelson", "--max-pod", "7"]).unwrap_err();
    assert_eq!((error.kind(), error.exit_code()), (ErrorKind::UnknownArgument, 2));
}

#[test]
fn file_drop_ins_and_flags_are_read_in_their_order() {
    let directory = tempfile::tempdir().unwrap();
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    let write = |name: &str, body: &str| {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("{head}{body}\n")).unwrap();
        path.display().to_string()
    };
    let config = write("config.yaml", "maxPods: 1\npodsPerCore: 1\nport: 1111");
    write("conf.d/20-late.conf", "maxPods: 3");
    write("conf.d/10-early.conf", "maxPods: 2\npodsPerCore: 2");
    write("conf.d/30-more/a.conf", "eventBurst: 9");
    write("conf.d/99-ignored.yaml", "maxPods: 99");
    let drop_ins = directory.path().join("conf.d").display().to_string();
    let kubelet =
        settings(&["--config", &config, "--config-dir", &drop_ins, "--port", "2222"]).unwrap().kubelet;
    assert_eq!((kubelet.max_pods, kubelet.pods_per_core, kubelet.port, kubelet.event_burst), (3, 2, 2222, 9));
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing").display().to_string();
    let here = directory.path().display().to_string();
    for (case, arguments, expected) in [
        ("no such config", vec!["--config", &missing], format!("cannot read {missing}")),
        ("a directory as config", vec!["--config", &here], format!("{here} is not a configuration")),
        (
            "no such drop-ins",
            vec!["--config-dir", &missing],
            format!("cannot list the drop-in directory {missing}"),
        ),
        ("no kubeconfig", vec!["--kubeconfig", &missing], format!("--kubeconfig {missing}: no such file")),
        (
            "bootstrap that would be needed",
            vec!["--kubeconfig", &missing, "--bootstrap-kubeconfig", &here],
            format!("--kubeconfig {missing}: no such file, and making it from --bootstrap-kubeconfig {here}"),
        ),
    ] {
        let error = settings(&arguments).unwrap_err().to_string();
        assert!(error.starts_with(&expected), "{case}: {error}");
    }
}

#[test]
fn a_bootstrap_file_does_not_matter_once_there_is_a_kubeconfig() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubelet.conf");
    fs::write(&kubeconfig, "").unwrap();
    let kubeconfig = kubeconfig.display().to_string();
    let settings =
        settings(&["--kubeconfig", &kubeconfig, "--bootstrap-kubeconfig", "/nonexistent/bootstrap.conf"])
            .unwrap();
    assert!(!settings.standalone);
}

#[test]
fn the_printed_configuration_can_be_used_as_a_file() {
    let print = |arguments: &[&str]| {
        let matches =
            args::command().try_get_matches_from(["keelson", "config"].iter().chain(arguments)).unwrap();
        let mut out = vec![];
        config_command::print(matches.subcommand_matches("config").unwrap(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let printed = print(&["--max-pods=42", "--hostname-override=n", "--system-reserved=cpu=1"]);
    assert!(printed.contains("maxPods: 42\n"), "{printed}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("printed.yaml");
    fs::write(&path, &printed).unwrap();
    assert_eq!(print(&["--config", path.to_str().unwrap(), "--hostname-override=n"]), printed);
    let json = print(&["-o", "json"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["maxPods"], 110);
    assert!(print(&["--explain"]).contains("shutdownGracePeriod"));
}

#[test]
fn an_error_is_reported_with_its_causes_each_once_and_each_line_in_the_programs_name() {
    let error = |context| anyhow::Error::new(std::io::Error::other("no room")).context(context);
    for (context, reported) in [
        ("cannot write x: no room", "keelson: cannot write x: no room\n"),
        ("cannot write x", "keelson: cannot write x: no room\n"),
        ("a.yaml:1: wrong\na.yaml:2: wrong", "keelson: a.yaml:1: wrong\nkeelson: a.yaml:2: wrong: no room\n"),
    ] {
        assert_eq!(crate::report(&error(context)), reported);
    }
}

#[test]
fn the_watchdog_is_patted_only_while_all_is_well() {
    let mut complaint = Default::default();
    let ill = || Err("the pod loop has not turned for 121 s".to_owned());
    assert_eq!(notify::watchdog_state(Ok(()), &mut complaint), Some("WATCHDOG=1"));
    assert_eq!(notify::watchdog_state(ill(), &mut complaint), None);
    assert_eq!(notify::watchdog_state(ill(), &mut complaint), None);
    assert_eq!(notify::watchdog_state(Ok(()), &mut complaint), Some("WATCHDOG=1"), "well again");
}

#[test]
fn systemd_is_notified_on_its_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    notify::send(path.as_os_str().as_encoded_bytes(), "READY=1", None).unwrap();
    let mut buffer = [0; 32];
    let length = socket.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"READY=1");
}
