//! The longest-prefix table: which peer holds an address.
//!
//! One hash table for each prefix length in use, asked from the longest to the shortest. A network gives its hosts
//! subnets of one length, so a look-up is one probe whether there are two peers or five thousand, and a change touches
//! one entry. Memory grows with the entries only, however the prefixes are spread.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::net::IpAddr;

use keelson_kit::cidr::IpNetwork;

/// Prefixes of both families, each with a number.
#[derive(Debug, Clone, Default)]
pub struct PrefixTable {
    v4: Vec<Length<u32>>,
    v6: Vec<Length<u128>>,
    seed: HashSeed,
}

/// All prefixes of one length; the lists hold them longest first.
#[derive(Debug, Clone)]
struct Length<A> {
    prefix: u8,
    mask: A,
    entries: HashMap<A, u32, HashSeed>,
}

impl PrefixTable {
    /// The number of the longest prefix that holds `address`.
    pub fn find(&self, address: IpAddr) -> Option<u32> {
        match address {
            IpAddr::V4(a) => {
                let bits = a.to_bits();
                self.v4.iter().find_map(|length| length.entries.get(&(bits & length.mask)).copied())
            }
            IpAddr::V6(a) => {
                let bits = a.to_bits();
                self.v6.iter().find_map(|length| length.entries.get(&(bits & length.mask)).copied())
            }
        }
    }

    /// The number of exactly this prefix.
    pub fn get(&self, net: IpNetwork) -> Option<u32> {
        match net {
            IpNetwork::V4(net) => get(&self.v4, net.prefix(), net.network().to_bits()),
            IpNetwork::V6(net) => get(&self.v6, net.prefix(), net.network().to_bits()),
        }
    }

    pub fn insert(&mut self, net: IpNetwork, number: u32) {
        let seed = self.seed;
        match net {
            IpNetwork::V4(net) => {
                let (mask, bits) = (net.mask().to_bits(), net.network().to_bits());
                insert(&mut self.v4, net.prefix(), mask, bits, number, seed);
            }
            IpNetwork::V6(net) => {
                let (mask, bits) = (net.mask().to_bits(), net.network().to_bits());
                insert(&mut self.v6, net.prefix(), mask, bits, number, seed);
            }
        }
    }

    pub fn remove(&mut self, net: IpNetwork) {
        match net {
            IpNetwork::V4(net) => remove(&mut self.v4, net.prefix(), net.network().to_bits()),
            IpNetwork::V6(net) => remove(&mut self.v6, net.prefix(), net.network().to_bits()),
        }
    }
}

fn get<A: Hash + Eq>(lengths: &[Length<A>], prefix: u8, bits: A) -> Option<u32> {
    lengths.iter().find(|length| length.prefix == prefix)?.entries.get(&bits).copied()
}

fn insert<A: Hash + Eq>(
    lengths: &mut Vec<Length<A>>,
    prefix: u8,
    mask: A,
    bits: A,
    number: u32,
    seed: HashSeed,
) {
    let at = lengths.partition_point(|length| length.prefix > prefix);
    if lengths.get(at).is_none_or(|length| length.prefix != prefix) {
        lengths.insert(at, Length { prefix, mask, entries: HashMap::with_hasher(seed) });
    }
    if let Some(length) = lengths.get_mut(at) {
        length.entries.insert(bits, number);
    }
}

fn remove<A: Hash + Eq>(lengths: &mut Vec<Length<A>>, prefix: u8, bits: A) {
    if let Some(length) = lengths.iter_mut().find(|length| length.prefix == prefix) {
        length.entries.remove(&bits);
    }
    // An empty length would cost every later look-up a probe.
    lengths.retain(|length| !length.entries.is_empty());
}

/// Hashes numbers by multiplication, from a start that nobody outside can know.
#[derive(Debug, Clone, Copy)]
pub struct HashSeed(u64);

impl Default for HashSeed {
    fn default() -> Self {
        HashSeed(RandomState::new().hash_one(0u8))
    }
}

impl BuildHasher for HashSeed {
    type Hasher = NumberHasher;

    fn build_hasher(&self) -> NumberHasher {
        NumberHasher(self.0)
    }
}

#[derive(Debug)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        let wide = u128::from(self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        self.0 = (wide >> 64) as u64 ^ wide as u64;
    }

    fn write_u128(&mut self, number: u128) {
        self.write_u64((number >> 64) as u64);
        self.write_u64(number as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use keelson_kit::cidr::{truncated, with_length};

    use super::*;

    /// Addresses from a small part of the space, so that prefixes meet and nest.
    fn address() -> impl Strategy<Value = IpAddr> {
        let bits = || prop::sample::select(vec![0u32, 1, 255, 256, 0x100, 0xffff, 0x0a01_0000, 0x0a01_0100]);
        prop_oneof![
            (bits(), 0u32..4).prop_map(|(a, b)| IpAddr::V4(Ipv4Addr::from_bits(a ^ b))),
            (bits(), bits())
                .prop_map(|(a, b)| IpAddr::V6(Ipv6Addr::from_bits(u128::from(a) << 96 | u128::from(b)))),
        ]
    }

    fn net() -> impl Strategy<Value = IpNetwork> {
        (address(), any::<u8>()).prop_map(|(addr, n)| {
            let most = if addr.is_ipv4() { 33 } else { 129 };
            truncated(with_length(addr, n % most))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn finds_what_a_walk_over_all_prefixes_finds(
            changes in prop::collection::vec((net(), any::<bool>()), 0..60),
            asked in prop::collection::vec(address(), 20),
        ) {
            let mut table = PrefixTable::default();
            let mut list: Vec<(IpNetwork, u32)> = Vec::new();
            for (number, (net, add)) in changes.into_iter().enumerate() {
                list.retain(|(held, _)| *held != net);
                if add {
                    table.insert(net, number as u32);
                    list.push((net, number as u32));
                } else {
                    table.remove(net);
                }
                prop_assert_eq!(table.get(net).is_some(), add);
            }
            for address in asked {
                let best = list.iter().filter(|(net, _)| net.contains(address)).max_by_key(|(net, _)| net.prefix());
                prop_assert_eq!(table.find(address), best.map(|(_, number)| *number));
            }
        }
    }

    #[test]
    fn a_network_of_five_thousand_hosts_takes_one_probe() {
        let mut table = PrefixTable::default();
        for host in 0..5000u32 {
            let addr = Ipv4Addr::from_bits(0x0a00_0000 | host << 8);
            table.insert(with_length(addr.into(), 24), host);
        }
        assert_eq!(table.v4.len(), 1);
        assert_eq!(table.find("10.19.135.77".parse().unwrap()), Some(4999));
        assert_eq!(table.find("10.19.136.1".parse().unwrap()), None);
    }
}
