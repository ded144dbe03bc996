//! How a network is divided into subnets, one a host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use keelson_netkit::IpNet;

use super::net_conf::Division;

/// The subnets that may be given out: those of length `subnet_len` from `min` to `max`, both included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    pub network: IpNet,
    pub subnet_len: u8,
    pub min: IpAddr,
    pub max: IpAddr,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{network} cannot be divided into subnets: {why}")]
pub struct PoolError {
    network: IpNet,
    why: String,
}

impl Pool {
    /// By flannel's rules: room for four subnets at least, of which the first is not given out, because its first
    /// address is the network's own.
    pub fn new(network: IpNet, division: &Division) -> Result<Self, PoolError> {
        let failed = |why: String| PoolError { network, why };
        let (bits, usual) = if network.is_v4() { (32, 24) } else { (128, 64) };
        let subnet_len = match division.subnet_len {
            Some(len) if len > bits - 2 => {
                return Err(failed(format!("a subnet length of {len} leaves no room for pods")));
            }
            Some(len) if len < network.prefix + 2 => {
                return Err(failed(format!(
                    "with a subnet length of {len} there are fewer than four; {} or more is expected",
                    network.prefix + 2
                )));
            }
            Some(len) => len,
            None if network.prefix > bits - 4 => {
                return Err(failed(format!("it is too small; a /{} or larger is expected", bits - 4)));
            }
            None if network.prefix <= usual - 2 => usual,
            None => network.prefix + 2,
        };
        let size = 1u128 << (bits - subnet_len);
        let min = division.min.unwrap_or(from_number(network.is_v4(), number(network.addr) + size));
        let max = division.max.unwrap_or(from_number(network.is_v4(), number(network.last()) - (size - 1)));
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
        Ok(Pool { network, subnet_len, min, max })
    }

    /// Whether a subnet could have come from here.
    pub fn fits(&self, subnet: &IpNet) -> bool {
        subnet.is_v4() == self.network.is_v4()
            && subnet.prefix == self.subnet_len
            && subnet.network() == *subnet
            && (number(self.min)..=number(self.max)).contains(&number(subnet.addr))
    }

    /// A subnet that overlaps none of `taken`. `random` picks among the first hundred that are free, so that hosts
    /// which start in the same moment seldom want the same one.
    pub fn pick(&self, taken: &[IpNet], random: u64) -> Option<IpNet> {
        const CHOICES: usize = 100;
        let size = 1u128 << ((if self.network.is_v4() { 32 } else { 128 }) - self.subnet_len);
        let mut held: Vec<(u128, u128)> = taken
            .iter()
            .filter(|net| net.is_v4() == self.network.is_v4())
            .map(|net| (number(net.network().addr), number(net.last())))
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
        Some(IpNet::new(from_number(self.network.is_v4(), *chosen), self.subnet_len))
    }
}

fn number(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(a) => u128::from(a.to_bits()),
        IpAddr::V6(a) => a.to_bits(),
    }
}

fn from_number(v4: bool, number: u128) -> IpAddr {
    match v4 {
        true => Ipv4Addr::from_bits(number as u32).into(),
        false => Ipv6Addr::from_bits(number).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(network: &str, len: Option<u8>) -> Result<Pool, PoolError> {
        Pool::new(network.parse().unwrap(), &Division { subnet_len: len, ..Division::default() })
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
        let off = Division { min: Some("10.244.1.7".parse().unwrap()), ..Division::default() };
        assert!(Pool::new("10.244.0.0/16".parse().unwrap(), &off).is_err(), "not on a boundary");
    }

    #[test]
    fn a_picked_subnet_is_free_whatever_the_sizes_of_those_held() {
        let pool = pool("10.244.0.0/16", None).unwrap();
        let held: Vec<IpNet> = ["10.244.0.0/18", "10.244.64.128/25", "10.244.66.0/23"]
            .iter()
            .map(|n| n.parse().unwrap())
            .collect();
        for random in 0..300 {
            let subnet = pool.pick(&held, random).unwrap();
            assert!(pool.fits(&subnet), "{subnet}");
            assert!(held.iter().all(|net| !net.overlaps(&subnet)), "{subnet} is held");
        }
        assert_eq!(pool.pick(&held, 0).unwrap().to_string(), "10.244.65.0/24");
        assert_eq!(pool.pick(&["10.244.0.0/16".parse().unwrap()], 0), None, "all held");
        let top = Pool::new("ffff::/16".parse().unwrap(), &Division::default()).unwrap();
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
