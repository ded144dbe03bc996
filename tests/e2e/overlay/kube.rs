//! Leases from a real apiserver, with the rights that our manifest grants and no others.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use keelson_tests::control_plane::ControlPlane;
use keelson_tests::hosts::all_reach_all;
use keelson_tests::isolation::NODE_IP;
use keelson_tests::kubectl::Kubectl;
use keelson_tests::wait::until_true;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};

use super::Trio;

const SOON: Duration = Duration::from_secs(20);

/// The apiserver as the hosts see it: on an address that they can reach, as a user with the overlay's rights.
pub struct Access {
    pub kubeconfig: PathBuf,
    pub client: Client,
}

impl Access {
    pub async fn open(plane: &ControlPlane) -> Result<Self> {
        let client = plane.client().await?;
        let manifest = include_str!("../../../packaging/overlay/keelson-overlay.yaml");
        Kubectl::new(plane.admin()).apply(manifest).await.context("the overlay's manifest")?;
        let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
        let binding = json!({
            "metadata": {"name": "keelson-overlay-by-user"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "keelson-overlay"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "overlay"}],
        });
        bindings.create(&PostParams::default(), &serde_json::from_value(binding)?).await?;

        let listener = TcpListener::bind((NODE_IP, 0)).await?;
        let server = format!("https://{NODE_IP}:{}", listener.local_addr()?.port());
        let port = plane.apiserver_port();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(("127.0.0.1", port)).await?;
                    tokio::io::copy_bidirectional(&mut near, &mut far).await
                });
            }
        });
        Ok(Access { kubeconfig: plane.user_kubeconfig("overlay", &server)?, client })
    }

    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// Makes the three nodes anew, with a pod range of each family and a network that is said to be missing.
    pub async fn register(&self) -> Result<()> {
        for number in 1..=3 {
            let name = format!("h{number}");
            let _ = self.nodes().delete(&name, &DeleteParams::default()).await;
            let node = json!({
                "metadata": {"name": name},
                "spec": {"podCIDR": format!("10.244.{number}.0/24"),
                         "podCIDRs": [format!("10.244.{number}.0/24"), format!("fd00:244:0:{number}::/64")]},
            });
            self.nodes().create(&PostParams::default(), &serde_json::from_value(node)?).await?;
            let missing =
                json!({"status": {"conditions": [{"type": "NetworkUnavailable", "status": "True"}]}});
            self.nodes().patch_status(&name, &PatchParams::default(), &Patch::Strategic(missing)).await?;
        }
        Ok(())
    }

    /// Flags for a host, with the network configuration in its folder.
    pub fn flags(&self, trio: &Trio, backend: &str, dual: bool) -> Result<Vec<String>> {
        let path = trio.hosts[0].dir.join("net-conf.json");
        let conf = json!({
            "Network": "10.244.0.0/16", "EnableIPv6": dual, "IPv6Network": "fd00:244::/48", "EnableNFTables": true,
            "Backend": {"Type": backend},
        });
        std::fs::write(&path, conf.to_string())?;
        let kubeconfig = self.kubeconfig.display().to_string();
        Ok([
            "--kube-subnet-mgr",
            "--kubeconfig-file",
            &kubeconfig,
            "--net-config-path",
            &path.display().to_string(),
        ]
        .map(String::from)
        .to_vec())
    }
}

