//! What a value of the right type must still be to be right for its field. A check returns what is wrong, which is nothing as a rule.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::IpAddr;

use super::kubelet::DEFAULT_RUNTIME_ENDPOINT;
use super::names::{is_label_value, is_qualified_name};
use super::words::listed;
use super::{FlushFrequency, Period, QuantityText, Taint};
use crate::image::Allowlist;

const SIGNALS: [&str; 9] = [
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "pid.available",
    "allocatableMemory.available",
];

fn unless(right: bool, problem: impl FnOnce() -> String) -> Vec<String> {
    if right { vec![] } else { vec![problem()] }
}

pub(super) fn between<T: PartialOrd + Display>(low: T, high: T) -> impl Fn(&T) -> Vec<String> {
    move |value| {
        unless((&low..=&high).contains(&value), || {
            format!("{value} is out of range: this must be from {low} to {high}")
        })
    }
}

pub(super) fn at_least<T: PartialOrd + Display>(least: T) -> impl Fn(&T) -> Vec<String> {
    move |value| unless(*value >= least, || format!("{value} is too small: this must be {least} or more"))
}

pub(super) fn no_shorter(least: Period) -> impl Fn(&Period) -> Vec<String> {
    move |value| unless(*value >= least, || format!("{value} is too short: this must be {least} or more"))
}

pub(super) fn if_given<T>(check: impl Fn(&T) -> Vec<String>) -> impl Fn(&Option<T>) -> Vec<String> {
    move |value| value.as_ref().map(&check).unwrap_or_default()
}

pub(super) fn flush_frequency(value: &FlushFrequency) -> Vec<String> {
    no_shorter(Period::nanos(1))(&value.0)
}

pub(super) fn none_or_a_second(value: &Period) -> Vec<String> {
    unless(*value == Period::ZERO || *value >= Period::seconds(1), || {
        format!("{value} is too short: this must be 0s, or 1s or more")
    })
}

pub(super) fn allowlist(patterns: &[String]) -> Vec<String> {
    Allowlist::of(patterns).err().into_iter().collect()
}

pub(super) fn share(value: &f64) -> Vec<String> {
    unless(*value > 0.0 && *value <= 1.0, || {
        format!("{value} is out of range: this must be greater than 0 and at most 1")
    })
}

pub(super) fn no_read_only_port(port: &i32) -> Vec<String> {
    unless(*port == 0, || {
        format!(
            "{port} would serve pods to anybody who asks: there is no read-only port here, leave it out or give 0"
        )
    })
}

pub(super) fn retired_mode(on: &bool) -> Vec<String> {
    unless(!on, || "Kubernetes has retired this mode, leave it out".into())
}

pub(super) fn ip_address(address: &str) -> Vec<String> {
    unless(address.parse::<IpAddr>().is_ok(), || format!("{address:?} is not an IP address"))
}

pub(super) fn ip_addresses(addresses: &[String]) -> Vec<String> {
    addresses.iter().flat_map(|address| ip_address(address)).collect()
}

pub(super) fn address_ranges(ranges: &str) -> Vec<String> {
    let ranges = ranges.split(',').filter(|range| !range.is_empty());
    ranges
        .flat_map(|range| {
            unless(keelson_kit::cidr::parse_cidr(range).is_ok(), || {
                format!("{range:?} is not an address range such as \"10.244.1.0/24\"")
            })
        })
        .collect()
}

pub(super) fn unix_socket(endpoint: &str) -> Vec<String> {
    unless(endpoint.strip_prefix("unix://").unwrap_or(endpoint).starts_with('/'), || {
        format!("{endpoint:?} is not a unix socket: write {DEFAULT_RUNTIME_ENDPOINT:?}")
    })
}

pub(super) fn plain_directory(path: &str) -> Vec<String> {
    let plain = path.starts_with('/')
        && !path.contains("//")
        && !path.split('/').any(|part| part == "." || part == "..")
        && (path == "/" || !path.ends_with('/'))
        && path.is_ascii();
    unless(plain, || format!("{path:?} must be an absolute ASCII path without . or .."))
}

pub(super) fn absolute_or_none(path: &str) -> Vec<String> {
    unless(path.is_empty() || path.starts_with('/'), || format!("{path:?} must be an absolute path"))
}

pub(super) fn eviction_signals<T>(thresholds: &BTreeMap<String, T>) -> Vec<String> {
    let known = |signal: &String| SIGNALS.contains(&signal.as_str());
    thresholds
        .keys()
        .flat_map(|signal| {
            unless(known(signal), || {
                format!("{signal:?} is not an eviction signal: use {}", listed(&SIGNALS))
            })
        })
        .collect()
}

pub(super) fn grace_periods(periods: &BTreeMap<String, Period>) -> Vec<String> {
    let negative = periods.iter().filter(|(_, grace)| grace.is_negative());
    let negative = negative.map(|(signal, grace)| format!("{signal}: {grace} must not be negative"));
    eviction_signals(periods).into_iter().chain(negative).collect()
}

pub(super) fn reserved(amounts: &BTreeMap<String, QuantityText>) -> Vec<String> {
    const RESOURCES: [&str; 5] = ["cpu", "memory", "ephemeral-storage", "pid", "hugepages-SIZE"];
    let mut found = vec![];
    for (resource, amount) in amounts {
        if !RESOURCES[..4].contains(&resource.as_str()) && !resource.starts_with("hugepages-") {
            found.push(format!("{resource:?} cannot be reserved: use {}", listed(&RESOURCES)));
        } else if amount.milli() < 0 {
            found.push(format!("{resource}: {amount} must not be negative"));
        }
    }
    found
}

pub(super) fn cpu_list(text: &str) -> Vec<String> {
    let number = |text: &str| text.parse::<u32>().ok();
    let right = text.is_empty()
        || text.split(',').all(|part| match part.trim().split_once('-') {
            Some((low, high)) => {
                matches!((number(low), number(high)), (Some(low), Some(high)) if low <= high)
            }
            None => number(part.trim()).is_some(),
        });
    unless(right, || format!("{text:?} is not a list of CPUs such as \"0-3,8\""))
}

pub(super) fn taints(taints: &[Taint]) -> Vec<String> {
    let mut found = vec![];
    for Taint { key, value, time_added, .. } in taints {
        if !is_qualified_name(key) {
            found.push(format!("{key:?} cannot be the key of a taint"));
        }
        if !is_label_value(value) {
            found.push(format!("{value:?} cannot be the value of taint {key}"));
        }
        if time_added.is_some() {
            found.push(format!("taint {key}: timeAdded must be left out"));
        }
    }
    found
}
