//! DEL: everything is tried, whatever fails; what is gone already is fine.

use keelson_netkit::{Socket, link};

use super::conf::{MasqueradeBackend, Release};
use super::{masquerade, masquerade_iptables, spoof};
use crate::delegate::Delegate;
use crate::owner::Owner;
use crate::skel::{Attachment, Call, Failure};

pub fn del(call: &Call, at: &Attachment) -> Result<(), Failure> {
    let conf = Release::load(call);
    let owner = Owner::new(call, at);
    let mut failures = Vec::new();
    // The kernel finishes the removal of rules in the background, and makes whoever closes a netfilter
    // socket wait for that. Removing the link takes as long, so the rules go first and the socket last.
    let mut rules = Socket::netfilter();
    match &mut rules {
        Ok(socket) => remove_rules(socket, &conf, &owner, &mut failures),
        Err(error) if conf.masquerade.is_some() => failures.push(Failure::internal(error.to_string())),
        Err(_) => {}
    }
    failures.extend(remove_link(call, at, &owner).err());
    // The address goes after all else: whoever gets it next must find nothing left of this container.
    if let Some(kind) = &conf.ipam {
        failures.extend(Delegate::find_for_release(call, kind).and_then(|ipam| ipam.del(call, at)).err());
    }
    drop(rules);
    Failure::all(failures)
}

/// Removes the owner's rules, also when the configuration does not ask for any now.
fn remove_rules(socket: &mut Socket, conf: &Release, owner: &Owner, failures: &mut Vec<Failure>) {
    failures.extend(masquerade::tear_down(socket, owner).err().filter(|_| conf.masquerade.is_some()));
    if let Some(backend) = conf.masquerade {
        let ours = backend == MasqueradeBackend::Iptables;
        failures.extend(masquerade_iptables::tear_down_if_there(socket, owner, ours).err());
    }
    if conf.mac_spoof_check {
        failures.extend(spoof::tear_down(socket, owner).err());
    }
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
