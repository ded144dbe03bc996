//! The overlay between three hosts on one wire: every backend, leases from etcd and from Kubernetes, beside a real flanneld,
//! and whatever happens to hosts.

mod daemon_set;
mod etcd;
mod flanneld;
mod kube;
mod lifetimes;
mod scale;
mod secure;
mod slow_etcd;
mod streams;
mod trouble;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use keelson_tests::cluster::Cluster;
use keelson_tests::containerd::Kind;
use keelson_tests::control_plane::{ControlPlane, Extent};
use keelson_tests::hosts::{self, Host, Pod};
use keelson_tests::parts::Part;
use keelson_tests::suite::{Suite, folder};
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(90);

pub async fn body(suite: &mut Suite) -> Result<()> {
    let dir = suite.dir().to_owned();
    hosts::lay_wire().await?;
    let etcd = etcd::Etcd::start(&folder(&dir, "own-etcd")?).await?;
    let mut trio = Trio::plug_in(&dir).await?;
    for backend in ["vxlan", "host-gw", "udp"] {
        let name = format!("leases from etcd, all pairs by {backend}, and the daemon may go");
        suite.case(&name, LIMIT, etcd::all_pairs(&etcd, &mut trio, backend)).await;
    }
    suite.case("a host moves, is cut off, leaves and joins", LIMIT, lifetimes::moves(&etcd, &mut trio)).await;
    suite.case("what others break is repaired", LIMIT, lifetimes::repairs(&etcd, &mut trio)).await;
    suite
        .case("etcd away, and a host that starts without it", LIMIT, lifetimes::etcd_away(&etcd, &mut trio))
        .await;
    suite
        .case(
            "a registration that etcd answers too late is kept",
            LIMIT,
            slow_etcd::slow_write(&etcd, &mut trio),
        )
        .await;
    for backend in ["vxlan", "host-gw", "udp"] {
        let name = format!("killed under a stream by {backend}");
        suite.case(&name, LIMIT, streams::killed(&etcd, &mut trio, backend)).await;
    }
    suite
        .case(
            "what is wrong is reported, and strangers are dropped",
            LIMIT * 2,
            trouble::reported(&etcd, &mut trio),
        )
        .await;
    suite.case("udp stands in for a filtered tunnel", LIMIT, trouble::falls_back(&etcd, &mut trio)).await;
    suite.case("both families of a peer are probed", LIMIT, trouble::both_families(&etcd, &mut trio)).await;
    suite
        .case("another network configuration is reported", LIMIT, etcd::reconfigured(&etcd, &mut trio))
        .await;
    let secure = folder(&dir, "secure-etcd")?;
    suite
        .case(
            "an etcd with TLS, client certificates and users",
            LIMIT,
            secure::certificates_and_users(&secure, &mut trio),
        )
        .await;
    for backend in ["vxlan", "host-gw", "udp"] {
        let name = format!("a change among thousands of peers by {backend}");
        suite.case(&name, LIMIT * 2, scale::flat(&etcd, &mut trio, backend)).await;
    }
    suite.case("one host alone", LIMIT, trouble::alone(&mut trio)).await;
    Ok(())
}

/// The same with leases from Kubernetes, and with one host run by flanneld.
pub async fn beside_flanneld(suite: &mut Suite) -> Result<()> {
    let dir = suite.dir().to_owned();
    hosts::lay_wire().await?;
    let etcd = etcd::Etcd::start(&folder(&dir, "own-etcd")?).await?;
    let mut trio = Trio::plug_in(&dir).await?;
    let flanneld = Part::Flanneld.available();
    for backend in ["vxlan", "host-gw", "udp"] {
        let name = format!("beside flanneld with leases from etcd by {backend}");
        match &flanneld {
            Ok(()) => suite.case(&name, LIMIT, flanneld::by_etcd(&etcd, &mut trio, backend)).await,
            Err(missing) => suite.leave_out(&name, missing),
        }
    }
    let plane = ControlPlane::start(&dir, Extent::WithoutScheduler).await?;
    let cluster = kube::Access::open(&plane).await?;
    suite
        .case("leases from Kubernetes, and bad ones among them", LIMIT, kube::leases(&cluster, &mut trio))
        .await;
    suite.case("a host moves, with leases from Kubernetes", LIMIT, kube::moves(&cluster, &mut trio)).await;
    for backend in ["vxlan", "host-gw", "udp"] {
        let name = format!("beside flanneld with leases from Kubernetes by {backend}");
        match &flanneld {
            Ok(()) => suite.case(&name, LIMIT, flanneld::by_kube(&cluster, &mut trio, backend)).await,
            Err(missing) => suite.leave_out(&name, missing),
        }
    }
    Ok(())
}

/// The overlay as a DaemonSet, run by our own agent.
pub async fn as_pods(suite: &mut Suite) -> Result<()> {
    let cluster = Cluster::start(suite.dir(), Extent::Whole).await?;
    let node = cluster.join("node", 1, Kind::V2, json!({})).await?;
    let dir = folder(suite.dir(), "overlay")?;
    let case = "the manifest runs as it is, and gives its node a network";
    suite.case(case, LIMIT * 2, daemon_set::runs(&cluster, &node, &dir)).await;
    Ok(())
}

/// Three hosts, with the pods that were put on them.
pub struct Trio {
    pub hosts: Vec<Host>,
    pub pods: Vec<Pod>,
}

impl Trio {
    async fn plug_in(dir: &Path) -> Result<Self> {
        let mut hosts = Vec::new();
        for number in 1..=3 {
            hosts.push(Host::plug_in(dir, number).await?);
        }
        Ok(Trio { hosts, pods: Vec::new() })
    }

    /// Starts the overlay on all three, and gives each a pod.
    pub async fn start(&mut self, flags: &[&str]) -> Result<()> {
        for host in &mut self.hosts {
            host.start_overlay(flags)?;
        }
        for host in &mut self.hosts {
            host.wait_ready().await?;
            self.pods.push(host.add_pod().await?);
        }
        Ok(())
    }

    /// Starts the overlay again on hosts that have their pods already.
    pub async fn start_again(&mut self, flags: &[&str]) -> Result<()> {
        for host in &mut self.hosts {
            host.start_overlay(flags)?;
        }
        for host in &mut self.hosts {
            host.wait_ready().await?;
        }
        Ok(())
    }

    /// Back to three bare hosts: nothing runs, nothing is kept, no interface but eth0 is left.
    pub async fn clear(&mut self) -> Result<()> {
        for pod in self.pods.drain(..) {
            hosts::ip(&format!("netns del {}", pod.netns)).await?;
        }
        for host in &mut self.hosts {
            host.stop_overlay().await?;
            host.bare().await?;
        }
        Ok(())
    }
}
