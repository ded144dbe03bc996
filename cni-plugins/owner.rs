//! Who a rule, chain or link belongs to: a network, a container and an interface.
//!
//! Names are derived from the owner alone, so DEL finds what ADD made with nothing but its environment and
//! the network's name. Some names are the reference plugins', so that either can clean up after the other.

use keelson_kit::hex;
use sha2::{Digest, Sha512};

use crate::skel::{Attachment, Call, ValidAttachment};

/// The owner of what one ADD makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub network: String,
    pub container: String,
    pub ifname: String,
}

impl Owner {
    pub fn new(call: &Call, at: &Attachment) -> Self {
        Owner {
            network: call.network.to_string(),
            container: at.container.to_string(),
            ifname: at.ifname.to_string(),
        }
    }

    /// The owner that GC has to keep.
    pub fn kept(network: &str, at: &ValidAttachment) -> Self {
        Owner { network: network.to_owned(), container: at.container.clone(), ifname: at.ifname.clone() }
    }

    /// A name for the host's end of the container's link. The prefix keeps NetworkManager away.
    pub fn veth_name(&self) -> String {
        const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
        let hash = self.hash();
        let letters = hash.iter().take(11).map(|byte| char::from(ALPHABET[usize::from(byte % 32)]));
        format!("veth{}", letters.collect::<String>())
    }

    /// The name of the owner's chain in a table of ours. It starts with [`network_prefix`].
    pub fn chain(&self, prefix: &str) -> String {
        format!("{}{}", network_prefix(prefix, &self.network), hex::encode(&self.hash()[..10]))
    }

    /// One of so many numbers, the same for the same owner.
    pub fn bucket(&self, count: u8) -> u8 {
        self.hash()[63] % count
    }

    /// What is shown beside a rule. The part in front is what the rule is filed under.
    pub fn comment(&self, filed_under: &str) -> String {
        format!("{filed_under} net: {}, if: {}, id: {}", self.network, self.ifname, self.container)
    }

    fn hash(&self) -> [u8; 64] {
        let text = format!("{}\0{}\0{}", self.network, self.container, self.ifname);
        Sha512::digest(text.as_bytes()).into()
    }
}

/// What the chains of all owners on a network start with.
pub fn network_prefix(prefix: &str, network: &str) -> String {
    let hash: [u8; 64] = Sha512::digest(network.as_bytes()).into();
    format!("{prefix}-{}-", hex::encode(&hash[..5]))
}

/// The reference plugins' name for an iptables chain: a prefix filled up with a hash, 28 characters long.
pub fn reference_chain(prefix: &str, network: &str, container: &str) -> String {
    let hash: [u8; 64] = Sha512::digest(format!("{network}{container}").as_bytes()).into();
    let mut name = format!("CNI-{prefix}{}", hex::encode(hash));
    name.truncate(28);
    name
}

/// The comment that the reference plugins put on their nf_tables masquerading rules. They find them by what is before the
/// first comma; the rest is for people.
pub fn reference_masquerade_comment(owner: &Owner) -> String {
    let Owner { network, container, ifname } = owner;
    let instance = short_hash(&format!("{ifname}:{container}"));
    let of_network = reference_masquerade_network(network);
    format!("{of_network}-{instance}, net: {network}, if: {ifname}, id: {container}")
}

/// What the comments of all owners on a network start with.
pub fn reference_masquerade_network(network: &str) -> String {
    short_hash(network)
}

fn short_hash(text: &str) -> String {
    let hash: [u8; 64] = Sha512::digest(text.as_bytes()).into();
    hex::encode(&hash[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        Owner { network: "podnet".into(), container: "abc".into(), ifname: "eth0".into() }
    }

    #[test]
    fn names_fit_where_they_are_used() {
        assert_eq!(owner().veth_name().len(), 15);
        assert!(owner().chain("masq").starts_with(&network_prefix("masq", "podnet")));
        assert_eq!(reference_chain("DN-", "podnet", "abc").len(), 28);
    }

    #[test]
    fn owners_that_differ_in_anything_have_different_names() {
        let mut names = std::collections::HashSet::new();
        for (network, container, ifname) in [
            ("podnet", "abc", "eth0"),
            ("podnet", "abc", "eth1"),
            ("podnet", "abd", "eth0"),
            ("podnett", "bc", "eth0"),
        ] {
            let owner = Owner { network: network.into(), container: container.into(), ifname: ifname.into() };
            assert!(names.insert(owner.veth_name()));
            assert!(names.insert(owner.chain("masq")));
        }
    }
}
