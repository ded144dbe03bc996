//! A few leases changed and nothing else did: only what belongs to them is touched, whatever the number of the others.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::{Done, Engine};
use crate::guard::{self, Keys};
use crate::kernel;
use crate::lease::{Change, News, Place};
use crate::plan::{Action, Carrier, Fallen, follow};

/// What came of it.
#[derive(Debug, Default)]
pub struct Followed {
    pub done: Done,
    /// Why everything has to be looked at after all.
    pub lost: Option<String>,
}

impl Engine {
    /// Whether the last look found everything in place, so that a change can build on it.
    pub fn can_follow(&self) -> bool {
        self.ground.is_some()
    }

    pub fn follow(&mut self, news: Option<News>, fallen: &Fallen) -> Followed {
        let changes = self.changes(news, fallen);
        if changes.is_empty() {
            return Followed::default();
        }
        self.unsaved = true;
        let mut followed = Followed::default();
        if let Err(why) = self.act_on(&changes, &mut followed.done) {
            self.ground = None;
            followed.lost = Some(why);
        }
        self.follow_path(changes.iter().flat_map(|c| c.publics()), &mut followed.done);
        followed
    }

    /// Takes in what was heard, and what probes taught.
    fn changes(&mut self, news: Option<News>, fallen: &Fallen) -> Vec<Step> {
        let mut book = self.board.book();
        let mut picture = self.board.picture();
        let before = std::mem::replace(&mut picture.fallen, fallen.clone());
        let heard = news.map(|news| picture.roll.take(news)).unwrap_or_default();
        let mut changes: BTreeMap<Arc<str>, Change> =
            heard.into_iter().map(|change| (change.holder.clone(), change)).collect();
        for (holder, _) in before.symmetric_difference(fallen) {
            let peer = picture.roll.peer(holder);
            let same = || Change { holder: holder.clone(), before: peer.clone(), after: peer.clone() };
            changes.entry(holder.clone()).or_insert_with(same);
        }
        for change in changes.values() {
            picture.note_reach(&change.holder);
            if change.after.is_none() {
                book.forget(&change.holder);
            }
        }
        let Some(situation) = &picture.situation else { return Vec::new() };
        let steps = changes.into_values().map(|change| Step {
            before: change.before.iter().flat_map(|peer| situation.ways(peer, &before)).collect(),
            after: change.after.iter().flat_map(|peer| situation.ways(peer, fallen)).collect(),
            change,
        });
        steps.collect()
    }

    fn act_on(&mut self, steps: &[Step], done: &mut Done) -> Result<(), String> {
        let ground = self.ground.as_ref().ok_or("the kernel is not as it should be")?;
        let actions: Vec<Action> = {
            let picture = self.board.picture();
            let situation = picture.situation.as_ref().ok_or("there is no interface to other hosts")?;
            let before: Vec<_> = steps.iter().flat_map(|s| s.before.iter().copied()).collect();
            let after: Vec<_> = steps.iter().flat_map(|s| s.after.iter().copied()).collect();
            {
                let is_used = |mac, v4| picture.roll.of_mac(mac, v4).is_some();
                follow(situation, ground, &before, &after, is_used)
            }
            .ok_or("a device is missing")?
        };
        // Who is to be heard is heard before somebody is told where to send, and the other way round for who is not.
        self.follow_guard(steps)?;
        for action in actions {
            kernel::act(&mut self.socket, &action).map_err(|error| error.to_string())?;
            done.add(action);
        }
        Ok(())
    }

    fn follow_guard(&mut self, steps: &[Step]) -> Result<(), String> {
        let Some(lengths) = &self.guarded else { return Ok(()) };
        let places = |of: fn(&Change) -> &Option<crate::lease::Lease>| -> Vec<Place> {
            steps.iter().filter_map(|s| of(&s.change).as_ref()).flat_map(|p| [p.v4, p.v6]).flatten().collect()
        };
        let (before, after) = (places(|c| &c.before), places(|c| &c.after));
        if after.iter().any(|place| !lengths.contains(&(place.subnet.is_v4(), place.subnet.prefix))) {
            return Err("a subnet of a new size came, for which there is no rule yet".into());
        }
        let mut heard: Keys = after.iter().flat_map(guard::keys).collect();
        let mut silenced: Keys =
            before.iter().flat_map(guard::keys).filter(|key| !heard.contains(key)).collect();
        heard.sort();
        heard.dedup();
        silenced.sort();
        silenced.dedup();
        // A host that another lease is of goes on being heard.
        let others: Keys = {
            let picture = self.board.picture();
            let other = |place: &Place| {
                let (_, place) = picture.roll.at(picture.roll.under(place.public).next()?)?;
                Some(guard::keys(place))
            };
            before.iter().filter_map(other).flatten().collect()
        };
        silenced.retain(|key| !others.contains(key));
        guard::follow(&mut self.rules, &heard, &silenced).map_err(|error| error.to_string())
    }
}

/// One peer's way from what it was to what it is.
struct Step {
    change: Change,
    before: Vec<(Place, Carrier)>,
    after: Vec<(Place, Carrier)>,
}

impl Step {
    /// The addresses that it is or was published under.
    fn publics(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let peers = self.change.before.iter().chain(self.change.after.iter());
        peers.flat_map(|peer| peer.places().map(|place| place.public))
    }
}
