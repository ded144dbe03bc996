//! What happens to hosts, and what others do to what the overlay set up.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use keelson_tests::hosts::{Host, all_reach_all};
use keelson_tests::wait::until_true;

use super::Trio;
use super::etcd::Etcd;

const SOON: Duration = Duration::from_secs(20);
const SUBNETS: &str = "/coreos.com/network/subnets/";

async fn fresh(etcd: &Etcd, trio: &mut Trio, backend: &str) -> Result<()> {
    trio.clear().await?;
    etcd.wipe().await?;
    etcd.configure(backend).await?;
    trio.start(&["--etcd-endpoints", &etcd.url]).await?;
    all_reach_all(&trio.pods).await
}

pub async fn moves(etcd: &Etcd, trio: &mut Trio) -> Result<()> {
    fresh(etcd, trio, "vxlan").await?;
    let keys = etcd.keys(SUBNETS).await?;
    let third = trio.pods[2].v4()?;

    // It changes its address: the lease stays, the others follow.
    for line in [
        "addr del 198.51.100.3/24 dev eth0",
        "addr add 198.51.100.33/24 dev eth0",
        "route add default via 198.51.100.254",
    ] {
        trio.hosts[2].ip(line).await?;
    }
    for pod in &trio.pods[..2] {
        pod.reaches(third).await.context("after the host moved")?;
    }
    ensure!(etcd.keys(SUBNETS).await? == keys, "moving changed the leases");

    // Cut off and back: nothing was forgotten meanwhile.
    trio.hosts[2].connect(false).await?;
    ensure!(trio.pods[0].ping(third).await.is_err(), "a cable that is out still carries");
    trio.hosts[2].connect(true).await?;
    trio.pods[0].reaches(third).await.context("after the cable was put back")?;

    // It leaves for good: its routes go with its lease.
    trio.hosts[2].kill_overlay()?;
    let (subnet, _) = third
        .to_string()
        .rsplit_once('.')
        .map(|(a, b)| (format!("{a}.0/24"), b.to_owned()))
        .context("no subnet")?;
    let key =
        keys.iter().find(|k| subnet.starts_with(k.split('-').next().unwrap_or("?"))).context("no key")?;
    etcd.delete(&format!("{SUBNETS}{key}")).await?;
    until_true("the route to a host that left is gone", SOON, async || {
        Ok(!trio.hosts[0].ip("route show").await?.contains(&subnet))
    })
    .await?;

    // And joins again, with the subnet that its pods have addresses of.
    trio.hosts[2].start_overlay(&["--etcd-endpoints", &etcd.url])?;
    trio.hosts[2].wait_ready().await?;
    trio.pods[0].reaches(third).await.context("after the host came back")?;
    for line in [
        "addr del 198.51.100.33/24 dev eth0",
        "addr add 198.51.100.3/24 dev eth0",
        "route add default via 198.51.100.254",
    ] {
        trio.hosts[2].ip(line).await?;
    }
    trio.pods[0].reaches(third).await.context("after it moved back")
}

/// Each kind of damage cuts the first host's pod off from the second's; nobody but the overlay puts it right.
pub async fn repairs(etcd: &Etcd, trio: &mut Trio) -> Result<()> {
    fresh(etcd, trio, "vxlan").await?;
    let (from, to) = (&trio.pods[0], trio.pods[1].v4()?);
    let host = &trio.hosts[0];
    let subnet = to.to_string().rsplit_once('.').map(|(net, _)| format!("{net}.0")).context("no subnet")?;
    let deeds = [
        "link set flannel.1 address 02:00:00:00:00:99".to_owned(),
        format!("route del {subnet}/24"),
        format!("route replace blackhole {subnet}/24"),
        format!("neigh flush dev flannel.1 nud permanent {subnet}"),
        "link set flannel.1 down".to_owned(),
        "link del flannel.1".to_owned(),
        "addr flush dev flannel.1".to_owned(),
    ];
    for deed in &deeds {
        host.ip(deed).await.with_context(|| deed.clone())?;
        from.reaches(to).await.with_context(|| format!("after: ip {deed}"))?;
    }
    // A rename goes with the device down on older kernels.
    host.ip("link set flannel.1 down").await?;
    host.ip("link set flannel.1 name stray0").await?;
    from.reaches(to).await.context("after the device was renamed")?;
    until_true("the device has its name again", SOON, async || {
        Ok(host.ip("link show flannel.1").await.is_ok())
    })
    .await?;

    let fdb = host.run("bridge fdb show dev flannel.1").await?;
    for line in fdb.lines().filter(|line| line.contains("dst")) {
        host.run(&format!(
            "bridge fdb del {}",
            line.split(" self").next().unwrap_or_default().replacen(" dst", " dev flannel.1 dst", 1)
        ))
        .await?;
    }
    from.reaches(to).await.context("after the forwarding entries were flushed")?;

    host.run("nft delete table inet keelson_overlay").await?;
    until_true("the rules are back", SOON, async || {
        Ok(host.run("nft list table inet keelson_overlay").await?.contains("masquerade"))
    })
    .await?;
    let address = host.ip("-o addr show dev flannel.1").await?;
    ensure!(address.contains("/32"), "the device's address is {address}");
    let status = host.status().await?;
    ensure!(status["repairs"].as_u64() > Some(5), "{status}");
    Ok(())
}

pub async fn etcd_away(etcd: &Etcd, trio: &mut Trio) -> Result<()> {
    fresh(etcd, trio, "vxlan").await?;
    etcd.hold(true)?;
    let outcome = without_etcd(etcd, trio).await;
    etcd.hold(false)?;
    outcome?;
    until_true("the host hears etcd again", SOON * 2, async || {
        Ok(trio.hosts[0].status().await?["heard"] == true)
    })
    .await
}

async fn without_etcd(etcd: &Etcd, trio: &mut Trio) -> Result<()> {
    all_reach_all(&trio.pods).await.context("with etcd away")?;
    // As after a reboot: no device, no route, only what is on disk.
    let host: &mut Host = &mut trio.hosts[0];
    host.kill_overlay()?;
    host.ip("link del flannel.1").await?;
    host.ip("link del flannel-v6.1").await?;
    host.start_overlay(&["--etcd-endpoints", &etcd.url])?;
    host.wait_ready().await?;
    all_reach_all(&trio.pods).await.context("after a start with etcd away")?;
    let status = trio.hosts[0].status().await?;
    ensure!(status["heard"] == false, "{status}");
    Ok(())
}
