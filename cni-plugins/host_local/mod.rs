//! Addresses from configured ranges, kept as files on this host.

mod allocate;
mod boot;
mod conf;
mod files;
mod index;
mod lease;
mod lock;
mod range;
mod resolv;
mod store;

use std::time::Duration;

pub use allocate::{Choice, choose};
pub use boot::Boot;
pub use conf::{IpamConf, Release};
pub use lease::{Lease, LeaseOwner};
pub use range::{Draft, Range, RangeSet};
pub use store::Store;

use crate::skel::{Attachment, Call, CniResult, Failure, IpConfig, Plugin};

pub struct HostLocal;

/// Long enough for hundreds of ADDs at once, short enough for a runtime's patience.
const LOCK_PATIENCE: Duration = Duration::from_secs(30);

impl Plugin for HostLocal {
    fn name(&self) -> &'static str {
        "host-local"
    }

    fn enters_netns(&self) -> bool {
        false
    }

    fn add(&self, call: &Call, at: &Attachment) -> Result<CniResult, Failure> {
        let conf = IpamConf::load(call)?;
        let dns = match &conf.resolv_conf {
            Some(path) => resolv::read(path)?,
            None => Default::default(),
        };
        let mut store = open(call, &conf)?;
        let chosen = store.reserve(&LeaseOwner::of(at), &conf.ranges, &conf.requested)?;
        let ips = chosen
            .into_iter()
            .map(|choice| IpConfig {
                interface: None,
                address: choice.address,
                gateway: Some(choice.gateway),
            })
            .collect();
        Ok(CniResult { interfaces: Vec::new(), ips, routes: conf.routes, dns })
    }

    fn del(&self, call: &Call, at: &Attachment) -> Result<(), Failure> {
        let Release { directory, sets } = Release::load(call);
        match Store::open_existing(&directory, LOCK_PATIENCE, Boot::now()?, sets)? {
            Some(mut store) => store.release(&LeaseOwner::of(at)),
            None => Ok(()),
        }
    }

    fn check(&self, call: &Call, at: &Attachment) -> Result<(), Failure> {
        let conf = IpamConf::load(call)?;
        let held = open(call, &conf)?.find(&LeaseOwner::of(at))?;
        if held.is_empty() {
            return Err(Failure::check(format!(
                "host-local holds no address for interface {} of container {}",
                at.ifname, at.container
            )));
        }
        Ok(())
    }

    fn gc(&self, call: &Call) -> Result<(), Failure> {
        let conf = IpamConf::load(call)?;
        let keep = call.valid_attachments()?;
        match Store::open_existing(&conf.directory(call), LOCK_PATIENCE, Boot::now()?, conf.ranges.len())? {
            Some(mut store) => store.retain(|owner| keep.iter().any(|a| owner.is(&a.container, &a.ifname))),
            None => Ok(()),
        }
    }

    fn status(&self, call: &Call) -> Result<(), Failure> {
        let conf = IpamConf::load(call)?;
        match open(call, &conf) {
            Ok(_) => Ok(()),
            Err(failure) => Err(Failure::new(
                Failure::NOT_AVAILABLE,
                "host-local cannot give addresses",
                failure.to_string(),
            )),
        }
    }
}

fn open(call: &Call, conf: &IpamConf) -> Result<Store, Failure> {
    Store::open(&conf.directory(call), LOCK_PATIENCE, Boot::now()?, conf.ranges.len())
}
