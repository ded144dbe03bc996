//! Which subnet this host registers in etcd: the one it has, the one it had, or a free one. Pure.

use keelson_kit::cidr::{self, IpNetwork};

use crate::config::SubnetPool;
use crate::lease::{LeaseValue, OwnAttributes, parse_key};

/// The lease to write, and whether its key must not exist yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubnetRegistration {
    pub v4: IpNetwork,
    pub v6: Option<IpNetwork>,
    pub is_new: bool,
    /// Keys of this host that no longer fit the network.
    pub obsolete: Vec<String>,
}

/// This host's last registration, as far as it is known.
#[derive(Debug, Clone, Default)]
pub struct LastRegistration {
    pub subnets: Vec<IpNetwork>,
    /// The addresses under which it was published then.
    pub published: Vec<std::net::IpAddr>,
}

/// `entries` are the existing keys (their last part) and values.
pub fn choose<'a>(
    pools: (&SubnetPool, Option<&SubnetPool>),
    entries: impl Iterator<Item = (&'a str, LeaseValue)>,
    own: &OwnAttributes,
    last: &LastRegistration,
    random: u64,
) -> Result<SubnetRegistration, String> {
    let is_own = |value: &LeaseValue| own.public4.is_some_and(|a| value.is_from(a));
    let was_own = |value: &LeaseValue| last.published.iter().any(|a| value.is_from(*a));
    let fits = |v4: &IpNetwork, v6: &Option<IpNetwork>| {
        pools.0.fits(v4)
            && match (pools.1, v6) {
                (None, None) => true,
                (Some(pool), Some(v6)) => pool.fits(v6),
                _ => false,
            }
    };
    let mut obsolete = Vec::new();
    let mut held: Vec<IpNetwork> = Vec::new();
    let remembered = |net: &IpNetwork| last.subnets.contains(net);
    let mut mine: Option<(IpNetwork, Option<IpNetwork>)> = None;
    for (key, value) in entries {
        let Some((v4, v6)) = parse_key(key) else { continue };
        // A host that moved to another address still holds what it published under the old one.
        let ours = is_own(&value) || (remembered(&v4) && was_own(&value));
        match ours {
            // Of several, the one of the last registration: pods have addresses from it.
            true if fits(&v4, &v6) && (mine.is_none() || remembered(&v4)) => mine = Some((v4, v6)),
            true if !fits(&v4, &v6) => obsolete.push(key.to_owned()),
            true => {}
            false => held.extend(std::iter::once(v4).chain(v6)),
        }
    }
    if let Some((v4, v6)) = mine {
        return Ok(SubnetRegistration { v4, v6, is_new: false, obsolete });
    }
    let previous4 = last.subnets.iter().copied().find(IpNetwork::is_ipv4);
    let previous6 = last.subnets.iter().copied().find(|net| !net.is_ipv4());
    let free = |net: &IpNetwork| !held.iter().any(|other| cidr::overlap(*other, *net));
    if let Some(v4) = previous4
        && fits(&v4, &previous6.filter(|_| pools.1.is_some()))
        && free(&v4)
        && previous6.is_none_or(|v6| free(&v6))
    {
        let v6 = previous6.filter(|_| pools.1.is_some());
        return Ok(SubnetRegistration { v4, v6, is_new: true, obsolete });
    }
    let none_free =
        |pool: &SubnetPool| format!("every subnet of {} is held by some host already", pool.network);
    let v4 = pools.0.pick(&held, random).ok_or_else(|| none_free(pools.0))?;
    let v6 = match pools.1 {
        Some(pool) => Some(pool.pick(&held, random).ok_or_else(|| none_free(pool))?),
        None => None,
    };
    Ok(SubnetRegistration { v4, v6, is_new: true, obsolete })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SubnetRange;

    fn own(public: &str) -> OwnAttributes {
        OwnAttributes {
            backend: "udp".into(),
            public4: public.parse().ok(),
            public6: None,
            vtep4: None,
            vtep6: None,
        }
    }

    fn entry(key: &str, public: &str) -> (String, LeaseValue) {
        (key.into(), LeaseValue::of(&own(public)))
    }

    fn pick(entries: &[(String, LeaseValue)], last: &LastRegistration) -> SubnetRegistration {
        let pool = SubnetPool::new("10.1.0.0/16".parse().unwrap(), &SubnetRange::default()).unwrap();
        let entries = entries.iter().map(|(key, value)| (key.as_str(), value.clone()));
        choose((&pool, None), entries, &own("192.0.2.1"), last, 0).unwrap()
    }

    fn remembers(subnet: &str, published: &str) -> LastRegistration {
        LastRegistration {
            subnets: vec![subnet.parse().unwrap()],
            published: vec![published.parse().unwrap()],
        }
    }

    #[test]
    fn a_host_keeps_what_it_has_then_what_it_had_then_takes_what_is_free() {
        let taken = entry("10.1.1.0-24", "192.0.2.9");
        type Case<'a> = (&'a str, Vec<(String, LeaseValue)>, LastRegistration, &'a str, bool);
        let cases: [Case; 7] = [
            ("nobody there", vec![], LastRegistration::default(), "10.1.1.0/24", true),
            ("one taken", vec![taken.clone()], LastRegistration::default(), "10.1.2.0/24", true),
            (
                "its own",
                vec![taken.clone(), entry("10.1.7.0-24", "192.0.2.1")],
                LastRegistration::default(),
                "10.1.7.0/24",
                false,
            ),
            ("remembered", vec![taken.clone()], remembers("10.1.5.0/24", "192.0.2.1"), "10.1.5.0/24", true),
            (
                "remembered, but another's now",
                vec![taken.clone()],
                remembers("10.1.1.0/24", "192.0.2.1"),
                "10.1.2.0/24",
                true,
            ),
            (
                "its own from before it moved",
                vec![entry("10.1.5.0-24", "192.0.2.77")],
                remembers("10.1.5.0/24", "192.0.2.77"),
                "10.1.5.0/24",
                false,
            ),
            (
                "remembered from another network",
                vec![],
                remembers("10.9.5.0/24", "192.0.2.1"),
                "10.1.1.0/24",
                true,
            ),
        ];
        for (name, entries, last, subnet, is_new) in cases {
            let got = pick(&entries, &last);
            assert_eq!((got.v4.to_string().as_str(), got.is_new), (subnet, is_new), "{name}");
        }
    }

    #[test]
    fn a_key_of_ours_that_no_longer_fits_is_given_up() {
        let got = pick(&[entry("10.9.1.0-24", "192.0.2.1")], &LastRegistration::default());
        assert_eq!((got.obsolete, got.is_new), (vec!["10.9.1.0-24".to_owned()], true));
    }
}