pub async fn leases(access: &Access, trio: &mut Trio) -> Result<()> {
    trio.clear().await?;
    access.register().await?;
    let flags = access.flags(trio, "vxlan", true)?;
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    trio.start(&flags).await?;
    all_reach_all(&trio.pods).await?;
    until_true("NetworkUnavailable is cleared everywhere", SOON, async || {
        for name in ["h1", "h2", "h3"] {
            let node = access.nodes().get(name).await?;
            let conditions = node.status.and_then(|s| s.conditions).unwrap_or_default();
            let cleared = |t: &str, v: &str| conditions.iter().any(|c| c.type_ == t && c.status == v);
            if !cleared("NetworkUnavailable", "False") {
                return Ok(false);
            }
        }
        Ok(true)
    })
    .await?;
    let node = access.nodes().get("h1").await?;
    let notes = node.metadata.annotations.unwrap_or_default();
    for (name, value) in
        [("backend-type", "vxlan"), ("kube-subnet-manager", "true"), ("public-ip", "198.51.100.1")]
    {
        let found = notes.get(&format!("flannel.alpha.coreos.com/{name}"));
        ensure!(found.is_some_and(|v| v == value), "{name} is {found:?}");
    }
    bad_nodes(access).await?;
    until_true("the bad nodes are reported", SOON, async || {
        let status = trio.hosts[0].status().await?.to_string();
        Ok(["bad-address", "bad-mac", "bad-twin", "bad-data"].iter().all(|bad| status.contains(bad)))
    })
    .await?;
    all_reach_all(&trio.pods).await.context("with bad nodes among the others")?;
    let status = trio.hosts[0].status().await?.to_string();
    for bad in ["bad-address", "bad-mac", "bad-twin", "bad-data"] {
        ensure!(status.contains(bad), "nothing is said about {bad}: {status}");
    }
    ensure!(status.contains("two hosts with one subnet"), "{status}");

    until_true("the Node says so too", SOON, async || {
        let conditions =
            access.nodes().get("h1").await?.status.and_then(|s| s.conditions).unwrap_or_default();
        let healthy = conditions.iter().find(|c| c.type_ == "OverlayHealthy");
        Ok(healthy.is_some_and(|c| {
            c.status == "False" && c.message.as_ref().is_some_and(|m| m.contains("left out"))
        }))
    })
    .await?;

    // Somebody takes the annotations away: they come back.
    let gone = json!({"metadata": {"annotations": {"flannel.alpha.coreos.com/backend-data": null}}});
    access.nodes().patch("h1", &PatchParams::default(), &Patch::Merge(gone)).await?;
    until_true("the annotation is back", SOON, async || {
        let notes = access.nodes().get("h1").await?.metadata.annotations.unwrap_or_default();
        Ok(notes.contains_key("flannel.alpha.coreos.com/backend-data"))
    })
    .await?;
    for name in ["bad-address", "bad-mac", "bad-twin", "bad-data"] {
        access.nodes().delete(name, &DeleteParams::default()).await?;
    }
    Ok(())
}

/// A host moves to another address. Its connection to the apiserver came from the old one, and must not hold it up.
pub async fn moves(access: &Access, trio: &mut Trio) -> Result<()> {
    trio.clear().await?;
    access.register().await?;
    let flags = access.flags(trio, "vxlan", true)?;
    trio.start(&flags.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    all_reach_all(&trio.pods).await?;
    for (from, to) in [(3, 33), (33, 3)] {
        for line in [
            format!("addr del 198.51.100.{from}/24 dev eth0"),
            format!("addr add 198.51.100.{to}/24 dev eth0"),
            "route add default via 198.51.100.254".to_owned(),
        ] {
            trio.hosts[2].ip(&line).await?;
        }
        until_true("the Node has the new address", SOON, async || {
            let notes = access.nodes().get("h3").await?.metadata.annotations.unwrap_or_default();
            let published = notes.get("flannel.alpha.coreos.com/public-ip");
            Ok(published.is_some_and(|ip| *ip == format!("198.51.100.{to}")))
        })
        .await?;
        all_reach_all(&trio.pods).await.with_context(|| format!("after it moved to {to}"))?;
    }
    // The network configuration's file changes: the host says so, at the next reconcile at the latest.
    let conf = trio.hosts[0].dir.join("net-conf.json");
    std::fs::write(&conf, std::fs::read_to_string(&conf)?.replace("vxlan", "host-gw"))?;
    trio.hosts[0].ip("route del 10.244.2.0/24").await?;
    until_true("the host says that it needs a restart", SOON, async || {
        Ok(trio.hosts[0].status().await?["problems"].to_string().contains("until the overlay is restarted"))
    })
    .await
}

/// Nodes whose annotations are garbage, or meant to do harm.
async fn bad_nodes(access: &Access) -> Result<()> {
    let mac = r#"{"VNI":1,"VtepMAC":"ff:ff:ff:ff:ff:ff"}"#;
    let good = r#"{"VNI":1,"VtepMAC":"02:00:00:00:00:07"}"#;
    for (name, subnet, public, data) in [
        ("bad-address", "10.244.71.0/24", "127.0.0.1", good),
        ("bad-mac", "10.244.72.0/24", "198.51.100.72", mac),
        ("bad-twin", "10.244.2.0/24", "198.51.100.73", good),
        ("bad-data", "10.244.74.0/24", "198.51.100.74", "{{{"),
    ] {
        let node = json!({
            "metadata": {"name": name, "annotations": {
                "flannel.alpha.coreos.com/kube-subnet-manager": "true",
                "flannel.alpha.coreos.com/backend-type": "vxlan",
                "flannel.alpha.coreos.com/backend-data": data,
                "flannel.alpha.coreos.com/public-ip": public,
            }},
            "spec": {"podCIDR": subnet, "podCIDRs": [subnet]},
        });
        // bad-twin comes before h2 in every order, and claims its subnet; it must not win over a host that is served.
        let _ = access.nodes().delete(name, &DeleteParams::default()).await;
        access.nodes().create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    }
    Ok(())
}
