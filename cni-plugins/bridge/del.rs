//! DEL: everything is tried, whatever fails; what is gone already is fine.

use keelson_netkit::{Socket, link};

use super::conf::{BridgeConf, MasqueradeBackend};
use super::{masquerade, masquerade_iptables, spoof};
use crate::delegate::Delegate;
use crate::owner::Owner;
use crate::skel::{Attachment, Call, Failure};

pub fn del(call: &Call, at: &Attachment) -> Result<(), Failure> {
    let conf = BridgeConf::load(call)?;
    let owner = Owner::new(call, at);
    let mut failures = Vec::new();
    failures.extend(remove_link(call, at, &owner).err());
    failures.extend(masquerade::tear_down(&owner).err().filter(|_| conf.masquerade.is_some()));
    if let Some(backend) = conf.masquerade {
        let ours = backend == MasqueradeBackend::Iptables;
        failures.extend(masquerade_iptables::tear_down_if_there(&owner, ours).err());
    }
    if conf.mac_spoof_check {
        failures.extend(spoof::tear_down(&owner).err());
    }
    // The address goes last: whoever gets it next must find nothing left of this container.
    if let Some(kind) = &conf.ipam {
        failures.extend(Delegate::find(call, kind).and_then(|ipam| ipam.del(call, at)).err());
    }
    Failure::all(failures)
}

/// Removes the link from inside, whatever its other end is called. When the namespace cannot be opened,
/// the host's end is found by its name.
fn remove_link(call: &Call, at: &Attachment, owner: &Owner) -> Result<(), Failure> {
    if let Some(netns) = &call.netns {
        let mut inside = netns.run(Socket::route)?;
        if link::delete(&mut inside, at.ifname.as_str())? {
            return Ok(());
        }
    }
    link::delete(&mut Socket::route()?, &owner.veth_name()).map(drop).map_err(Failure::from)
}
