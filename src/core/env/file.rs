//! Variables out of a file that another container of the pod has written.
//!
//! The format is the kubelet's, a strict part of what a shell reads: `NAME='value'`, whose value goes on to the next single
//! quote, over lines too, and stands for itself. Blank lines and those that begin with # are passed over. The whole file is not
//! checked: what follows the variable that is looked for is nobody's concern.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, FileKeySelector, Pod};

use super::MAX_TOTAL_BYTES;

/// No file is read beyond this: more than that no environment holds.
pub const MAX_FILE_BYTES: usize = MAX_TOTAL_BYTES;

/// Which file, by the name of its volume and its path inside of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct EnvFile {
    pub volume: String,
    pub path: String,
}

/// What was found of it, up to one byte more than may be: `None` if there is no such file, or in words why it cannot be read.
pub type EnvFileContent = Result<Option<Vec<u8>>, String>;

/// What is wrong with a reference into a file, without the file's content: that may be secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileKeyProblem {
    #[error("cannot find the volume {0:?} referenced by FileKeyRef")]
    NoVolume(String),
    #[error("volume {0:?} is no emptyDir, and a fileKeyRef takes nothing else")]
    NotEmptyDir(String),
    #[error("path {0:?} must not contain '..'")]
    Backsteps(String),
    #[error("there is no file {path:?} in volume {volume:?}", path = .0.path, volume = .0.volume)]
    NoFile(EnvFile),
    #[error("file {path:?} of volume {volume:?} cannot be read: {why}", path = .file.path, volume = .file.volume)]
    Unreadable { file: EnvFile, why: String },
    #[error(
        "file {path:?} of volume {volume:?} is larger than {MAX_FILE_BYTES} bytes",
        path = .0.path, volume = .0.volume
    )]
    TooLarge(EnvFile),
    #[error(
        "couldn't parse env file {path:?} of volume {volume:?}: line {line}: {what}",
        path = .file.path, volume = .file.volume
    )]
    Format { file: EnvFile, line: usize, what: &'static str },
    #[error(
        "environment variable key {key:?} not found in file {path:?} of volume {volume:?}",
        path = .file.path, volume = .file.volume
    )]
    NoKey { file: EnvFile, key: String },
}

/// The files that a container's environment refers to, as far as they may be read.
pub fn env_files(pod: &Pod, container: &Container) -> Vec<EnvFile> {
    let sources = container.env.iter().flatten().filter_map(|v| v.value_from.as_ref());
    let references = sources.filter_map(|source| source.file_key_ref.as_ref());
    let mut files: Vec<EnvFile> = references.filter_map(|r| file_of(pod, r).ok()).collect();
    files.sort();
    files.dedup();
    files
}

/// An absolute path is one from the volume's top, as in a kubelet.
fn file_of(pod: &Pod, reference: &FileKeySelector) -> Result<EnvFile, FileKeyProblem> {
    let name = &reference.volume_name;
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let volume = volumes.find(|v| v.name == *name).ok_or_else(|| FileKeyProblem::NoVolume(name.clone()))?;
    if volume.empty_dir.is_none() {
        return Err(FileKeyProblem::NotEmptyDir(name.clone()));
    }
    let path = reference.path.trim_start_matches('/');
    if path.split('/').any(|part| part == "..") || path.contains('\0') {
        return Err(FileKeyProblem::Backsteps(reference.path.clone()));
    }
    Ok(EnvFile { volume: name.clone(), path: path.to_owned() })
}

/// `None` where the file or the key may be missing, and is.
pub(super) fn file_key(
    pod: &Pod,
    reference: &FileKeySelector,
    files: &BTreeMap<EnvFile, EnvFileContent>,
) -> Result<Option<Vec<u8>>, FileKeyProblem> {
    let file = file_of(pod, reference)?;
    let optional = reference.optional == Some(true);
    let content = match files.get(&file) {
        Some(Ok(Some(content))) => content,
        Some(Ok(None)) | None if optional => return Ok(None),
        Some(Ok(None)) | None => return Err(FileKeyProblem::NoFile(file)),
        Some(Err(why)) => return Err(FileKeyProblem::Unreadable { file, why: why.clone() }),
    };
    if content.len() > MAX_FILE_BYTES {
        return Err(FileKeyProblem::TooLarge(file));
    }
    match find(content, reference.key.as_bytes()) {
        Err((line, what)) => Err(FileKeyProblem::Format { file, line, what }),
        // An empty value counts as none.
        Ok(Some(value)) if !value.is_empty() => Ok(Some(value)),
        Ok(_) if optional => Ok(None),
        Ok(_) => Err(FileKeyProblem::NoKey { file, key: reference.key.clone() }),
    }
}

