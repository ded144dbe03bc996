//! The bridge, and a container's port on it.

use std::time::{Duration, Instant};

use keelson_netkit::link::{self, Link, VethEnd};
use keelson_netkit::{IfName, Mac, NetNs, Socket, bridge, sysctl};

use super::conf::{BridgeConf, Vlans};
use super::plan;
use crate::owner::Owner;
use crate::skel::{Attachment, Failure};

/// How long a port may take to come up. It takes seconds only when hundreds are made at once.
const PORT_PATIENCE: Duration = Duration::from_secs(10);

/// Finds the bridge, or makes it.
pub fn ensure_bridge(socket: &mut Socket, conf: &BridgeConf) -> Result<Link, Failure> {
    let filtering = conf.vlans.needs_filtering();
    let name = conf.bridge.as_str();
    let mut found = link::find(socket, name)?;
    if found.is_none() {
        // A bridge whose MAC was set keeps it; otherwise it would change with the ports that come and go.
        match socket.call(link::new_bridge(&conf.bridge, Some(random_mac()?), conf.mtu, filtering)) {
            Ok(_) => {}
            // Another ADD was quicker.
            Err(error) if error.is_existing() => {}
            Err(error) => return Err(unsupported_filtering(filtering, error.into(), &conf.bridge)),
        }
        found = Some(link::get_by_name(socket, name)?);
    }
    let Some(bridge) = found.filter(|l| l.is_kind("bridge")) else {
        return Err(Failure::config(format!("\"bridge\": there is a link {name}, but it is not a bridge")));
    };
    // The host's routes are not for any container to announce.
    let _ = sysctl::set_if_there(&format!("net/ipv6/conf/{name}/accept_ra"), "0");
    let mut changes = Vec::new();
    if !bridge.is_up() {
        changes.push(link::set_up(&bridge));
    }
    if conf.promiscuous && bridge.promiscuity == 0 {
        changes.push(link::set_promiscuous(&bridge));
    }
    socket.call_all(changes)?;
    if filtering && !bridge.vlan_filtering {
        socket
            .call(link::enable_vlan_filtering(&bridge))
            .map_err(|e| unsupported_filtering(true, e.into(), &conf.bridge))?;
    }
    Ok(bridge)
}

/// Makes the veth pair: one end up and on the bridge, the other down in the container.
pub fn create(
    socket: &mut Socket,
    bridge: &Link,
    conf: &BridgeConf,
    netns: &NetNs,
    at: &Attachment,
    owner: &Owner,
) -> Result<Link, Failure> {
    let name = interface_name(&owner.veth_name())?;
    match pair(socket, bridge, conf, netns, &name, &at.ifname) {
        // Either the container has the interface by now, or an earlier port of this owner is still going.
        Err(error) if error.is_existing() => {
            let other = interface_name(&random_name()?)?;
            pair(socket, bridge, conf, netns, &other, &at.ifname)
        }
        outcome => outcome,
    }
    .map_err(Failure::from)
}

fn pair(
    socket: &mut Socket,
    bridge: &Link,
    conf: &BridgeConf,
    netns: &NetNs,
    host: &IfName,
    container: &IfName,
) -> keelson_netkit::Result<Link> {
    let near = VethEnd { name: host, mac: None, mtu: conf.mtu };
    let far = VethEnd { name: container, mac: conf.mac, mtu: conf.mtu };
    let make = link::new_veth(&near, Some(bridge.index), &far, Some(netns.fd()));
    let mut outcomes = socket.pipeline(vec![make, link::get(host.as_str())])?.into_iter();
    if let Some(made) = outcomes.next() {
        made?;
    }
    match outcomes.next().map(link::found) {
        Some(Ok(Some(port))) => Ok(port),
        Some(Err(error)) => Err(error),
        _ => link::get_by_name(socket, host.as_str()),
    }
}

/// Sets what the configuration asks of the port.
pub fn configure(socket: &mut Socket, port: &Link, conf: &BridgeConf) -> Result<(), Failure> {
    let _ = sysctl::set_if_there(&format!("net/ipv6/conf/{}/accept_ra", port.name), "0");
    let mut changes = Vec::new();
    if conf.hairpin {
        changes.push(bridge::set_hairpin(port, true));
    }
    if conf.port_isolation {
        changes.push(bridge::set_isolated(port, true));
    }
    socket.call_all(changes)?;
    configure_vlans(socket, port, &conf.vlans)
}

/// Gives a port its VLANs, in place of those the bridge gives every port unless they are to stay.
pub fn configure_vlans(socket: &mut Socket, port: &Link, vlans: &Vlans) -> Result<(), Failure> {
    let mut changes = Vec::new();
    if plan::drops_default_vlans(vlans) {
        let present = bridge::vlans(socket, port.index)?;
        changes.extend(present.into_iter().map(|id| bridge::remove_vlan(port, id)));
    }
    changes.extend(plan::port_vlans(vlans).into_iter().map(|vlan| bridge::add_vlan(port, vlan)));
    Ok(socket.call_all(changes)?)
}

/// Waits until the port forwards, and returns it as it is then.
pub fn wait_until_forwarding(socket: &mut Socket, name: &str) -> Result<Link, Failure> {
    let deadline = Instant::now() + PORT_PATIENCE;
    let mut pause = Duration::from_micros(100);
    loop {
        let port = link::get_by_name(socket, name)?;
        if port.operational {
            return Ok(port);
        }
        if Instant::now() >= deadline {
            return Err(Failure::internal(format!(
                "the bridge's port {name} does not come up; is the bridge up?"
            )));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

fn unsupported_filtering(filtering: bool, failure: Failure, bridge: &IfName) -> Failure {
    if !filtering {
        return failure;
    }
    Failure::new(
        Failure::UNSUPPORTED_FIELD,
        format!(
            "\"vlan\" and \"vlanTrunk\" need VLAN filtering on bridge {bridge}, which this kernel refuses"
        ),
        format!("{}; the kernel needs CONFIG_BRIDGE_VLAN_FILTERING", failure.msg),
    )
}

fn interface_name(text: &str) -> Result<IfName, Failure> {
    IfName::try_from(text).map_err(|e| Failure::internal(e.to_string()))
}

/// A name that nothing else uses. It is only needed when the one that follows from the owner is taken.
fn random_name() -> keelson_netkit::Result<String> {
    Ok(format!("veth{}", &random_digits()?[..11]))
}

/// A unicast address of the locally administered kind.
fn random_mac() -> keelson_netkit::Result<Mac> {
    let digits = random_digits()?;
    let mut mac = [0; 6];
    for (i, byte) in mac.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap_or(0);
    }
    mac[0] = mac[0] & 0xfc | 0x02;
    Ok(Mac(mac))
}

/// Twelve random digits. The kernel's UUIDs are random but for a few bits further on.
fn random_digits() -> keelson_netkit::Result<String> {
    let id = sysctl::get("kernel/random/uuid")?;
    let mut digits: String = id.chars().filter(char::is_ascii_hexdigit).take(12).collect();
    while digits.len() < 12 {
        digits.push('0');
    }
    Ok(digits)
}
