//! Publishes what parts of the agent know about the node. A change wakes the node loop, which reports it.

use std::net::IpAddr;

use keelson_core::node::NodeSignals;
use tokio::sync::watch;

pub struct Signals(watch::Sender<NodeSignals>);

impl Signals {
    pub fn new(addresses: Vec<IpAddr>) -> Self {
        Self(watch::Sender::new(NodeSignals { addresses, ..NodeSignals::default() }))
    }

    /// Changes what is known. Nobody is woken when it stays the same.
    pub fn update(&self, change: impl FnOnce(&mut NodeSignals)) {
        self.0.send_if_modified(|signals| {
            let before = signals.clone();
            change(signals);
            *signals != before
        });
    }

    /// The node's addresses, primary first.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.0.borrow().addresses.clone()
    }

    pub fn subscribe(&self) -> watch::Receiver<NodeSignals> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use keelson_core::node::SignalSource;

    use super::*;

    #[test]
    fn only_a_change_wakes_whoever_follows() {
        let signals = Signals::new(vec![]);
        let mut followed = signals.subscribe();
        let problem = |s: &mut NodeSignals| {
            s.problems.insert(SignalSource("storage"), "the disk is read-only".into());
        };
        signals.update(problem);
        assert!(followed.has_changed().unwrap());
        assert_eq!(followed.borrow_and_update().problems.len(), 1);
        signals.update(problem);
        assert!(!followed.has_changed().unwrap(), "the same once more");
        signals.update(|s| drop(s.problems.remove(&SignalSource("storage"))));
        assert!(followed.has_changed().unwrap());
    }
}
