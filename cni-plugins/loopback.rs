//! The loopback interface of a container, set up and down.

use keelson_netkit::addr::{self, Family};
use keelson_netkit::{Socket, link};

use crate::skel::{Attachment, Call, CniResult, Failure, Interface, IpConfig, Plugin};

pub struct Loopback;

/// Whatever CNI_IFNAME says, there is only this one.
const NAME: &str = "lo";

impl Plugin for Loopback {
    fn name(&self) -> &'static str {
        "loopback"
    }

    fn enters_netns(&self) -> bool {
        true
    }

    fn add(&self, call: &Call, _: &Attachment) -> Result<CniResult, Failure> {
        let previous = call.previous_result()?;
        let mut socket = inside(call)?;
        let lo = link::get_by_name(&mut socket, NAME)?;
        socket.call(link::set_up(&lo))?;
        let mut ips = Vec::new();
        for family in [Family::V4, Family::V6] {
            let addresses = addr::list(&mut socket, &lo, family)?;
            if let Some(foreign) = addresses.iter().find(|a| !a.net.ip().is_loopback()) {
                return Err(Failure::internal(format!(
                    "{NAME} has the address {}, which is not a loopback one",
                    foreign.net
                )));
            }
            ips.extend(addresses.first().map(|a| IpConfig {
                interface: Some(0),
                address: a.net,
                gateway: None,
            }));
        }
        if let Some(previous) = previous {
            return Ok(previous);
        }
        let interface = Interface {
            name: NAME.into(),
            mac: "00:00:00:00:00:00".into(),
            sandbox: call.netns_path.clone(),
            ..Default::default()
        };
        Ok(CniResult { interfaces: vec![interface], ips, ..Default::default() })
    }

    fn del(&self, call: &Call, _: &Attachment) -> Result<(), Failure> {
        if call.netns.is_none() {
            return Ok(());
        }
        let mut socket = inside(call)?;
        let Some(lo) = link::find(&mut socket, NAME)? else { return Ok(()) };
        socket.call(link::set_down(&lo))?;
        Ok(())
    }

    fn check(&self, call: &Call, _: &Attachment) -> Result<(), Failure> {
        let mut socket = inside(call)?;
        match link::get_by_name(&mut socket, NAME)?.is_up() {
            true => Ok(()),
            false => Err(Failure::check(format!("{NAME} in {} is down", call.netns_path))),
        }
    }

    fn gc(&self, _: &Call) -> Result<(), Failure> {
        Ok(())
    }

    fn status(&self, _: &Call) -> Result<(), Failure> {
        Ok(())
    }
}

fn inside(call: &Call) -> Result<Socket, Failure> {
    match &call.netns {
        Some(netns) => netns.run(Socket::route).map_err(Failure::from),
        None => Err(Failure::environment("CNI_NETNS is needed")),
    }
}
