//! A bridge on the host with one port for each container.

mod add;
mod check;
mod conf;
mod container;
mod del;
mod gateway;
mod masquerade;
mod masquerade_iptables;
mod masquerade_reference;
mod plan;
mod port;
mod spoof;

pub use conf::{BridgeConf, MasqueradeBackend, Release, Vlans};

use crate::delegate::Delegate;
use crate::skel::{Attachment, Call, CniResult, Failure, Plugin};

pub struct Bridge;

impl Plugin for Bridge {
    fn name(&self) -> &'static str {
        "bridge"
    }

    fn enters_netns(&self) -> bool {
        true
    }

    fn add(&self, call: &Call, at: &Attachment) -> Result<CniResult, Failure> {
        add::add(call, at)
    }

    fn del(&self, call: &Call, at: &Attachment) -> Result<(), Failure> {
        del::del(call, at)
    }

    fn check(&self, call: &Call, at: &Attachment) -> Result<(), Failure> {
        check::check(call, at)
    }

    fn gc(&self, call: &Call) -> Result<(), Failure> {
        let conf = BridgeConf::load(call)?;
        let keep = call.valid_attachments()?;
        let mut failures = Vec::new();
        failures.extend(masquerade::collect(call.network.as_str(), &keep).err());
        if let Some(kind) = &conf.ipam {
            failures.extend(Delegate::find(call, kind).and_then(|ipam| ipam.gc(call)).err());
        }
        Failure::all(failures)
    }

    fn status(&self, call: &Call) -> Result<(), Failure> {
        let conf = BridgeConf::load(call)?;
        let Some(kind) = &conf.ipam else { return Ok(()) };
        Delegate::find(call, kind)
            .map_err(|f| Failure::new(Failure::NOT_AVAILABLE, "the IPAM plugin is not there", f.to_string()))?
            .status(call)
    }
}
