//! How many may be connected at once. Those who have not shown who they are get few places, which are shared fairly among the
//! addresses that they come from (`crowd`), so that a crowd of strangers cannot keep the apiserver out.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::crowd::{Bounds, Crowd, ProvenAddresses, Ticket};

const STRANGERS: Bounds = Bounds { all: 256, of_one: 64 };
/// Those who wait cost a socket and nothing else. The apiserver may come with hundreds of execs at once.
const WAITING: Bounds = Bounds { all: 1024, of_one: 512 };
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
    strangers: Crowd,
    waiting: Crowd,
    known: usize,
    proven: ProvenAddresses,
}

/// A place in the queue for a seat, free again when dropped.
pub(super) struct WaitingPeer {
    seats: Seats,
    address: IpAddr,
    place: Ticket,
}

/// A place for one connection, free again when dropped.
pub(super) struct Seat {
    seats: Seats,
    address: IpAddr,
    place: Ticket,
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
        let mut taken = self.lock();
        let TakenSeats { waiting, proven, .. } = &mut *taken;
        let place = waiting.admit(address, WAITING, proven)?;
        Some(WaitingPeer { seats: self.clone(), address, place })
    }

    fn try_take(&self, address: IpAddr) -> Option<Seat> {
        let mut taken = self.lock();
        let TakenSeats { strangers, proven, .. } = &mut *taken;
        let place = strangers.admit(address, STRANGERS, proven)?;
        Some(Seat { seats: self.clone(), address, place, known: Mutex::new(false) })
    }

    fn lock(&self) -> MutexGuard<'_, TakenSeats> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitingPeer {
    /// None when no seat became free in time, or when the place in the queue went to somebody else.
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
        tokio::select! {
            seat = tokio::time::timeout(patience, waiting) => seat.ok(),
            () = self.place.displaced.cancelled() => None,
        }
    }
}

impl Drop for WaitingPeer {
    fn drop(&mut self) {
        self.seats.lock().waiting.remove(&self.place);
    }
}

impl Seat {
    /// Whoever sits here has shown who they are, and is displaced by nobody any more. False when there are too many of those,
    /// or when the seat was given to somebody else a moment ago.
    pub fn becomes_known(&self) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !*known {
            let mut taken = self.seats.lock();
            taken.proven.add(self.address);
            if taken.known >= KNOWN || !taken.strangers.remove(&self.place) {
                return false;
            }
            taken.known += 1;
            drop(taken);
            self.seats.0.freed.notify_waiters();
            *known = true;
        }
        true
    }

    /// Returns when somebody else was given the seat. That never happens to whoever is known.
    pub async fn displaced(&self) {
        self.place.displaced.cancelled().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let known = *self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = self.seats.lock();
        if known {
            taken.known -= 1;
        } else if taken.strangers.remove(&self.place) {
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
        for _ in 0..STRANGERS.of_one {
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
        assert!(taken.strangers.is_empty() && taken.waiting.is_empty() && taken.known == 0);
    }

    #[tokio::test]
    async fn a_network_of_ipv6_addresses_counts_as_one() {
        let seats = Seats::default();
        let mut crowd = vec![];
        for n in 0..STRANGERS.of_one {
            crowd.push(take(&seats, &format!("2001:db8::{n:x}")).await.unwrap());
        }
        assert!(take(&seats, "2001:db8::ffff").await.is_none());
        assert!(take(&seats, "2001:db8:0:1::1").await.is_some());
    }

    #[tokio::test]
    async fn a_crowd_from_a_few_addresses_gives_way_to_another_and_the_known_stay() {
        let seats = Seats::default();
        let mut crowd = vec![];
        for n in 0..STRANGERS.all {
            crowd.push(take(&seats, &format!("192.0.2.{}", n % 8)).await.unwrap());
        }
        assert!(crowd[0].becomes_known());
        crowd.push(take(&seats, "192.0.2.0").await.unwrap());
        let queue: Vec<_> =
            (0..WAITING.all).map(|n| seats.queue(IpAddr::from([192, 0, 2, (n % 8) as u8]))).collect();
        assert!(queue.iter().all(Option::is_some));
        // All seats are taken, and so is the queue.
        let apiserver = take(&seats, "198.51.100.1").await.expect("it comes from an address of its own");
        assert!(apiserver.becomes_known());
        let displaced = crowd.iter().filter(|s| s.place.displaced.is_cancelled()).count();
        assert_eq!(displaced, 1, "one stranger went for it");
        let lost = crowd.iter().find(|s| s.place.displaced.is_cancelled()).unwrap();
        assert!(!lost.becomes_known(), "who lost the seat does not become known in it");
        drop((queue, crowd, apiserver));
        let taken = seats.lock();
        assert!(taken.strangers.is_empty() && taken.waiting.is_empty() && taken.known == 0);
    }

    #[tokio::test]
    async fn strangers_together_have_an_end_too() {
        let seats = Seats::default();
        let mut crowd = vec![];
        let mut queue = vec![];
        for n in 0..4 * WAITING.all as u32 {
            let from = std::net::Ipv4Addr::from_bits(n).to_string();
            crowd.extend(take(&seats, &from).await);
            queue.extend(seats.queue(address(&from)));
        }
        let still = |tickets: Vec<&Ticket>| tickets.iter().filter(|t| !t.displaced.is_cancelled()).count();
        assert_eq!(still(crowd.iter().map(|s| &s.place).collect()), STRANGERS.all);
        assert_eq!(still(queue.iter().map(|w| &w.place).collect()), WAITING.all);
    }
}
