//! How many may be connected at once. Those who have not shown who they are get few places, and fewer for each address,
//! so that a crowd of strangers cannot keep the apiserver out.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const STRANGERS: usize = 256;
const STRANGERS_OF_ONE_ADDRESS: usize = 64;
const KNOWN: usize = 1024;

#[derive(Clone, Default)]
pub(super) struct Seats(Arc<Mutex<Taken>>);

#[derive(Default)]
struct Taken {
    strangers: HashMap<IpAddr, usize>,
    known: usize,
}

/// A place for one connection, free again when dropped.
pub(super) struct Seat {
    seats: Seats,
    address: IpAddr,
    known: Mutex<bool>,
}

impl Seats {
    /// None when there is no place; the connection is to be closed.
    pub fn take(&self, address: IpAddr) -> Option<Seat> {
        // One machine has many IPv6 addresses; its network counts as one.
        let address = match address.to_canonical() {
            IpAddr::V6(six) => IpAddr::V6((six.to_bits() >> 64 << 64).into()),
            four => four,
        };
        let mut taken = self.lock();
        let all: usize = taken.strangers.values().sum();
        let own = taken.strangers.get(&address).copied().unwrap_or(0);
        if all >= STRANGERS || own >= STRANGERS_OF_ONE_ADDRESS {
            return None;
        }
        taken.strangers.insert(address, own + 1);
        Some(Seat { seats: self.clone(), address, known: Mutex::new(false) })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn stranger_leaves(&mut self, address: IpAddr) {
        if let Some(count) = self.strangers.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.strangers.remove(&address);
            }
        }
    }
}

impl Seat {
    /// Whoever sits here has shown who they are. False when there are too many of those.
    pub fn becomes_known(&self) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !*known {
            let mut taken = self.seats.lock();
            if taken.known >= KNOWN {
                return false;
            }
            taken.known += 1;
            taken.stranger_leaves(self.address);
            *known = true;
        }
        true
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let known = *self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = self.seats.lock();
        if known {
            taken.known -= 1;
        } else {
            taken.stranger_leaves(self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_address_does_not_take_all_places_and_the_known_make_room() {
        let seats = Seats::default();
        let crowd: Vec<_> =
            (0..STRANGERS_OF_ONE_ADDRESS).map(|_| seats.take(address("192.0.2.1")).unwrap()).collect();
        assert!(seats.take(address("192.0.2.1")).is_none());
        assert!(seats.take(address("192.0.2.2")).is_some());
        assert!(crowd[0].becomes_known() && crowd[0].becomes_known());
        assert!(seats.take(address("192.0.2.1")).is_some());
        drop(crowd);
        assert!(seats.lock().strangers.is_empty());
        assert_eq!(seats.lock().known, 0);
    }

    #[test]
    fn a_network_of_ipv6_addresses_counts_as_one() {
        let seats = Seats::default();
        let crowd: Vec<_> =
            (0..STRANGERS_OF_ONE_ADDRESS).map(|n| seats.take(address(&format!("2001:db8::{n:x}")))).collect();
        assert!(crowd.iter().all(Option::is_some));
        assert!(seats.take(address("2001:db8::ffff")).is_none());
        assert!(seats.take(address("2001:db8:0:1::1")).is_some());
    }

    #[test]
    fn strangers_together_have_an_end_too() {
        let seats = Seats::default();
        let crowd: Vec<_> = (0..2 * STRANGERS)
            .filter_map(|n| seats.take(IpAddr::V4(std::net::Ipv4Addr::from_bits(n as u32))))
            .collect();
        assert_eq!(crowd.len(), STRANGERS);
    }
}