/// The value of a variable, or the line in which reading ended and why.
fn find(content: &[u8], key: &[u8]) -> Result<Option<Vec<u8>>, (usize, &'static str)> {
    let mut lines = Lines { rest: content, number: 0 };
    while let Some(line) = lines.next() {
        let number = lines.number;
        let line = trimmed(line);
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let Some(equals) = line.iter().position(|b| *b == b'=') else {
            return Err((number, "there is no '='"));
        };
        let (name, value) = (&line[..equals], &line[equals + 1..]);
        if trimmed(name).is_empty() {
            return Err((number, "there is no name before '='"));
        }
        if name.ends_with(b" ") || name.ends_with(b"\t") {
            return Err((number, "whitespace before '=' is not allowed"));
        }
        // A shell would take the value for a command, and the variable for empty.
        if value.starts_with(b" ") || value.starts_with(b"\t") {
            match name == key {
                true => return Ok(None),
                false => continue,
            }
        }
        let Some(opened) = value.strip_prefix(b"'") else {
            return Err((number, "a value must stand in single quotes"));
        };
        let value = quoted(opened, &mut lines).map_err(|what| match what {
            UNCLOSED => (number, what),
            _ => (lines.number, what),
        })?;
        if name == key {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

const UNCLOSED: &str = "a single quote is not closed";

/// From behind the opening quote to the closing one; after that only a comment may follow.
fn quoted<'a>(opened: &'a [u8], lines: &mut Lines<'a>) -> Result<Vec<u8>, &'static str> {
    let mut value = vec![];
    let mut rest = opened;
    loop {
        if let Some(end) = rest.iter().position(|b| *b == b'\'') {
            value.extend_from_slice(&rest[..end]);
            let after = trimmed(&rest[end + 1..]);
            let comment = after.is_empty() || after.starts_with(b"#");
            return if comment { Ok(value) } else { Err("something follows the closing quote") };
        }
        value.extend_from_slice(rest);
        value.push(b'\n');
        rest = lines.next().ok_or(UNCLOSED)?;
    }
}

/// Without blanks in front.
fn trimmed(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|b| *b != b' ' && *b != b'\t').unwrap_or(text.len());
    &text[start..]
}

/// Lines as the kubelet counts them: without their ends, of which a carriage return may be part.
struct Lines<'a> {
    rest: &'a [u8],
    number: usize,
}

impl<'a> Lines<'a> {
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        self.number += 1;
        let end = self.rest.iter().position(|b| *b == b'\n');
        let (line, rest) = match end {
            Some(end) => (&self.rest[..end], &self.rest[end + 1..]),
            None => (self.rest, &self.rest[self.rest.len()..]),
        };
        self.rest = rest;
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(content: &str, key: &str) -> Result<Option<String>, (usize, &'static str)> {
        find(content.as_bytes(), key.as_bytes()).map(|v| v.map(|v| String::from_utf8(v).unwrap()))
    }

    #[test]
    fn a_value_stands_in_single_quotes_and_for_itself() {
        let text = "# settings\n\n \t\nA='one'\n  B='two $A \\n'  # said\nC='over\n# two\n lines'\nD= 'no'\r\nE=''\r\nF='last'";
        let cases = [
            ("A", Some("one")),
            ("B", Some("two $A \\n")),
            ("C", Some("over\n# two\n lines")),
            ("D", None),
            ("E", Some("")),
            ("F", Some("last")),
            ("G", None),
            ("a", None),
        ];
        for (key, value) in cases {
            assert_eq!(found(text, key), Ok(value.map(str::to_owned)), "{key}");
        }
        assert_eq!(found("", "A"), Ok(None));
        assert_eq!(
            found("A='first'\nA='second'\nbroken", "A"),
            Ok(Some("first".into())),
            "the first one counts"
        );
    }

    #[test]
    fn what_is_not_of_the_format_is_named_by_its_line() {
        let cases = [
            ("A='1'\nB\nX='1'", 2, "'='"),
            ("='1'", 1, "no name"),
            ("  = '1'", 1, "no name"),
            ("A ='1'\nX='1'", 1, "whitespace before"),
            ("A=1\nX='1'", 1, "single quotes"),
            ("A=\"1\"\nX='1'", 1, "single quotes"),
            ("A=\nX='1'", 1, "single quotes"),
            ("\nA='1' 2\nX='1'", 2, "follows"),
            ("A='1\n2' 3\nX='1'", 2, "follows"),
            ("B='1'\nA='1\n2\n3", 2, "not closed"),
        ];
        for (text, line, what) in cases {
            let said = found(text, "X");
            assert!(
                said.clone().is_err_and(|(at, why)| at == line && why.contains(what)),
                "{text:?}: {said:?}"
            );
        }
    }

    fn of(reference: Value, content: EnvFileContent) -> Result<Option<String>, String> {
        let pod = json!({"spec": {"containers": [], "volumes": [
            {"name": "data", "emptyDir": {}}, {"name": "host", "hostPath": {"path": "/etc"}},
        ]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let file = EnvFile { volume: "data".into(), path: "env".into() };
        let reference = serde_json::from_value(reference).unwrap();
        let value = file_key(&pod, &reference, &[(file, content)].into()).map_err(|e| e.to_string())?;
        Ok(value.map(|v| String::from_utf8(v).unwrap()))
    }

    #[test]
    fn a_reference_into_a_file_is_a_value_or_says_what_is_missing() {
        let text = || Ok(Some(b"KEY='value'\nNONE=''".to_vec()));
        let plain = |path: &str, key: &str| json!({"volumeName": "data", "path": path, "key": key});
        let optional = |key: &str| json!({"volumeName": "data", "path": "env", "key": key, "optional": true});
        let cases = [
            (plain("env", "KEY"), text(), Ok(Some("value"))),
            (plain("/env", "KEY"), text(), Ok(Some("value"))),
            (
                plain("env", "OTHER"),
                text(),
                Err("key \"OTHER\" not found in file \"env\" of volume \"data\""),
            ),
            (plain("env", "NONE"), text(), Err("key \"NONE\" not found")),
            (optional("OTHER"), text(), Ok(None)),
            (optional("KEY"), Ok(None), Ok(None)),
            (plain("env", "KEY"), Ok(None), Err("no file \"env\" in volume \"data\"")),
            (optional("KEY"), Err("it leads out of the volume".into()), Err("leads out of the volume")),
            (optional("KEY"), Ok(Some(b"KEY".to_vec())), Err("line 1")),
            (plain("env", "KEY"), Ok(Some(vec![b'#'; MAX_FILE_BYTES + 1])), Err("larger than 2097152 bytes")),
            (plain("../env", "KEY"), text(), Err("must not contain '..'")),
            (plain("a/../../env", "KEY"), text(), Err("must not contain '..'")),
            (
                json!({"volumeName": "host", "path": "passwd", "key": "K"}),
                text(),
                Err("\"host\" is no emptyDir"),
            ),
            (json!({"volumeName": "absent", "path": "env", "key": "K"}), text(), Err("volume \"absent\"")),
        ];
        for (reference, content, expected) in cases {
            let said = of(reference.clone(), content);
            let same = match (&said, expected) {
                (Ok(value), Ok(expected)) => value.as_deref() == expected,
                (Err(error), Err(expected)) => error.contains(expected),
                _ => false,
            };
            assert!(same, "{reference}: {said:?}");
        }
    }

    #[test]
    fn what_a_file_holds_is_in_no_error() {
        for text in ["KEY='1' s3cret", "s3cret", "KEY=s3cret", "A='s3cret"] {
            let said = of(json!({"volumeName": "data", "path": "env", "key": "K"}), Ok(Some(text.into())));
            assert!(said.clone().is_err_and(|e| !e.contains("s3cret")), "{said:?}");
        }
    }
}
