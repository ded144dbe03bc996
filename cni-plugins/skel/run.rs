//! From the environment and stdin to a plugin, and from its outcome to stdout.

use std::io::{Read, Write};

use keelson_netkit::{IfName, NetNs};
use serde::Serialize;
use serde_json::{Value, json};

use super::conf;
use super::failure::Failure;
use super::invocation::{Attachment, Call, Command, ContainerId, Env, NetworkName};
use super::json::Json;
use super::result::CniResult;
use super::version::{CniVersion, supported_versions};

/// What a plugin does for each command.
pub trait Plugin {
    fn name(&self) -> &'static str;
    /// Whether the plugin works inside the container's namespace. One that does not is content with a
    /// CNI_NETNS that leads nowhere, as the reference plugins are.
    fn enters_netns(&self) -> bool;
    fn add(&self, call: &Call, at: &Attachment) -> Result<CniResult, Failure>;
    fn del(&self, call: &Call, at: &Attachment) -> Result<(), Failure>;
    fn check(&self, call: &Call, at: &Attachment) -> Result<(), Failure>;
    fn gc(&self, call: &Call) -> Result<(), Failure>;
    fn status(&self, call: &Call) -> Result<(), Failure>;
}

/// Runs one call and returns the exit status.
pub fn run(
    plugin: &dyn Plugin,
    env: &Env,
    stdin: &mut dyn Read,
    stdout: &mut dyn Write,
    stderr: &mut dyn Write,
) -> u8 {
    let mut version = CniVersion::V110;
    match perform(plugin, env, stdin, stderr, &mut version) {
        Ok(None) => 0,
        Ok(Some(json)) => match print(stdout, &json) {
            Ok(()) => 0,
            Err(_) => 1,
        },
        Err(failure) => {
            let _ = print(stdout, &failure.to_json(version));
            1
        }
    }
}

fn perform(
    plugin: &dyn Plugin,
    env: &Env,
    stdin: &mut dyn Read,
    stderr: &mut dyn Write,
    version: &mut CniVersion,
) -> Result<Option<Value>, Failure> {
    let command = match env.get("CNI_COMMAND") {
        "" => {
            let _ = usage(plugin.name(), stderr);
            return Ok(None);
        }
        "VERSION" => return Ok(Some(version_answer(stdin))),
        "ADD" => Command::Add,
        "DEL" => Command::Del,
        "CHECK" => Command::Check,
        "GC" => Command::Gc,
        "STATUS" => Command::Status,
        other => {
            return Err(Failure::environment(format!(
                "CNI_COMMAND is {other:?}; ADD, DEL, CHECK, GC, STATUS or VERSION is expected"
            )));
        }
    };
    required(env, command)?;
    let at = match command.is_about_attachment() {
        true => Some(attachment(env)?),
        false => None,
    };
    let call = read_call(plugin, env, command, stdin, version)?;
    let Some(at) = at else {
        return match command {
            Command::Gc => plugin.gc(&call).map(|()| None),
            _ => plugin.status(&call).map(|()| None),
        };
    };
    match command {
        Command::Add => plugin.add(&call, &at)?.to_json(call.version).map(Some),
        Command::Del => plugin.del(&call, &at).map(|()| None),
        _ => plugin.check(&call, &at).map(|()| None),
    }
}

/// Says which variables the command needs and has not got, all at once.
fn required(env: &Env, command: Command) -> Result<(), Failure> {
    let mut needed = vec!["CNI_PATH"];
    if command.is_about_attachment() {
        needed.extend(["CNI_CONTAINERID", "CNI_IFNAME"]);
    }
    if matches!(command, Command::Add | Command::Check) {
        needed.push("CNI_NETNS");
    }
    needed.retain(|name| env.get(name).is_empty());
    if needed.is_empty() {
        return Ok(());
    }
    Err(Failure::environment(format!("{} needs {}", command.as_str(), needed.join(", "))))
}

fn attachment(env: &Env) -> Result<Attachment, Failure> {
    let ifname = IfName::try_from(env.get("CNI_IFNAME"))
        .map_err(|e| Failure::environment(format!("CNI_IFNAME: {e}")))?;
    Ok(Attachment { container: ContainerId::parse(env.get("CNI_CONTAINERID"))?, ifname })
}

