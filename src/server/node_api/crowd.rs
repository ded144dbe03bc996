//! Places that are open to everybody, and who holds them: shared fairly among the addresses that ask for them. When all are
//! taken, whoever comes from an address with fewer displaces the oldest of the address with the most. So a crowd has to be as
//! many addresses as there are places before it can be in anybody's way, and even then it has to be quicker.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use tokio_util::sync::CancellationToken;

/// Of how many addresses it is remembered that somebody there has shown who they are.
const PROVEN: usize = 64;

/// How many places there are, and how many of them one address may have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub all: usize,
    pub of_one: usize,
}

/// Who holds one kind of place.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    /// The oldest of each address first. An address without members is not in here.
    of: HashMap<IpAddr, VecDeque<Member>>,
    all: usize,
    arrivals: u64,
}

#[derive(Debug)]
struct Member {
    number: u64,
    displaced: CancellationToken,
}

/// A place that was taken. It is given back by `Crowd::remove`.
#[derive(Debug, Clone)]
pub(super) struct Ticket {
    address: IpAddr,
    number: u64,
    /// Cancelled when somebody else was given the place.
    pub displaced: CancellationToken,
}

/// Addresses from which somebody came and showed who they are: most likely the next who comes from there will do so too.
#[derive(Debug, Default)]
pub(super) struct ProvenAddresses {
    /// With the number of the last time; the one that was longest ago is forgotten first.
    last: HashMap<IpAddr, u64>,
    times: u64,
}

impl ProvenAddresses {
    pub fn add(&mut self, address: IpAddr) {
        self.times += 1;
        self.last.insert(address, self.times);
        if self.last.len() > PROVEN
            && let Some(oldest) = self.last.iter().min_by_key(|(_, time)| **time).map(|(address, _)| *address)
        {
            self.last.remove(&oldest);
        }
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.last.contains_key(&address)
    }
}

impl Crowd {
    /// None when there is no place for this address.
    pub fn admit(&mut self, address: IpAddr, bounds: Bounds, proven: &ProvenAddresses) -> Option<Ticket> {
        let own = self.count(address);
        if own >= bounds.of_one {
            return None;
        }
        if self.all >= bounds.all {
            let (from, unproven, count) = self.first_to_go(proven)?;
            let before = (!proven.contains(address), own);
            if (unproven, count) <= before {
                return None;
            }
            self.displace_oldest(from);
        }
        self.arrivals += 1;
        let (number, displaced) = (self.arrivals, CancellationToken::new());
        self.all += 1;
        self.of.entry(address).or_default().push_back(Member { number, displaced: displaced.clone() });
        Some(Ticket { address, number, displaced })
    }

    /// Gives a place back. False when somebody else had been given it.
    pub fn remove(&mut self, ticket: &Ticket) -> bool {
        let Some(members) = self.of.get_mut(&ticket.address) else { return false };
        let Some(at) = members.iter().position(|m| m.number == ticket.number) else { return false };
        members.remove(at);
        if members.is_empty() {
            self.of.remove(&ticket.address);
        }
        self.all -= 1;
        true
    }

    fn count(&self, address: IpAddr) -> usize {
        self.of.get(&address).map_or(0, VecDeque::len)
    }

    /// The address that has to give up a place first, whether nobody there has shown who they are, and how many it has.
    fn first_to_go(&self, proven: &ProvenAddresses) -> Option<(IpAddr, bool, usize)> {
        let oldest = |members: &VecDeque<Member>| members.front().map_or(0, |m| m.number);
        let ranked = self.of.iter().max_by_key(|(address, members)| {
            (!proven.contains(**address), members.len(), std::cmp::Reverse(oldest(members)))
        });
        ranked.map(|(address, members)| (*address, !proven.contains(*address), members.len()))
    }

    fn displace_oldest(&mut self, address: IpAddr) {
        let Some(members) = self.of.get_mut(&address) else { return };
        if let Some(oldest) = members.pop_front() {
            oldest.displaced.cancel();
            self.all -= 1;
        }
        if members.is_empty() {
            self.of.remove(&address);
        }
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.all == 0 && self.of.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: Bounds = Bounds { all: 8, of_one: 4 };

    fn address(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    fn filled(by: &[(u8, usize)]) -> (Crowd, Vec<Ticket>) {
        let mut crowd = Crowd::default();
        let comers = by.iter().flat_map(|(n, times)| std::iter::repeat_n(*n, *times));
        let none = ProvenAddresses::default();
        let tickets = comers.map(|n| crowd.admit(address(n), FEW, &none).expect("a free place")).collect();
        (crowd, tickets)
    }

    fn displaced(tickets: &[Ticket]) -> Vec<usize> {
        let gone = tickets.iter().enumerate().filter(|(_, t)| t.displaced.is_cancelled());
        gone.map(|(n, _)| n).collect()
    }

    #[test]
    fn who_comes_when_all_places_are_taken() {
        for (case, holders, comer, proven, admitted, gone) in [
            ("one place is left", &[(1, 4), (2, 3)][..], 3, &[][..], true, &[][..]),
            ("one address at its bound", &[(1, 4)], 1, &[], false, &[]),
            ("an address with more gives up its oldest", &[(1, 3), (2, 4), (3, 1)], 4, &[], true, &[3]),
            ("of two with the most, the one with the oldest", &[(1, 4), (2, 4)], 3, &[], true, &[0]),
            ("an address with as many as the most waits", &[(1, 4), (2, 2), (3, 2)], 1, &[], false, &[]),
            (
                "all have one each: the oldest goes",
                &[(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (8, 1)],
                9,
                &[],
                true,
                &[0],
            ),
            ("an address that is known to be good", &[(1, 1), (2, 4), (3, 3)], 3, &[3], true, &[1]),
            ("a good address does not go for others", &[(1, 4), (2, 2), (3, 2)], 4, &[1], true, &[4]),
            ("a crowd does not displace the good", &[(1, 4), (2, 4)], 3, &[1, 2], false, &[]),
            ("among the good the same holds as among others", &[(1, 4), (2, 4)], 3, &[1, 2, 3], true, &[0]),
        ] {
            let (mut crowd, tickets) = filled(holders);
            let mut known = ProvenAddresses::default();
            proven.iter().for_each(|n| known.add(address(*n)));
            assert_eq!(crowd.admit(address(comer), FEW, &known).is_some(), admitted, "{case}");
            assert_eq!(displaced(&tickets), gone, "{case}");
        }
    }

    #[test]
    fn a_place_is_given_back_once_and_not_by_who_lost_it() {
        let (mut crowd, tickets) = filled(&[(1, 4), (2, 4)]);
        let newcomer = crowd.admit(address(3), FEW, &ProvenAddresses::default()).expect("displaces");
        assert!(!crowd.remove(&tickets[0]), "another has the place");
        for ticket in tickets[1..].iter().chain([&newcomer]) {
            assert!(crowd.remove(ticket));
            assert!(!crowd.remove(ticket));
        }
        assert!(crowd.is_empty());
    }

    #[test]
    fn only_so_many_good_addresses_are_remembered_the_latest_first() {
        let mut known = ProvenAddresses::default();
        (0..=u8::try_from(PROVEN).unwrap()).for_each(|n| known.add(address(n)));
        assert!(!known.contains(address(0)) && known.contains(address(1)));
        known.add(address(1));
        known.add(address(200));
        assert!(known.contains(address(1)) && !known.contains(address(2)));
    }
}
