//! What `keelson why -o json` prints. Names and meanings stay as they are; fields may be added.

use serde::{Deserialize, Serialize};

/// Times are RFC 3339, durations are seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WhyReport {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// "api" or "file"; empty for a pod that was left in the runtime.
    pub source: String,
    /// The pod's phase; "Gone" for one that is not here any more.
    pub phase: String,
    pub ready: bool,
    /// One sentence.
    pub summary: String,
    /// When this was asked.
    pub at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gone_at: Option<String>,
    /// What the pod waits for. Empty for one that is as it should be.
    pub now: Vec<WaitReport>,
    pub stages: Vec<StageReport>,
    /// The last ones, latest first.
    pub failures: Vec<FailureReport>,
    /// Other pods of this name, here or remembered.
    pub others: Vec<OtherPod>,
    /// Steps that were not recorded because the pod has more than are kept.
    pub left_out: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitReport {
    /// None: the whole pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    pub what: String,
    /// What would change it.
    pub then: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_in_seconds: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StageReport {
    /// "start", "since" or "stop".
    pub stage: String,
    pub began_at: String,
    /// None while it goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// Until its end, or until now. None where the times are those of an agent before this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// By their beginning.
    pub steps: Vec<StepReport>,
    /// Where the time went, most first.
    pub places: Vec<PlaceTime>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepReport {
    pub step: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    pub began_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// After the stage began.
    pub offset_seconds: f64,
    /// All tries together. None where only the time is known at which it was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// It began at a time that the API keeps in whole seconds, and took up to a second less.
    pub at_most: bool,
    pub failed_tries: u32,
    /// "running", "done", "failed" or "givenUp".
    pub result: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    pub slowest: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlaceTime {
    pub place: String,
    pub seconds: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureReport {
    pub first_at: String,
    pub last_at: String,
    pub count: u32,
    pub step: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    pub place: String,
    pub cause: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OtherPod {
    pub uid: String,
    /// None for one that is here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gone_at: Option<String>,
}