fn read_call(
    plugin: &dyn Plugin,
    env: &Env,
    command: Command,
    stdin: &mut dyn Read,
    version: &mut CniVersion,
) -> Result<Call, Failure> {
    let mut bytes = Vec::new();
    stdin.read_to_end(&mut bytes).map_err(|e| Failure::io(format!("cannot read stdin: {e}")))?;
    let conf = conf::parse(&bytes)?;
    *version = config_version(conf.get("cniVersion"))?;
    if *version < command.since() {
        return Err(Failure::new(
            Failure::INCOMPATIBLE_VERSION,
            format!("{} came with CNI {}", command.as_str(), command.since()),
            format!("the configuration's \"cniVersion\" is {version}"),
        ));
    }
    let network = match conf.get("name") {
        None => return Err(Failure::config("\"name\" is missing; the network needs one")),
        Some(name) => match name.as_str() {
            Some(name) => NetworkName::parse(name)?,
            None => return Err(Failure::config(format!("\"name\" must be a string, not {name}"))),
        },
    };
    if command != Command::Del {
        conf::check_common(&conf)?;
    }
    check_type("type", conf.get("type"))?;
    check_type("ipam.type", conf.get("ipam").and_then(|ipam| ipam.get("type")))?;
    let netns_path = env.get("CNI_NETNS").to_owned();
    let netns = match command.is_about_attachment() {
        true => open_netns(plugin, env, command, &netns_path)?,
        false => None,
    };
    Ok(Call {
        version: *version,
        network,
        conf,
        stdin: bytes,
        netns_path,
        netns,
        args: env.get("CNI_ARGS").to_owned(),
        env: env.clone(),
    })
}

fn config_version(value: Option<&Json>) -> Result<CniVersion, Failure> {
    let text = match value {
        None => "",
        Some(value) => value.as_str().ok_or_else(|| {
            Failure::new(
                Failure::DECODING,
                "cannot decode the network configuration",
                format!("\"cniVersion\" must be a string, not {value}"),
            )
        })?,
    };
    CniVersion::parse(text).ok_or_else(|| {
        Failure::new(
            Failure::INCOMPATIBLE_VERSION,
            "incompatible CNI versions",
            format!(
                "the configuration's is {text:?}, the plugin supports {}",
                supported_versions().join(", ")
            ),
        )
    })
}

/// A plugin's type is looked up as a file on CNI_PATH, so it must not lead out of there.
fn check_type(key: &str, value: Option<&Json>) -> Result<(), Failure> {
    let Some(value) = value else { return Ok(()) };
    let Some(text) = value.as_str() else {
        return Err(Failure::config(format!("{key:?} must be a string, not {value}")));
    };
    let bad = text.contains(['/', '\\', '\0']) || text == "." || text == ".." || text.len() > 255;
    if bad {
        return Err(Failure::config(format!(
            "{key:?} is {text:?}; it must be the plain file name of a plugin, at most 255 bytes long"
        )));
    }
    Ok(())
}

/// Opens the container's namespace before anything is made. On DEL it may be gone already.
fn open_netns(
    plugin: &dyn Plugin,
    env: &Env,
    command: Command,
    path: &str,
) -> Result<Option<NetNs>, Failure> {
    if path.is_empty() {
        return Ok(None);
    }
    let netns = match NetNs::open(path) {
        Ok(netns) => netns,
        Err(_) if command == Command::Del || !plugin.enters_netns() => return Ok(None),
        Err(error) => return Err(Failure::environment(format!("CNI_NETNS: {error}"))),
    };
    let override_ = env.get("CNI_NETNS_OVERRIDE");
    let checked = !(override_ == "1" || override_.eq_ignore_ascii_case("true"));
    if checked && netns.is_same(&NetNs::current()?)? {
        return Err(Failure::new(
            Failure::INVALID_NETNS,
            format!("CNI_NETNS {path} is the namespace that the plugin itself runs in"),
            "a container needs a namespace of its own; CNI_NETNS_OVERRIDE=1 turns this check off",
        ));
    }
    Ok(Some(netns))
}

/// The answer names the version that the caller asked in, or the newest.
fn version_answer(stdin: &mut dyn Read) -> Value {
    let mut bytes = Vec::new();
    let asked = stdin
        .take(64 * 1024)
        .read_to_end(&mut bytes)
        .ok()
        .and_then(|_| serde_json::from_slice::<Json>(&bytes).ok())
        .and_then(|conf| conf.get("cniVersion")?.as_str().and_then(CniVersion::parse));
    json!({
        "cniVersion": asked.unwrap_or(CniVersion::V110).as_str(),
        "supportedVersions": supported_versions(),
    })
}

fn usage(name: &str, stderr: &mut dyn Write) -> std::io::Result<()> {
    writeln!(stderr, "CNI plugin {name}, keelson {}", env!("CARGO_PKG_VERSION"))?;
    writeln!(stderr, "CNI protocol versions supported: {}", supported_versions().join(", "))?;
    writeln!(
        stderr,
        "A container runtime runs this with CNI_COMMAND and others in its environment and the network's"
    )?;
    writeln!(stderr, "configuration on stdin. By hand:")?;
    writeln!(
        stderr,
        "  sudo CNI_COMMAND=ADD CNI_CONTAINERID=test CNI_NETNS=/run/netns/test CNI_IFNAME=eth0 \\"
    )?;
    writeln!(stderr, "       CNI_PATH=/opt/cni/bin ./{name} < conf.json")
}

fn print(stdout: &mut dyn Write, json: &Value) -> std::io::Result<()> {
    let mut bytes = Vec::with_capacity(1024);
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    json.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, formatter))?;
    bytes.push(b'\n');
    stdout.write_all(&bytes)?;
    stdout.flush()
}
