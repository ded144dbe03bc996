//! Our plugins and the reference ones side by side: the same configuration, environment and starting
//! state through both, and everything that can be seen afterwards compared.
//!
//! Differences that are meant, and therefore not compared, are listed in the README under "Differences".
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cases;
mod leases;
mod observe;
mod ports;
#[path = "../rig/mod.rs"]
mod rig;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use cases::{Case, matrix};
use keelson_require::require;
use observe::observe;
use serde_json::{Map, Value};

#[test]
fn everything_that_can_be_seen_is_the_same_as_with_the_reference_plugins() {
    needs_rig!();
    let reference = require!(rig::reference());
    let wanted = std::env::var("CASE").unwrap_or_default();
    let cases: Vec<Case> = matrix().into_iter().filter(|c| c.name.contains(&wanted)).collect();
    let next = AtomicUsize::new(0);
    let different = Mutex::new(Vec::new());
    // Most of the time goes by waiting for duplicate address detection, so a few run side by side.
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let theirs = observe(Some(reference.clone()), case);
                    let ours = observe(None, case);
                    compare(&case.name, "", &theirs, &ours, &mut different.lock().unwrap());
                }
            });
        }
    });
    let different = different.into_inner().unwrap();
    assert!(different.is_empty(), "{} differences:\n{}", different.len(), different.join("\n"));
}

/// Notes every place where the two differ.
fn compare(case: &str, path: &str, theirs: &Value, ours: &Value, different: &mut Vec<String>) {
    match (theirs, ours) {
        (Value::Object(t), Value::Object(o)) => {
            let keys: std::collections::BTreeSet<_> = t.keys().chain(o.keys()).collect();
            for key in keys {
                let at = |map: &Map<String, Value>| map.get(key.as_str()).cloned().unwrap_or(Value::Null);
                compare(case, &format!("{path}/{key}"), &at(t), &at(o), different);
            }
        }
        _ if theirs == ours => {}
        _ if is_meant(case, path, ours) => {}
        _ => different.push(format!("{case}: {path}: reference {theirs}, ours {ours}")),
    }
}

/// The differences that are meant; the README says why.
fn is_meant(case: &str, path: &str, ours: &Value) -> bool {
    match path {
        // The reference's loopback gives results of old versions in the newest one's shape.
        _ if case.starts_with("loopback 0.") => path.starts_with("/result/"),
        // The reference's DEL refuses a configuration that its ADD refuses.
        _ if path.contains("DEL ") && path.ends_with("succeeds") => *ours == Value::Bool(true),
        // The bridge's MAC is set when it is made, and so does not follow the ports.
        "/result/interfaces" => ["no gateway", "layer two only", "no container interface", "vlan"]
            .iter()
            .any(|c| case.starts_with(c)),
        // The reference's CHECK wants an IPAM plugin even where there is none, looks in one table only, and fails now
        // and then with VLANs.
        "/CHECK succeeds" => {
            let those = ["layer two only", "no container interface", "a route with metric and table", "vlan"];
            *ours == Value::Bool(true) && those.iter().any(|c| case.starts_with(c))
        }
        // An ADD that fails leaves nothing, not even the note of an address it would have given.
        _ if path.ends_with("/files/last_reserved_ip.0") => {
            case.starts_with("requested outside") || case.starts_with("requested two")
        }
        // The reference's nftables backend masquerades the container's own address only, and has no masqAll.
        _ if case.starts_with("nftables: all masqueraded") => path.starts_with("/from"),
        "/from another container" => case.starts_with("nftables:"),
        _ => false,
    }
}
