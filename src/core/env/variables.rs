//! A container's variables, and the room that Linux gives them and the program's arguments together.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Container;

use super::ConfigError;
use crate::expand::expand;

/// The longest single string that execve(2) takes, its final NUL included. Of a variable that is `NAME=value`.
pub const MAX_STRING_BYTES: usize = 128 << 10;
/// The most that execve(2) takes in all, with the usual limit of 8 MiB for a stack: a quarter of that.
pub const MAX_TOTAL_BYTES: usize = 2 << 20;

/// Variables in the order they were first set. Values are bytes: that of a Secret need not be text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Variables {
    list: Vec<(String, Vec<u8>)>,
    index: HashMap<String, usize>,
    used: usize,
}

/// What a container runs, with every reference replaced.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandLine {
    pub command: Vec<String>,
    pub args: Vec<String>,
}

impl Variables {
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.index.get(name).map(|at| self.list[*at].1.as_slice())
    }

    /// Sets a variable. Fails where a program could not be started with it; nothing is set then.
    pub fn set(&mut self, name: &str, value: Vec<u8>) -> Result<(), ConfigError> {
        let what = || format!("environment variable {name}");
        if value.contains(&0) {
            return Err(ConfigError::Nul { name: name.to_owned() });
        }
        let length = |value: &[u8]| name.len() + 1 + value.len();
        let room = room_for(length(&value), what)?;
        let before = self.get(name).map_or(0, |old| taken_by(length(old)));
        let used = self.used - before + room;
        if used > MAX_TOTAL_BYTES {
            return Err(ConfigError::TooMuch { what: what() });
        }
        self.used = used;
        match self.index.get(name) {
            Some(at) => self.list[*at].1 = value,
            None => {
                self.index.insert(name.to_owned(), self.list.len());
                self.list.push((name.to_owned(), value));
            }
        }
        Ok(())
    }

    /// The container's command and arguments. They share the room with the variables.
    pub fn command_line(&self, container: &Container) -> Result<CommandLine, ConfigError> {
        let mut used = self.used;
        let mut all = |field: &str, list: &Option<Vec<String>>| {
            let mut expanded = vec![];
            for (position, text) in list.iter().flatten().enumerate() {
                let what = || format!("{field}[{position}]");
                let bytes = expand(text, MAX_STRING_BYTES - 1, |name| self.get(name))
                    .map_err(|_| ConfigError::TooLong { what: what() })?;
                used += room_for(bytes.len(), what)?;
                if used > MAX_TOTAL_BYTES {
                    return Err(ConfigError::TooMuch { what: what() });
                }
                let text = String::from_utf8(bytes).map_err(|_| ConfigError::NotText { what: what() })?;
                expanded.push(text);
            }
            Ok(expanded)
        };
        Ok(CommandLine { command: all("command", &container.command)?, args: all("args", &container.args)? })
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn into_pairs(self) -> Vec<(String, Vec<u8>)> {
        self.list
    }
}

/// What a string of this length takes: itself, its NUL, and the pointer to it.
fn taken_by(length: usize) -> usize {
    length + 1 + size_of::<u64>()
}

fn room_for(length: usize, what: impl Fn() -> String) -> Result<usize, ConfigError> {
    if length >= MAX_STRING_BYTES {
        return Err(ConfigError::TooLong { what: what() });
    }
    Ok(taken_by(length))
}
