//! The multicast groups that links listen to.

use std::net::Ipv6Addr;

use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::link::Link;

/// Whether this link has joined the solicited-node group of an address, and so answers neighbour solicitations for it. The kernel
/// joins it a moment after it has taken the address, in a worker of its own, which is late when many namespaces come and go. The
/// link is one of the calling thread's namespace.
pub fn has_joined_solicited_node(link: &Link, address: Ipv6Addr) -> Result<bool> {
    const GROUPS: &str = "/proc/thread-self/net/igmp6";
    let text = std::fs::read_to_string(GROUPS).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        Error::system(format!("read the multicast groups of {}", link.name), errno)
    })?;
    Ok(is_member(&text, link.index.0, solicited_node(address)))
}

/// The group that is asked who has an address: ff02::1:ff00:0 with its last three bytes.
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// Lines are like `2    eth0            ff020000000000000000000000000001     1 0000000C 0`.
fn is_member(groups: &str, index: u32, group: Ipv6Addr) -> bool {
    let (index, group) = (index.to_string(), format!("{:032x}", group.to_bits()));
    groups.lines().any(|line| {
        let mut words = line.split_ascii_whitespace();
        words.next() == Some(index.as_str()) && words.nth(1) == Some(group.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_looked_for_on_its_own_link() {
        let groups = "1    lo              ff020000000000000000000000000001     1 0000000C 0\n\
                      12   br0             ff0200000000000000000001ff000009     1 00000004 0\n";
        let group = solicited_node("fd00:88::1:0:9".parse().unwrap());
        assert_eq!(group, "ff02::1:ff00:9".parse::<Ipv6Addr>().unwrap());
        let found = [12, 1, 2].map(|index| is_member(groups, index, group));
        assert_eq!(found, [true, false, false]);
    }
}
