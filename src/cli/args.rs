//! The flags and commands. Names and meanings of the agent's flags are the kubelet's, so that what starts a kubelet
//! (kubeadm's environment file, a unit's drop-in) starts this agent.

use clap::builder::StyledStr;
use clap::{Arg, ArgAction, Command, value_parser};
use keelson_core::config::{CONFIG_FLAGS, DEFAULT_SOCKET, FlagKind};
use std::path::PathBuf;

/// Flags of older and newer kubelets that have nothing to say to this agent. Taking them keeps their users' files valid.
pub(crate) const IGNORED: &[(&str, &str)] = &[
    ("pod-infra-container-image", "the runtime decides its pause image"),
    ("container-runtime", "every runtime is reached over CRI"),
    ("lock-file", "not supported"),
    ("exit-on-lock-contention", "not supported"),
    ("minimum-container-ttl-duration", "retired by the kubelet"),
    ("maximum-dead-containers", "retired by the kubelet"),
    ("maximum-dead-containers-per-container", "retired by the kubelet"),
    ("experimental-mounter-path", "retired by the kubelet"),
    ("experimental-allocatable-ignore-eviction", "retired by the kubelet"),
    ("vmodule", "levels are not set by file here"),
    ("log-text-split-stream", "logs go to stderr"),
    ("log-text-info-buffer-size", "logs go to stderr"),
    ("log-json-split-stream", "logs go to stderr"),
    ("log-json-info-buffer-size", "logs go to stderr"),
];

pub(crate) fn command() -> Command {
    let run = Command::new("run")
        .about("Run the node agent (also without naming it: `keelson --config FILE`)")
        .after_help(
            "Flags override the configuration file. All of the kubelet's own are taken; --help lists them.",
        );
    let config = Command::new("config")
        .about("Print the effective configuration: defaults, file, drop-ins and flags taken together")
        .arg(choice("output", 'o', &["yaml", "json"], "yaml", "Format"))
        .arg(switch("explain", "Print the fields that are accepted but that this version does not act on"));
    agent_flags(Command::new("keelson"))
        .about("A Kubernetes node agent")
        .version(crate::version())
        .args_conflicts_with_subcommands(true)
        .disable_help_subcommand(true)
        .subcommand(agent_flags(run))
        .subcommand(agent_flags(config))
        .subcommand(pods())
        .subcommand(why())
        .subcommand(crate::overlay::command())
        .subcommand(image())
        .subcommand(Command::new("version").about("Print the version"))
}

fn pods() -> Command {
    let wait = Command::new("wait")
        .about("Wait until pods are ready, showing what they wait for")
        .arg(Arg::new("name").num_args(0..).help("Names of pods; without any, all pods, and at least one"))
        .arg(switch("gone", "Wait until they are gone instead"))
        .arg(text("timeout", "Give up after this long").default_value("120s"));
    Command::new("pods")
        .about("Show the pods of this node, with the reason in words for what does not run")
        .arg(path("socket", "The agent's local socket").default_value(DEFAULT_SOCKET).global(true))
        .arg(text("namespace", "Only pods of this namespace").short('n').value_name("NAMESPACE").global(true))
        .arg(choice("output", 'o', &["table", "wide", "json"], "table", "Format"))
        .arg(switch("watch", "Go on, and show every change").short('w'))
        .subcommand(wait)
}

fn why() -> Command {
    Command::new("why")
        .about(
            "Say what a pod waits for, what would change it, and where the time of its start and stop went",
        )
        .arg(Arg::new("pod").required(true).value_name("POD").help(
            "A name, NAMESPACE/NAME or a uid; of a pod that is here or one of the last 100 that are gone",
        ))
        .arg(path("socket", "The agent's local socket").default_value(DEFAULT_SOCKET))
        .arg(text("namespace", "The pod's namespace").short('n').value_name("NAMESPACE"))
        .arg(choice("output", 'o', &["text", "json"], "text", "Format"))
        .arg(path("svg", "Also draw the timeline into this file").value_name("FILE"))
}

fn image() -> Command {
    Command::new("image").about("Work with image archives").subcommand_required(true).subcommand(
        Command::new("pack")
            .about("Pack an OCI archive from a description in YAML or JSON, the same bytes every time")
            .arg(Arg::new("spec").required(true).value_name("SPEC").value_parser(value_parser!(PathBuf)))
            .arg(path("output", "The archive to write").short('o').required(true).value_name("OUT.tar")),
    )
}

