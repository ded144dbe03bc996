//! What depends on this machine: the MACs of its tunnel devices, and workarounds for its kernel.

use keelson_netkit::{Mac, Socket};

use crate::config::{Backend, NetConf};
use crate::saved_state::SavedState;

/// Tunnel devices keep their MACs as long as possible, because other hosts have them in their tables: the saved ones, else
/// those of existing devices, else new ones.
pub fn settle_macs(
    socket: &mut Socket,
    conf: &NetConf,
    state: &SavedState,
) -> Result<(Mac, Mac), keelson_netkit::Error> {
    let (kept4, kept6) = state.macs();
    let mut there = (None, None);
    if let Backend::Vxlan(vxlan) = &conf.backend {
        let mut mac = |name: String| Ok(keelson_netkit::link::find(socket, &name)?.and_then(|l| l.mac));
        there = (mac(format!("flannel.{}", vxlan.vni))?, mac(format!("flannel-v6.{}", vxlan.vni))?);
    }
    Ok((kept4.or(there.0).unwrap_or_else(new_mac), kept6.or(there.1).unwrap_or_else(new_mac)))
}

/// Unicast and locally administered.
fn new_mac() -> Mac {
    let random = crate::random::random().to_ne_bytes();
    Mac([(random[0] & 0xfc) | 2, random[1], random[2], random[3], random[4], random[5]])
}

pub fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Kernels before 5.7 damage the checksums of tunnelled packets that are masqueraded on the way in.
pub fn needs_checksums_in_software(release: &str) -> bool {
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) => (major, minor) < (5, 7),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_old_kernels_compute_checksums_themselves() {
        for (release, old) in [
            ("4.19.0-27-amd64", true),
            ("5.6.19", true),
            ("5.7.0", false),
            ("6.18.44-fc", false),
            ("odd", false),
        ] {
            assert_eq!(needs_checksums_in_software(release), old, "{release}");
        }
    }

    #[test]
    fn new_addresses_are_of_one_device_and_local() {
        for _ in 0..100 {
            assert_eq!(new_mac().0[0] & 3, 2);
        }
    }
}
