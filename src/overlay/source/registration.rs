//! Which subnet this host registers in etcd: the one it has, the one it had, or a free one. Pure.

use keelson_netkit::IpNet;

use crate::config::Pool;
use crate::lease::{Own, Record, parse_key};

/// What to write, and whether the key must not be there yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    pub v4: IpNet,
    pub v6: Option<IpNet>,
    pub is_new: bool,
    /// Keys of this host that no longer fit the network.
    pub obsolete: Vec<String>,
}

/// What this host remembers of its last registration.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    pub subnets: Vec<IpNet>,
    /// The addresses under which it was published then.
    pub published: Vec<std::net::IpAddr>,
}

/// `entries` are the keys (their last part) and values that are there.
pub fn choose<'a>(
    pools: (&Pool, Option<&Pool>),
    entries: impl Iterator<Item = (&'a str, Record)>,
    own: &Own,
    memory: &Memory,
    random: u64,
) -> Result<Registration, String> {
    let is_own = |record: &Record| own.public4.is_some_and(|a| record.is_from(a));
    let was_own = |record: &Record| memory.published.iter().any(|a| record.is_from(*a));
    let fits = |v4: &IpNet, v6: &Option<IpNet>| {
        pools.0.fits(v4)
            && match (pools.1, v6) {
                (None, None) => true,
                (Some(pool), Some(v6)) => pool.fits(v6),
                _ => false,
            }
    };
    let mut obsolete = Vec::new();
    let mut held: Vec<IpNet> = Vec::new();
    let remembered = |net: &IpNet| memory.subnets.contains(net);
    let mut mine: Option<(IpNet, Option<IpNet>)> = None;
    for (key, record) in entries {
        let Some((v4, v6)) = parse_key(key) else { continue };
        // Whoever moved to another address still holds what it published under the old one.
        let ours = is_own(&record) || (remembered(&v4) && was_own(&record));
        match ours {
            // Of several, the remembered one: pods hold addresses of it.
            true if fits(&v4, &v6) && (mine.is_none() || remembered(&v4)) => mine = Some((v4, v6)),
            true if !fits(&v4, &v6) => obsolete.push(key.to_owned()),
            true => {}
            false => held.extend(std::iter::once(v4).chain(v6)),
        }
    }
    if let Some((v4, v6)) = mine {
        return Ok(Registration { v4, v6, is_new: false, obsolete });
    }
    let previous4 = memory.subnets.iter().copied().find(IpNet::is_v4);
    let previous6 = memory.subnets.iter().copied().find(|net| !net.is_v4());
    let free = |net: &IpNet| !held.iter().any(|other| other.overlaps(net));
    if let Some(v4) = previous4
        && fits(&v4, &previous6.filter(|_| pools.1.is_some()))
        && free(&v4)
        && previous6.is_none_or(|v6| free(&v6))
    {
        let v6 = previous6.filter(|_| pools.1.is_some());
        return Ok(Registration { v4, v6, is_new: true, obsolete });
    }
    let none_free = |pool: &Pool| format!("every subnet of {} is held by some host already", pool.network);
    let v4 = pools.0.pick(&held, random).ok_or_else(|| none_free(pools.0))?;
    let v6 = match pools.1 {
        Some(pool) => Some(pool.pick(&held, random).ok_or_else(|| none_free(pool))?),
        None => None,
    };
    Ok(Registration { v4, v6, is_new: true, obsolete })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Division;

    fn own(public: &str) -> Own {
        Own { backend: "udp".into(), public4: public.parse().ok(), public6: None, vtep4: None, vtep6: None }
    }

    fn entry(key: &str, public: &str) -> (String, Record) {
        (key.into(), Record::of(&own(public)))
    }

    fn pick(entries: &[(String, Record)], memory: &Memory) -> Registration {
        let pool = Pool::new("10.1.0.0/16".parse().unwrap(), &Division::default()).unwrap();
        let entries = entries.iter().map(|(key, record)| (key.as_str(), record.clone()));
        choose((&pool, None), entries, &own("192.0.2.1"), memory, 0).unwrap()
    }

    fn remembers(subnet: &str, published: &str) -> Memory {
        Memory { subnets: vec![subnet.parse().unwrap()], published: vec![published.parse().unwrap()] }
    }

    #[test]
    fn a_host_keeps_what_it_has_then_what_it_had_then_takes_what_is_free() {
        let taken = entry("10.1.1.0-24", "192.0.2.9");
        type Case<'a> = (&'a str, Vec<(String, Record)>, Memory, &'a str, bool);
        let cases: [Case; 7] = [
            ("nobody there", vec![], Memory::default(), "10.1.1.0/24", true),
            ("one taken", vec![taken.clone()], Memory::default(), "10.1.2.0/24", true),
            (
                "its own",
                vec![taken.clone(), entry("10.1.7.0-24", "192.0.2.1")],
                Memory::default(),
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
        for (name, entries, memory, subnet, is_new) in cases {
            let got = pick(&entries, &memory);
            assert_eq!((got.v4.to_string().as_str(), got.is_new), (subnet, is_new), "{name}");
        }
    }

    #[test]
    fn a_key_of_ours_that_no_longer_fits_is_given_up() {
        let got = pick(&[entry("10.9.1.0-24", "192.0.2.1")], &Memory::default());
        assert_eq!((got.obsolete, got.is_new), (vec!["10.9.1.0-24".to_owned()], true));
    }
}