/// What `keelson`, `keelson run` and `keelson config` share.
fn agent_flags(command: Command) -> Command {
    let node = "Node";
    let mut command = command
        .next_help_heading(node)
        .arg(path("config", "A KubeletConfiguration file (kubelet.config.k8s.io/v1beta1)"))
        .arg(path(
            "config-dir",
            "A directory of drop-ins: every *.conf in it, in lexical order, over the file",
        ))
        .arg(path("kubeconfig", "How to reach the apiserver; without it the node is standalone"))
        .arg(path(
            "bootstrap-kubeconfig",
            "Taken, but a missing --kubeconfig file is an error: there is no TLS bootstrap yet",
        ))
        .arg(text("hostname-override", "The node's name, instead of the machine's"))
        .arg(text("node-ip", "The node's address, or one of each family: 10.0.0.1,fd00::1"))
        .arg(text("node-labels", "Labels to register with: key=value,key=value").action(ArgAction::Append))
        .arg(path("root-dir", "Where pods' files live [default: /var/lib/kubelet]"))
        .arg(path("cert-dir", "Where the node's certificates live [default: pki under --root-dir]"))
        .arg(path(
            "image-credential-provider-config",
            "A CredentialProviderConfig, or a directory of them: which plugins have credentials for which images",
        ))
        .arg(path("image-credential-provider-bin-dir", "Where the programs of those plugins are"))
        .arg(text(
            "cloud-provider",
            "external: a cloud controller initializes the node and writes its addresses",
        ))
        .arg(text("runtime-cgroups", "The cgroup that the runtime runs in"))
        .arg(path(
            "image-dir",
            "Image archives (*.tar) in this directory are brought into the runtime, at the start and when they come",
        ))
        .arg(path(
            "socket",
            format!("The local socket for `keelson pods` and `keelson why` [default: {DEFAULT_SOCKET}]"),
        ))
        .next_help_heading("Fields of the configuration");
    for flag in CONFIG_FLAGS.iter() {
        let arg = Arg::new(flag.name)
            .long(flag.name)
            .help(format!("{}{}", flag.path.join("."), form(flag.kind)))
            .value_name(flag.kind.value_name())
            .action(ArgAction::Append)
            .hide_short_help(!SHOWN.contains(&flag.name));
        let arg = match flag.kind {
            FlagKind::Bool => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
            _ => arg.allow_hyphen_values(true),
        };
        let arg = match flag.name {
            "logging-format" => arg.visible_alias("log-format"),
            "v" => arg.short('v'),
            _ => arg,
        };
        command = command.arg(arg);
    }
    for (name, _) in IGNORED {
        let arg = Arg::new(*name).long(*name).hide(true).num_args(0..=1).allow_hyphen_values(true);
        command = command.arg(arg.action(ArgAction::Append));
    }
    command.next_help_heading(None::<&str>)
}

/// Those that a short help shows.
const SHOWN: &[&str] = &[
    "pod-manifest-path",
    "container-runtime-endpoint",
    "cgroup-driver",
    "max-pods",
    "cluster-dns",
    "cluster-domain",
    "register-node",
    "register-with-taints",
    "logging-format",
    "v",
];

fn form(kind: FlagKind) -> &'static str {
    match kind {
        FlagKind::Text | FlagKind::Bool | FlagKind::Int => "",
        FlagKind::List => ", as a,b",
        FlagKind::Map => ", as name=value,name=value",
        FlagKind::LessMap => ", as signal<threshold,signal<threshold",
        FlagKind::Gates => ", as Gate=true,Other=false",
        FlagKind::Taints => ", as key=value:Effect,key:Effect",
        FlagKind::Headers => ", as name:value,name:value",
        FlagKind::ReservedMemory => ", as 0:memory=1Gi;1:memory=1Gi",
    }
}

fn path(name: &'static str, help: impl Into<StyledStr>) -> Arg {
    Arg::new(name).long(name).help(help).value_name("PATH").value_parser(value_parser!(PathBuf))
}

fn text(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).help(help).value_name("TEXT")
}

fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).help(help).action(ArgAction::SetTrue)
}

fn choice(
    name: &'static str,
    short: char,
    values: &'static [&'static str],
    default: &'static str,
    help: &'static str,
) -> Arg {
    Arg::new(name)
        .long(name)
        .short(short)
        .help(help)
        .value_name("FORMAT")
        .value_parser(values.to_vec())
        .default_value(default)
}
