//! Failures as the protocol reports them: a code, a short message, details.

use serde_json::{Value, json};

use super::version::CniVersion;

/// Why a plugin could not do what it was asked to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{msg}{}{details}", if details.is_empty() { "" } else { ": " })]
pub struct Failure {
    pub code: u32,
    pub msg: String,
    pub details: String,
}

impl Failure {
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    pub const UNSUPPORTED_FIELD: u32 = 2;
    pub const INVALID_ENVIRONMENT: u32 = 4;
    pub const IO: u32 = 5;
    pub const DECODING: u32 = 6;
    pub const INVALID_CONFIG: u32 = 7;
    pub const INVALID_NETNS: u32 = 8;
    pub const TRY_AGAIN: u32 = 11;
    pub const NOT_AVAILABLE: u32 = 50;
    /// There is no free address; the plugin's own code, as all from 100 on.
    pub const NO_ADDRESS: u32 = 100;
    /// What CHECK found is not what ADD made.
    pub const CHECK_FAILED: u32 = 101;
    /// The number the reference plugins give everything else.
    pub const INTERNAL: u32 = 999;

    pub fn new(code: u32, msg: impl Into<String>, details: impl Into<String>) -> Self {
        Failure { code, msg: msg.into(), details: details.into() }
    }

    pub fn config(details: impl Into<String>) -> Self {
        Self::new(Self::INVALID_CONFIG, "invalid network configuration", details)
    }

    pub fn environment(details: impl Into<String>) -> Self {
        Self::new(Self::INVALID_ENVIRONMENT, "invalid environment", details)
    }

    pub fn io(details: impl Into<String>) -> Self {
        Self::new(Self::IO, "input or output failed", details)
    }

    pub fn internal(msg: impl Into<String>) -> Self {
        Self::new(Self::INTERNAL, msg, "")
    }

    pub fn check(msg: impl Into<String>) -> Self {
        Self::new(Self::CHECK_FAILED, msg, "")
    }

    /// One failure out of many; None when there is none. Teardown tries everything and reports all of it.
    pub fn all(failures: Vec<Failure>) -> Result<(), Failure> {
        let mut failures = failures.into_iter();
        let Some(mut first) = failures.next() else { return Ok(()) };
        for other in failures {
            first.details =
                format!("{}{}{other}", first.details, if first.details.is_empty() { "" } else { "; " });
        }
        Err(first)
    }

    pub fn to_json(&self, version: CniVersion) -> Value {
        let mut json = json!({ "cniVersion": version.as_str(), "code": self.code, "msg": self.msg });
        if !self.details.is_empty() {
            json["details"] = Value::from(self.details.as_str());
        }
        json
    }
}

impl From<keelson_netkit::Error> for Failure {
    fn from(error: keelson_netkit::Error) -> Self {
        Failure::internal(error.to_string())
    }
}
