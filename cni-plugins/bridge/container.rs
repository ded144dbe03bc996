//! The container's end: settings, addresses, routes.

use std::time::{Duration, Instant};

use keelson_netkit::addr::{self, Family};
use keelson_netkit::link::{self, Link};
use keelson_netkit::{NetNs, Socket, route, sysctl};

use super::conf::BridgeConf;
use super::plan;
use crate::skel::{CniResult, Failure};

/// How long the kernel may take with a new IPv6 address, duplicate address detection included.
pub const SETTLE_PATIENCE: Duration = Duration::from_secs(5);

/// Gives the interface its addresses and routes, and sets it up in between: the kernel announces the
/// addresses to the neighbours when the link comes up, and takes routes only then.
pub fn configure(
    netns: &NetNs,
    socket: &mut Socket,
    link: &Link,
    conf: &BridgeConf,
    result: &CniResult,
) -> Result<(), Failure> {
    let v6 = result.ips.iter().any(|ip| !ip.address.is_ipv4());
    netns.run(|| settings(&link.name, conf, v6))?;
    let mut requests: Vec<_> = result.ips.iter().map(|ip| addr::add(link, ip.address)).collect();
    requests.push(link::set_up(link));
    requests.extend(plan::routes(result, link.index).iter().map(route::add_beside));
    Ok(socket.call_all(requests)?)
}

/// Waits until no IPv6 address of the link is tentative any more.
pub fn settle(socket: &mut Socket, link: &Link, conf: &BridgeConf) -> Result<(), Failure> {
    let deadline = Instant::now() + SETTLE_PATIENCE;
    let mut pause = Duration::from_micros(200);
    loop {
        let addresses = addr::list(socket, link, Family::V6)?;
        if let Some(duplicate) = addresses.iter().find(|a| a.duplicate) {
            return Err(Failure::internal(format!(
                "address {} of {} is in use by another machine on the network",
                duplicate.net, link.name
            )));
        }
        if !addresses.iter().any(|a| a.tentative) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            // Without detection the kernel is only late, as it is when hundreds of links are made at once.
            // A link without carrier cannot detect anything, and need not.
            let detects = conf.duplicate_detection && link::get_by_name(socket, &link.name)?.operational;
            return match detects {
                false => Ok(()),
                true => Err(Failure::internal(format!(
                    "the IPv6 addresses of {} are still tentative after {} s",
                    link.name,
                    SETTLE_PATIENCE.as_secs()
                ))),
            };
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// The settings of the interface, made inside the namespace before it has addresses.
fn settings(name: &str, conf: &BridgeConf, v6: bool) -> Result<(), Failure> {
    let set = |family: &str, key: &str, value: &str| {
        sysctl::set_if_there(&format!("net/{family}/conf/{name}/{key}"), value)
    };
    // These make the network nicer, but a container can do without.
    let _ = set("ipv6", "accept_dad", if conf.duplicate_detection { "1" } else { "0" });
    if conf.duplicate_detection {
        let _ = set("ipv6", "enhanced_dad", "1");
    }
    let _ = set("ipv4", "arp_notify", "1");
    if v6 {
        let _ = set("ipv6", "ndisc_notify", "1");
        for interface in ["lo", name] {
            let key = format!("net/ipv6/conf/{interface}/disable_ipv6");
            if sysctl::get(&key).is_ok_and(|value| value != "0") {
                sysctl::set(&key, "0")?;
            }
        }
        set("ipv6", "keep_addr_on_down", "1")?;
    }
    Ok(())
}
