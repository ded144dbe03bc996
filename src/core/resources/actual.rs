//! What the runtime says that a container really has.

use k8s_openapi::api::core::v1::ResourceRequirements;

use super::aggregate::amount;
use super::linux::{cpu_quota, cpu_shares};
use super::quantity::{Amount, to_quantity};
use crate::observed::ObservedContainer;

/// What was asked for, with what the runtime reports in its place. Where the two are equal after the kernel's own rounding the words
/// of the spec stay, so that comparing them finds no difference that nobody made.
pub(crate) fn actual_resources(
    asked: &ResourceRequirements,
    observed: &ObservedContainer,
) -> ResourceRequirements {
    let mut shown = asked.clone();
    let Some(real) = &observed.resources else { return shown };
    if let Some(limits) = &mut shown.limits {
        let asked = amount(Some(limits), "cpu").milli();
        if real.cpu_period > 0 && real.cpu_quota > 0 && cpu_quota(asked, real.cpu_period) != real.cpu_quota {
            let milli = real.cpu_quota.saturating_mul(1000) / real.cpu_period;
            limits.insert("cpu".into(), to_quantity(Amount::from_milli(milli)));
        }
        let asked = amount(Some(limits), "memory").value();
        if real.memory_limit_bytes > 0 && asked != real.memory_limit_bytes {
            limits.insert("memory".into(), to_quantity(Amount::from_bytes(real.memory_limit_bytes)));
        }
    }
    if let Some(requests) = &mut shown.requests {
        let asked = amount(Some(requests), "cpu").milli();
        if real.cpu_shares > 0 && requests.contains_key("cpu") && cpu_shares(asked) != real.cpu_shares {
            let milli = (real.cpu_shares.saturating_mul(1000) + 1023) / 1024;
            requests.insert("cpu".into(), to_quantity(Amount::from_milli(milli)));
        }
    }
    shown
}
