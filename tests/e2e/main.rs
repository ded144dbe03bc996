//! End to end, on real parts: what a node must do, shown on a real runtime and a real control plane.

mod api;
mod claims;
mod deployment;
mod faults;
mod features;
mod images;
mod logs;
mod machine;
mod make_run;
mod managers;
mod overlay;
mod pods;
mod resize;
mod rig;
mod runtime_faults;
mod static_pods;
mod stats;
mod user_namespaces;
mod why;

use std::process::ExitCode;

use keelson_tests::parts::{CONTROL_PLANE, Part};
use keelson_tests::schedule;
use keelson_tests::suite::Definition;

const CLUSTER: &[&[Part]] = &[&CONTROL_PLANE, &[Part::Containerd2, Part::CniReference]];

const ON_A_MACHINE: [Part; 7] = [
    Part::Containerd2,
    Part::Runc,
    Part::Etcd,
    Part::ApiServer,
    Part::Scheduler,
    Part::ControllerManager,
    Part::Kubectl,
];

/// The longest first, since several run at a time.
const SUITES: &[Definition] = &[
    Definition {
        name: "machine",
        needs: &[&[Part::Machine]],
        wants: &ON_A_MACHINE,
        body: |s| Box::pin(machine::body(s)),
    },
    Definition { name: "overlay", needs: &[&[Part::Etcd]], wants: &[], body: |s| Box::pin(overlay::body(s)) },
    Definition { name: "deployment", needs: CLUSTER, wants: &[], body: |s| Box::pin(deployment::body(s)) },
    Definition {
        name: "runtime_faults",
        needs: CLUSTER,
        wants: &[],
        body: |s| Box::pin(runtime_faults::body(s)),
    },
    Definition { name: "features", needs: CLUSTER, wants: &[], body: |s| Box::pin(features::body(s)) },
    Definition { name: "logs", needs: CLUSTER, wants: &[], body: |s| Box::pin(logs::body(s)) },
    Definition { name: "api", needs: CLUSTER, wants: &[], body: |s| Box::pin(api::body(s)) },
    Definition { name: "pods", needs: CLUSTER, wants: &[], body: |s| Box::pin(pods::body(s)) },
    Definition {
        name: "managers",
        needs: CLUSTER,
        wants: &[Part::Kubelet],
        body: |s| Box::pin(managers::body(s)),
    },
    Definition {
        name: "images",
        needs: CLUSTER,
        wants: &[Part::Kubelet],
        body: |s| Box::pin(images::body(s)),
    },
    Definition {
        name: "resize",
        needs: CLUSTER,
        wants: &[Part::Kubelet],
        body: |s| Box::pin(resize::body(s)),
    },
    Definition {
        name: "claims",
        needs: CLUSTER,
        wants: &[Part::Kubelet],
        body: |s| Box::pin(claims::body(s)),
    },
    Definition { name: "make_run", needs: &[], wants: &[], body: |s| Box::pin(make_run::body(s)) },
    Definition { name: "faults", needs: &[], wants: &[], body: |s| Box::pin(faults::body(s)) },
    Definition { name: "overlay_pods", needs: CLUSTER, wants: &[], body: |s| Box::pin(overlay::as_pods(s)) },
    Definition {
        name: "overlay_flanneld",
        needs: &[&CONTROL_PLANE],
        wants: &[Part::Flanneld],
        body: |s| Box::pin(overlay::beside_flanneld(s)),
    },
    Definition {
        name: "stats",
        needs: CLUSTER,
        wants: &[Part::MetricsServer],
        body: |s| Box::pin(stats::body(s)),
    },
    Definition {
        name: "user_namespaces",
        needs: CLUSTER,
        wants: &[Part::Runc, Part::Kubelet],
        body: |s| Box::pin(user_namespaces::body(s)),
    },
    Definition { name: "static_pods", needs: CLUSTER, wants: &[], body: |s| Box::pin(static_pods::body(s)) },
    Definition { name: "why", needs: CLUSTER, wants: &[], body: |s| Box::pin(why::body(s)) },
    Definition { name: "rig", needs: CLUSTER, wants: &[], body: |s| Box::pin(rig::body(s)) },
];

fn main() -> ExitCode {
    schedule::main(SUITES)
}
