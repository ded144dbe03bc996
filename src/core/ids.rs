//! Names that cross a wire or become part of a path, checked once where they enter.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {value:?} {problem}")]
pub struct BadId {
    pub kind: &'static str,
    pub value: String,
    pub problem: &'static str,
}

fn check(kind: &'static str, value: &str) -> Result<(), BadId> {
    let problem = if value.is_empty() {
        "is empty"
    } else if value.len() > 253 {
        "is longer than 253 bytes"
    } else if value == "." || value == ".." || value.contains('/') || value.contains('\0') {
        "could leave its directory: it must not be '.' or '..' nor contain '/' or NUL"
    } else {
        return Ok(());
    };
    Err(BadId { kind, value: value.chars().take(64).collect(), problem })
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl TryFrom<String> for $name {
            type Error = BadId;
            fn try_from(value: String) -> Result<Self, BadId> {
                check($kind, &value)?;
                Ok(Self(value))
            }
        }
        impl TryFrom<&str> for $name {
            type Error = BadId;
            fn try_from(value: &str) -> Result<Self, BadId> {
                Self::try_from(value.to_owned())
            }
        }
        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.0)
            }
        }
    };
}

id!(
    /// A pod's uid. For a static pod: the hash of its manifest, not the uid of its mirror.
    PodUid,
    "pod uid"
);
id!(
    /// The runtime's id of a pod sandbox.
    SandboxId,
    "sandbox id"
);
id!(
    /// The runtime's id of one container instance; every restart has a new one.
    ContainerId,
    "container id"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_becomes_a_directory_name_so_it_must_stay_inside() {
        for bad in ["", ".", "..", "a/b", "../x", "a\0b"] {
            assert!(PodUid::try_from(bad).is_err(), "{bad:?} was accepted");
        }
        assert!(PodUid::try_from("x".repeat(254)).is_err());
        assert!(PodUid::try_from("0f3c-11").is_ok());
    }
}
