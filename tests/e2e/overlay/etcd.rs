//! Leases from a real etcd, in flannel's keys.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use keelson_proto::etcd::etcdserverpb as pb;
use keelson_tests::control_plane::start_etcd_at;
use keelson_tests::hosts::{WIRE, all_reach_all};
use keelson_tests::process::Daemon;
use keelson_tests::wait::{free_port, until, until_true};
use rustix::process::Signal;
use tonic::transport::Channel;

use super::Trio;

pub const NETWORK: &str = "10.5.0.0/16";

pub struct Etcd {
    daemon: Daemon,
    pub url: String,
}

impl Etcd {
    pub async fn start(dir: &Path) -> Result<Self> {
        let (mut daemon, url) = start_etcd_at(dir, &format!("http://{WIRE}:{}", free_port()?))?;
        let limit = Duration::from_secs(30);
        until("etcd answers", limit, async || {
            daemon.check_alive()?;
            Ok(kv(&url).await?.range(pb::RangeRequest { key: b"x".into(), range_end: vec![] }).await.ok())
        })
        .await?;
        Ok(Etcd { daemon, url })
    }

    /// Holds etcd still, as if it were gone, or lets it go on.
    pub fn hold(&self, still: bool) -> Result<()> {
        self.daemon.signal(if still { Signal::STOP } else { Signal::CONT })
    }

    pub async fn put(&self, key: &str, value: &str) -> Result<()> {
        let put = pb::PutRequest { key: key.into(), value: value.into(), lease: 0 };
        kv(&self.url).await?.put(put).await.context("put")?;
        Ok(())
    }

    /// Writes many keys, some at a time, as etcd takes them.
    pub async fn put_all(&self, pairs: Vec<(String, String)>) -> Result<()> {
        let put = |(key, value): &(String, String)| pb::RequestOp {
            request: Some(pb::request_op::Request::RequestPut(pb::PutRequest {
                key: key.as_str().into(),
                value: value.as_str().into(),
                lease: 0,
            })),
        };
        let mut kv = kv(&self.url).await?;
        for some in pairs.chunks(100) {
            let success = some.iter().map(put).collect();
            kv.txn(pb::TxnRequest { compare: vec![], success, failure: vec![] }).await.context("put many")?;
        }
        Ok(())
    }

    pub async fn configure(&self, backend: &str) -> Result<()> {
        let conf = format!(
            r#"{{"Network": "{NETWORK}", "EnableIPv6": true, "IPv6Network": "fd00:5::/48", "Backend": {{"Type": "{backend}"}}}}"#
        );
        self.put("/coreos.com/network/config", &conf).await
    }

    /// The keys under a prefix, without it.
    pub async fn keys(&self, prefix: &str) -> Result<Vec<String>> {
        let mut end = prefix.as_bytes().to_vec();
        *end.last_mut().context("no prefix")? += 1;
        let range = pb::RangeRequest { key: prefix.into(), range_end: end };
        let found = kv(&self.url).await?.range(range).await?.into_inner().kvs;
        Ok(found
            .iter()
            .filter_map(|kv| Some(String::from_utf8_lossy(&kv.key).strip_prefix(prefix)?.to_owned()))
            .collect())
    }

    pub async fn delete(&self, key: &str) -> Result<()> {
        let request = pb::DeleteRangeRequest { key: key.into(), range_end: vec![] };
        kv(&self.url).await?.delete_range(request).await?;
        Ok(())
    }

    /// Forgets all leases.
    pub async fn wipe(&self) -> Result<()> {
        let request = pb::DeleteRangeRequest {
            key: "/coreos.com/network/subnets/".into(),
            range_end: "/coreos.com/network/subnets0".into(),
        };
        kv(&self.url).await?.delete_range(request).await?;
        Ok(())
    }
}

async fn kv(url: &str) -> Result<pb::kv_client::KvClient<Channel>> {
    Ok(pb::kv_client::KvClient::new(Channel::from_shared(url.to_owned())?.connect().await?))
}

/// Somebody changes the network under running hosts: they say so and go on, until they are restarted.
pub async fn reconfigured(etcd: &Etcd, trio: &mut Trio) -> Result<()> {
    trio.clear().await?;
    etcd.wipe().await?;
    etcd.configure("vxlan").await?;
    let flags = ["--etcd-endpoints", etcd.url.as_str()];
    trio.start(&flags).await?;
    all_reach_all(&trio.pods).await?;
    let limit = Duration::from_secs(20);
    let says = async |trio: &Trio, text: &'static str| {
        until_true(&format!("the first host says {text:?}"), limit, async || {
            Ok(trio.hosts[0].status().await?["problems"].to_string().contains(text))
        })
        .await
    };
    etcd.put("/coreos.com/network/config", "{").await?;
    says(trio, "would not start with this one").await?;
    etcd.configure("host-gw").await?;
    says(trio, "until the overlay is restarted here").await?;
    all_reach_all(&trio.pods).await.context("with another configuration in etcd")?;
    etcd.configure("vxlan").await?;
    says(trio, "[]").await?;
    // Another backend, host by host: each says of the others that they do not fit, until the last one followed.
    etcd.configure("host-gw").await?;
    for host in &mut trio.hosts {
        host.stop_overlay().await?;
    }
    trio.start_again(&flags).await?;
    all_reach_all(&trio.pods).await.context("with the new configuration")?;
    let links = trio.hosts[0].ip("-o link show").await?;
    ensure!(!links.contains("flannel"), "the old backend's devices are still there: {links}");
    says(trio, "[]").await
}

pub async fn all_pairs(etcd: &Etcd, trio: &mut Trio, backend: &str) -> Result<()> {
    trio.clear().await?;
    etcd.wipe().await?;
    etcd.configure(backend).await?;
    trio.start(&["--etcd-endpoints", &etcd.url]).await?;
    all_reach_all(&trio.pods).await?;
    let keys = etcd.keys("/coreos.com/network/subnets/").await?;
    ensure!(keys.len() == 3 && keys.iter().all(|k| k.contains("-24&fd00:5:")), "keys are {keys:?}");
    // A host itself reaches pods elsewhere too.
    let far = trio.pods[2].v4()?;
    trio.hosts[0].run(&format!("busybox ping -c1 -W2 {far}")).await?;
    let env = std::fs::read_to_string(trio.hosts[0].dir.join("subnet.env"))?;
    ensure!(env.contains("FLANNEL_NETWORK=10.5.0.0/16\n") && env.contains("FLANNEL_IPMASQ=true\n"), "{env}");
    if backend != "udp" {
        for host in &mut trio.hosts {
            host.stop_overlay().await?;
        }
        all_reach_all(&trio.pods).await.context("with every daemon stopped")?;
        trio.start_again(&["--etcd-endpoints", &etcd.url]).await?;
    }
    let after = etcd.keys("/coreos.com/network/subnets/").await?;
    ensure!(after == keys, "a restart changed the leases: {keys:?} became {after:?}");
    Ok(())
}
