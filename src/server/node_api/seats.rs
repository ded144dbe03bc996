//! How many may be connected at once. Those who have not shown who they are get few places, and fewer for each address,
//! so that a crowd of strangers cannot keep the apiserver out.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

const STRANGERS: usize = 256;
const STRANGERS_OF_ONE_ADDRESS: usize = 64;
/// Those who wait cost a socket and nothing else. The apiserver may come with hundreds of execs at once.
const WAITING: usize = 1024;
const WAITING_OF_ONE_ADDRESS: usize = 512;
const KNOWN: usize = 1024;

#[derive(Clone, Default)]
pub(super) struct Seats(Arc<SeatTable>);

#[derive(Default)]
struct SeatTable {
    taken: Mutex<TakenSeats>,
    freed: Notify,
}

#[derive(Default)]
struct TakenSeats {
    strangers: SeatCount,
    waiting: SeatCount,
    known: usize,
}

/// How many there are of each address, and together.
#[derive(Default)]
struct SeatCount {
    of: HashMap<IpAddr, usize>,
    all: usize,
}

impl SeatCount {
    fn add(&mut self, address: IpAddr, most: usize, most_of_one: usize) -> bool {
        let own = self.of.get(&address).copied().unwrap_or(0);
        let fits = self.all < most && own < most_of_one;
        if fits {
            self.of.insert(address, own + 1);
            self.all += 1;
        }
        fits
    }

    fn remove(&mut self, address: IpAddr) {
        if let Some(own) = self.of.get_mut(&address) {
            *own -= 1;
            self.all -= 1;
            if *own == 0 {
                self.of.remove(&address);
            }
        }
    }
}

/// A place in the queue for a seat, free again when dropped.
pub(super) struct WaitingPeer {
    seats: Seats,
    address: IpAddr,
}

/// A place for one connection, free again when dropped.
pub(super) struct Seat {
    seats: Seats,
    address: IpAddr,
    known: Mutex<bool>,
}

impl Seats {
    /// None when not even the queue has a place; the connection is to be closed at once.
    pub fn queue(&self, address: IpAddr) -> Option<WaitingPeer> {
        // One machine has many IPv6 addresses; its network counts as one.
        let address = match address.to_canonical() {
            six @ IpAddr::V6(_) => keelson_kit::cidr::with_length(six, 64).network(),
            four => four,
        };
        let placed = self.lock().waiting.add(address, WAITING, WAITING_OF_ONE_ADDRESS);
        placed.then(|| WaitingPeer { seats: self.clone(), address })
    }

    fn try_take(&self, address: IpAddr) -> Option<Seat> {
        let taken = self.lock().strangers.add(address, STRANGERS, STRANGERS_OF_ONE_ADDRESS);
        taken.then(|| Seat { seats: self.clone(), address, known: Mutex::new(false) })
    }

    fn lock(&self) -> MutexGuard<'_, TakenSeats> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitingPeer {
    /// None when no seat became free in time.
    pub async fn seat(self, patience: Duration) -> Option<Seat> {
        let waiting = async {
            loop {
                let freed = self.seats.0.freed.notified();
                tokio::pin!(freed);
                // Registered before the check, so that a seat that becomes free in between is not missed.
                freed.as_mut().enable();
                if let Some(seat) = self.seats.try_take(self.address) {
                    return seat;
                }
                freed.await;
            }
        };
        tokio::time::timeout(patience, waiting).await.ok()
    }
}

impl Drop for WaitingPeer {
    fn drop(&mut self) {
        self.seats.lock().waiting.remove(self.address);
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
            taken.strangers.remove(self.address);
            drop(taken);
            self.seats.0.freed.notify_waiters();
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
            taken.strangers.remove(self.address);
            drop(taken);
            self.seats.0.freed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    async fn take(seats: &Seats, from: &str) -> Option<Seat> {
        seats.queue(address(from))?.seat(Duration::ZERO).await
    }

    #[tokio::test]
    async fn one_address_does_not_take_all_places_and_the_known_make_room() {
        let seats = Seats::default();
        let mut crowd = vec![];
        for _ in 0..STRANGERS_OF_ONE_ADDRESS {
            crowd.push(take(&seats, "192.0.2.1").await.unwrap());
        }
        assert!(take(&seats, "192.0.2.1").await.is_none());
        assert!(take(&seats, "192.0.2.2").await.is_some());
        let next = seats.queue(address("192.0.2.1")).unwrap();
        let next = tokio::spawn(next.seat(Duration::from_secs(60)));
        assert!(crowd[0].becomes_known() && crowd[0].becomes_known());
        assert!(next.await.unwrap().is_some(), "who waits gets the seat that became free");
        drop(crowd);
        let taken = seats.lock();
        assert_eq!((taken.strangers.all, taken.waiting.all, taken.known), (0, 0, 0));
        assert!(taken.strangers.of.is_empty() && taken.waiting.of.is_empty());
    }

    #[tokio::test]
    async fn a_network_of_ipv6_addresses_counts_as_one() {
        let seats = Seats::default();
        let mut crowd = vec![];
        for n in 0..STRANGERS_OF_ONE_ADDRESS {
            crowd.push(take(&seats, &format!("2001:db8::{n:x}")).await.unwrap());
        }
        assert!(take(&seats, "2001:db8::ffff").await.is_none());
        assert!(take(&seats, "2001:db8:0:1::1").await.is_some());
    }

    #[tokio::test]
    async fn strangers_together_have_an_end_too() {
        let seats = Seats::default();
        let mut crowd = vec![];
        for n in 0..2 * STRANGERS {
            crowd.extend(take(&seats, &std::net::Ipv4Addr::from_bits(n as u32).to_string()).await);
        }
        assert_eq!(crowd.len(), STRANGERS);
        let queue: Vec<_> = (0..2 * WAITING)
            .filter_map(|n| seats.queue(IpAddr::V4(std::net::Ipv4Addr::from_bits(n as u32))))
            .collect();
        assert_eq!(queue.len(), WAITING);
    }
}
