//! The command of an exec probe.

use k8s_openapi::api::core::v1::EnvVar;

use crate::env::MAX_STRING_BYTES;
use crate::expand::expand;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the probe's command is longer than {MAX_STRING_BYTES} bytes with its variables filled in")]
pub struct CommandTooLong;

/// With `$(NAME)` filled in from the values that stand in the container's `env`, as they are written there. What comes from
/// elsewhere (`valueFrom`) is empty here, and what is not in `env` (`envFrom`, services) stays as it is: a probe's command
/// has never had more, and one that needs it asks a shell.
pub fn exec_command(command: &[String], env: &[EnvVar]) -> Result<Vec<String>, CommandTooLong> {
    // The last of one name counts.
    let value = |name: &str| {
        env.iter().rev().find(|v| v.name == name).map(|v| v.value.as_deref().unwrap_or_default())
    };
    let word = |word: &String| {
        let bytes = expand(word, MAX_STRING_BYTES - 1, value).map_err(|_| CommandTooLong)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    command.iter().map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str, value: Option<&str>) -> EnvVar {
        EnvVar { name: name.into(), value: value.map(Into::into), value_from: None }
    }

    #[test]
    fn a_probes_command_knows_the_values_that_are_written_in_its_container() {
        let env = [
            env("PORT", Some("80")),
            env("PORT", Some("8080")),
            env("SECRET", None),
            env("URL", Some("http://$(PORT)/")),
        ];
        for (name, word, expected) in [
            ("a plain word", "curl", "curl"),
            ("a value, the last of its name", "localhost:$(PORT)", "localhost:8080"),
            ("one from elsewhere is empty", "[$(SECRET)]", "[]"),
            ("one that nobody has stays", "$(HOME)", "$(HOME)"),
            ("values are not filled in themselves", "$(URL)", "http://$(PORT)/"),
            ("two dollars are one", "echo $$(PORT) $$", "echo $(PORT) $"),
            ("a shell's own variables stay", "echo $PORT", "echo $PORT"),
        ] {
            assert_eq!(exec_command(&[word.to_owned()], &env), Ok(vec![expected.to_owned()]), "{name}");
        }
        assert_eq!(exec_command(&[], &env), Ok(vec![]));
        let long = "x".repeat(MAX_STRING_BYTES / 2);
        let long = [EnvVar { name: "LONG".into(), value: Some(long), value_from: None }];
        assert_eq!(exec_command(&["$(LONG)$(LONG)".to_owned()], &long), Err(CommandTooLong));
    }
}
