//! How a network is divided into subnets, one a host.

use std::net::IpAddr;

use keelson_kit::cidr::{self, IpNetwork, from_number, number};

use super::net_conf::SubnetRange;

/// The subnets that may be given out: those of length `subnet_len` from `min` to `max`, both included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubnetPool {
    pub network: IpNetwork,
    pub subnet_len: u8,
    pub min: IpAddr,
    pub max: IpAddr,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{network} cannot be divided into subnets: {why}")]
pub struct PoolError {
    network: IpNetwork,
    why: String,
}

impl SubnetPool {
    /// By flannel's rules: room for four subnets at least, of which the first is not given out, because its first
    /// address is the network's own.
    pub fn new(network: IpNetwork, range: &SubnetRange) -> Result<Self, PoolError> {
        let failed = |why: String| PoolError { network, why };
        let (bits, usual) = if network.is_ipv4() { (32, 24) } else { (128, 64) };
        let subnet_len = match range.subnet_len {
            Some(len) if len > bits - 2 => {
                return Err(failed(format!("a subnet length of {len} leaves no room for pods")));
            }
            Some(len) if len < network.prefix() + 2 => {
                return Err(failed(format!(
                    "with a subnet length of {len} there are fewer than four; {} or more is expected",
                    network.prefix() + 2
                )));
            }
            Some(len) => len,
            None if network.prefix() > bits - 4 => {
                return Err(failed(format!("it is too small; a /{} or larger is expected", bits - 4)));
            }
            None if network.prefix() <= usual - 2 => usual,
            None => network.prefix() + 2,
        };
        let size = 1u128 << (bits - subnet_len);
        let min = range.min.unwrap_or(from_number(number(network.ip()) + size, network.is_ipv4()));
        let max =
            range.max.unwrap_or(from_number(number(network.broadcast()) - (size - 1), network.is_ipv4()));
        for (name, addr) in [("SubnetMin", min), ("SubnetMax", max)] {
            if !network.contains(addr) {
                return Err(failed(format!("{name} {addr} is not in it")));
            }
            if !number(addr).is_multiple_of(size) {
                return Err(failed(format!("{name} {addr} is not the first address of a /{subnet_len}")));
            }
        }
        if number(min) > number(max) {
            return Err(failed(format!("SubnetMin {min} is beyond SubnetMax {max}")));
        }
        Ok(SubnetPool { network, subnet_len, min, max })
    }

    /// Whether a subnet could have come from here.
    pub fn fits(&self, subnet: &IpNetwork) -> bool {
        subnet.is_ipv4() == self.network.is_ipv4()
            && subnet.prefix() == self.subnet_len
            && cidr::truncated(*subnet) == *subnet
            && (number(self.min)..=number(self.max)).contains(&number(subnet.ip()))
    }

    /// A subnet that overlaps none of `taken`. `random` picks among the first hundred that are free, so that hosts
    /// which start in the same moment seldom want the same one.
    pub fn pick(&self, taken: &[IpNetwork], random: u64) -> Option<IpNetwork> {
        const CHOICES: usize = 100;
        let size = 1u128 << ((if self.network.is_ipv4() { 32 } else { 128 }) - self.subnet_len);
        let mut held: Vec<(u128, u128)> = taken
            .iter()
            .filter(|net| net.is_ipv4() == self.network.is_ipv4())
            .map(|net| (number(net.network()), number(net.broadcast())))
            .collect();
        held.sort_unstable();
        let mut free = Vec::new();
        let mut at = number(self.min);
        let mut held = held.into_iter().peekable();
        while at <= number(self.max) && free.len() < CHOICES {
            match held.peek() {
                Some((_, last)) if *last < at => drop(held.next()),
                // Behind what is held, on the next boundary.
                Some((first, last)) if *first < at + size => match (last / size + 1).checked_mul(size) {
                    Some(next) => at = next,
                    None => break,
                },
                _ => {
                    free.push(at);
                    match at.checked_add(size) {
                        Some(next) => at = next,
                        None => break,
                    }
                }
            }
        }
        let chosen = free.get(usize::try_from(random % free.len().max(1) as u64).unwrap_or(0))?;
        Some(cidr::with_length(from_number(*chosen, self.network.is_ipv4()), self.subnet_len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(network: &str, len: Option<u8>) -> Result<SubnetPool, PoolError> {
        SubnetPool::new(network.parse().unwrap(), &SubnetRange { subnet_len: len, ..SubnetRange::default() })
    }

    #[test]
    fn networks_are_divided_as_flannel_divides_them() {
        for (network, len, min, max, chosen) in [
            ("10.244.0.0/16", None, "10.244.1.0", "10.244.255.0", 24),
            ("10.244.0.0/16", Some(20), "10.244.16.0", "10.244.240.0", 20),
            ("10.1.0.0/24", None, "10.1.0.64", "10.1.0.192", 26),
            ("fd00::/56", None, "fd00:0:0:1::", "fd00:0:0:ff::", 64),
            ("255.255.0.0/16", None, "255.255.1.0", "255.255.255.0", 24),
            ("ffff::/16", None, "ffff:0:0:1::", "ffff:ffff:ffff:ffff::", 64),
        ] {
            let pool = pool(network, len).unwrap();
            let got = (pool.min.to_string(), pool.max.to_string(), pool.subnet_len);
            assert_eq!(got, (min.into(), max.into(), chosen), "{network}");
        }
        for (network, len) in [
            ("10.0.0.0/29", None),
            ("10.0.0.0/16", Some(17)),
            ("10.0.0.0/16", Some(31)),
            ("fd00::/126", None),
        ] {
            assert!(pool(network, len).is_err(), "{network} {len:?}");
        }
        let off = SubnetRange { min: Some("10.244.1.7".parse().unwrap()), ..SubnetRange::default() };
        assert!(SubnetPool::new("10.244.0.0/16".parse().unwrap(), &off).is_err(), "not on a boundary");
    }

    #[test]
    fn a_picked_subnet_is_free_whatever_the_sizes_of_those_held() {
        let pool = pool("10.244.0.0/16", None).unwrap();
        let held: Vec<IpNetwork> = ["10.244.0.0/18", "10.244.64.128/25", "10.244.66.0/23"]
            .iter()
            .map(|n| n.parse().unwrap())
            .collect();
        for random in 0..300 {
            let subnet = pool.pick(&held, random).unwrap();
            assert!(pool.fits(&subnet), "{subnet}");
            assert!(held.iter().all(|net| !cidr::overlap(*net, subnet)), "{subnet} is held");
        }
        assert_eq!(pool.pick(&held, 0).unwrap().to_string(), "10.244.65.0/24");
        assert_eq!(pool.pick(&["10.244.0.0/16".parse().unwrap()], 0), None, "all held");
        let top = SubnetPool::new("ffff::/16".parse().unwrap(), &SubnetRange::default()).unwrap();
        assert_eq!(top.pick(&["ffff::/16".parse().unwrap()], 3), None, "no overflow at the very end");
    }

    #[test]
    fn a_subnet_of_another_length_or_place_does_not_fit() {
        let pool = pool("10.244.0.0/16", None).unwrap();
        for (subnet, fits) in [
            ("10.244.1.0/24", true),
            ("10.244.0.0/24", false),
            ("10.244.1.0/25", false),
            ("10.244.1.9/24", false),
            ("10.245.1.0/24", false),
            ("fd00::/24", false),
        ] {
            assert_eq!(pool.fits(&subnet.parse().unwrap()), fits, "{subnet}");
        }
    }
}
