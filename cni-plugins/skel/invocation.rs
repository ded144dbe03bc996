//! The environment and configuration of one call, checked.

use std::collections::HashMap;
use std::fmt;

use keelson_netkit::{IfName, NetNs};
use serde::{Deserialize, Deserializer};

use super::failure::Failure;
use super::json::Json;
use super::result::CniResult;
use super::version::CniVersion;

/// The environment variables, handed in so that tests can do without a process.
#[derive(Debug, Clone, Default)]
pub struct Env {
    vars: HashMap<String, String>,
}

impl Env {
    pub fn of_process() -> Self {
        let vars = std::env::vars_os()
            .filter_map(|(k, v)| Some((k.into_string().ok()?, v.to_string_lossy().into_owned())))
            .collect();
        Env { vars }
    }

    /// The value of a variable; empty when it is not set.
    pub fn get(&self, name: &str) -> &str {
        self.vars.get(name).map_or("", String::as_str)
    }

    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.vars.insert(name.to_owned(), value.to_owned());
        self
    }

    pub fn iter(&self) -> impl Iterator<Item = (&String, &String)> {
        self.vars.iter()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Add,
    Del,
    Check,
    Gc,
    Status,
}

impl Command {
    pub fn as_str(self) -> &'static str {
        match self {
            Command::Add => "ADD",
            Command::Del => "DEL",
            Command::Check => "CHECK",
            Command::Gc => "GC",
            Command::Status => "STATUS",
        }
    }

    /// The first version of the protocol that has the command.
    pub fn since(self) -> CniVersion {
        match self {
            Command::Add | Command::Del => CniVersion::V010,
            Command::Check => CniVersion::V040,
            Command::Gc | Command::Status => CniVersion::V110,
        }
    }

    /// Whether the command is about one container's interface.
    pub fn is_about_attachment(self) -> bool {
        matches!(self, Command::Add | Command::Del | Command::Check)
    }
}

/// Long enough for any runtime's ids, short enough for the names that are made from them.
const MAX_NAME: usize = 200;

/// A container's id, fit to be a file name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ContainerId(String);

/// A network's name, fit to be a file name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NetworkName(String);

impl ContainerId {
    pub fn parse(text: &str) -> Result<Self, Failure> {
        check_name(text).map_err(|why| Failure::environment(format!("CNI_CONTAINERID {text:?} {why}")))?;
        Ok(ContainerId(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl NetworkName {
    pub fn parse(text: &str) -> Result<Self, Failure> {
        check_name(text).map_err(|why| Failure::config(format!("\"name\" {text:?} {why}")))?;
        Ok(NetworkName(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for NetworkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn check_name(text: &str) -> Result<(), &'static str> {
    let mut chars = text.chars();
    let starts_well = chars.next().is_some_and(|c| c.is_ascii_alphanumeric());
    if !starts_well || !chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')) {
        return Err("must start with a letter or digit and may go on with letters, digits, '_', '.' and '-'");
    }
    if text.len() > MAX_NAME {
        return Err("is too long: at most 200 bytes are allowed");
    }
    Ok(())
}

/// One container's interface on the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    pub container: ContainerId,
    pub ifname: IfName,
}

/// An attachment that GC has to keep. It is compared with what is stored, so any text will do. One without both of its
/// parts would keep nothing, and what it was meant for would be freed under a running container.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ValidAttachment {
    #[serde(rename = "containerID", deserialize_with = "given")]
    pub container: String,
    #[serde(deserialize_with = "given")]
    pub ifname: String,
}

fn given<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let text = String::deserialize(from)?;
    if text.is_empty() {
        return Err(serde::de::Error::custom("containerID and ifname must not be empty"));
    }
    Ok(text)
}

/// All that a plugin needs to know about one call.
pub struct Call {
    pub version: CniVersion,
    pub network: NetworkName,
    pub conf: Json,
    /// The configuration as it came, for handing on.
    pub stdin: Vec<u8>,
    /// CNI_NETNS as it came; results quote it.
    pub netns_path: String,
    /// The open namespace; DEL may find it gone.
    pub netns: Option<NetNs>,
    /// CNI_ARGS.
    pub args: String,
    pub env: Env,
}

impl Call {
    /// What the plugins before this one in the chain made, or what ADD made.
    pub fn previous_result(&self) -> Result<Option<CniResult>, Failure> {
        let Some(json) = self.conf.get("prevResult") else { return Ok(None) };
        let result = CniResult::from_json(json, self.version);
        result.map(Some).map_err(|e| Failure::config(format!("\"prevResult\": {e}")))
    }

    /// What GC has to keep, or why none of it is to be believed. Runtimes that have nothing to keep write null or leave
    /// the key out.
    pub fn valid_attachments(&self) -> Result<Vec<ValidAttachment>, Failure> {
        // The second is what an early text of the specification called it.
        for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
            if let Some(list) = self.conf.get(key) {
                return Vec::deserialize(list)
                    .map_err(|e| Failure::config(format!("{key:?}: {e}; nothing was freed")));
            }
        }
        Ok(Vec::new())
    }
}
