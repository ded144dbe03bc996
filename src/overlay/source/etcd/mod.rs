//! Leases from etcd, in flannel's keys: registers and renews this host's own, and watches the others.

mod client;

use std::collections::BTreeMap;
use std::time::Duration;

use keelson_kit::backoff::{Backoff, Policy};
use keelson_proto::etcd::etcdserverpb::WatchResponse;
use keelson_proto::etcd::mvccpb::KeyValue;
use keelson_proto::etcd::mvccpb::event::EventType;
use tokio::sync::watch;
use tokio::time::Instant;

pub use client::{Client, EtcdError};

use super::SourceSender;
use super::registration::{self, LastRegistration};
use crate::config::{EtcdOptions, NetConf, SubnetPool};
use crate::lease::{LeaseValue, OwnAttributes, ReportedLease, subnet_key};
use crate::random::random;

/// flannel's: a lease lasts a day.
const TTL: Duration = Duration::from_secs(24 * 3600);
/// A session that lasted longer than the longest delay starts the delays over.
const RECONNECT: Policy = Policy {
    first: Duration::from_millis(500),
    most: Duration::from_secs(15),
    forgive_after: Duration::from_secs(15),
};

/// The network configuration, from the first endpoint that has it.
pub async fn network_config(options: &EtcdOptions) -> Result<String, EtcdError> {
    let key = format!("{}/config", options.prefix.trim_end_matches('/'));
    let mut last = EtcdError::Content("no --etcd-endpoints are given".into());
    for number in 0..options.endpoints.len() {
        let answer = async { Client::connect(options, number).await?.get(&key).await }.await;
        match answer {
            Ok(Some(value)) => {
                return String::from_utf8(value)
                    .map_err(|_| EtcdError::Content(format!("the value of {key} in etcd is not text")));
            }
            Ok(None) => {
                last = EtcdError::Content(format!(
                    "there is no {key} in etcd: put the network configuration there, such as {{\"Network\": \"10.5.0.0/16\"}}"
                ));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Registers this host and watches the others, until dropped.
pub async fn run(
    options: EtcdOptions,
    conf: NetConf,
    mut own: watch::Receiver<Option<OwnAttributes>>,
    last: LastRegistration,
    sender: SourceSender,
) {
    let mut registrar = Registrar { options, conf, last, entries: BTreeMap::new(), key: None, sender };
    let mut backoff = Backoff::default();
    for number in 0.. {
        let began = Instant::now();
        let error = match registrar.run_session(number, &mut own).await {
            Ok(SessionEnd::ReceiverDropped) => return,
            Ok(SessionEnd::AddressChanged) => continue,
            Err(error) => error,
        };
        tracing::warn!(%error, "etcd is not available; the leases known so far stay in force");
        registrar.sender.update_status(|status| status.problem = Some(error.to_string()));
        backoff = backoff.next(RECONNECT, began.elapsed());
        tokio::time::sleep(backoff.delay()).await;
    }
}

/// Why a session ended without an error.
enum SessionEnd {
    ReceiverDropped,
    /// This host has another address now: a connection from the old one may never carry anything again.
    AddressChanged,
}

struct Registrar {
    options: EtcdOptions,
    conf: NetConf,
    last: LastRegistration,
    /// All keys under `subnets`, by their last part, while a subnet is chosen.
    entries: BTreeMap<String, Vec<u8>>,
    /// The key that this host holds.
    key: Option<String>,
    sender: SourceSender,
}

impl Registrar {
    /// The prefix of all of flannel's keys.
    fn root(&self) -> String {
        format!("{}/", self.options.prefix.trim_end_matches('/'))
    }

    fn prefix(&self) -> String {
        format!("{}subnets/", self.root())
    }

    fn config_key(&self) -> String {
        format!("{}config", self.root())
    }

    /// Reports when the network configuration differs from the one in force.
    fn check_config(&self, value: Option<&[u8]>) {
        let response = match value {
            Some(value) => {
                let text = String::from_utf8_lossy(value);
                self.conf.differs_from(&text, self.options.backend.as_deref(), "in etcd")
            }
            None => Some(format!(
                "there is no {} in etcd any more: this host goes on, but would not get a new lease",
                self.config_key()
            )),
        };
        self.sender.update_status(|status| status.reconfigured = response);
    }

    /// Runs until the connection fails or has to be replaced.
    async fn run_session(
        &mut self,
        number: usize,
        own: &mut watch::Receiver<Option<OwnAttributes>>,
    ) -> Result<SessionEnd, EtcdError> {
        let client = Client::connect(&self.options, number).await?;
        loop {
            let Some(mine) = own.borrow_and_update().clone() else {
                if own.changed().await.is_err() {
                    return Ok(SessionEnd::ReceiverDropped);
                }
                continue;
            };
            let (entries, revision) = client.list(&self.prefix()).await?;
            self.set_entries(entries);
            self.register(&client, &mine).await?;
            self.publish_snapshot();
            self.check_config(client.get(&self.config_key()).await?.as_deref());
            let mut changes = client.watch(&self.root(), revision + 1).await?;
            let renew_at = Instant::now() + TTL.saturating_sub(self.options.renew_margin);
            loop {
                tokio::select! {
                    response = changes.message() => {
                        let response = response.map_err(|s| client.failed("watch leases", s.message().to_owned()))?;
                        let response = response.ok_or_else(|| client.failed("watch leases", "the watch ended".into()))?;
                        if response.canceled {
                            tracing::info!(reason = response.cancel_reason, "listing leases again");
                            break;
                        }
                        if self.apply_watch(&response) {
                            tracing::warn!(key = self.key, "this host's lease was deleted; registering again");
                            break;
                        }
                    }
                    () = tokio::time::sleep_until(renew_at) => break,
                    changed = own.changed() => return Ok(match changed {
                        Ok(()) => SessionEnd::AddressChanged,
                        Err(_) => SessionEnd::ReceiverDropped,
                    }),
                }
            }
        }
    }

    /// Writes this host's lease, for the subnet it holds or for a free one.
    async fn register(&mut self, client: &Client, mine: &OwnAttributes) -> Result<(), EtcdError> {
        /// Another host may take the same subnet at the same moment; not many times in a row.
        const RACES: u64 = 10;
        let content = |e: crate::config::PoolError| EtcdError::Content(e.to_string());
        let network = self.conf.v4.ok_or_else(|| {
            EtcdError::Content(
                "flannel's keys in etcd begin with an IPv4 subnet: EnableIPv4 must be true".into(),
            )
        })?;
        let pool4 = SubnetPool::new(network, &self.conf.subnet_range4).map_err(content)?;
        let pool6 = match self.conf.v6 {
            Some(network) => Some(SubnetPool::new(network, &self.conf.subnet_range6).map_err(content)?),
            None => None,
        };
        for _ in 0..RACES {
            let readable = self
                .entries
                .iter()
                .filter_map(|(key, value)| Some((key.as_str(), LeaseValue::parse(value).ok()?)));
            let chosen = registration::choose((&pool4, pool6.as_ref()), readable, mine, &self.last, random())
                .map_err(EtcdError::Content)?;
            for key in &chosen.obsolete {
                client.delete(&format!("{}{key}", self.prefix())).await?;
                self.entries.remove(key);
            }
            let key = subnet_key(chosen.v4, chosen.v6);
            let record = LeaseValue::of(mine);
            let path = format!("{}{key}", self.prefix());
            if client.put(&path, &record.to_json(), TTL, chosen.is_new).await? {
                self.last = LastRegistration {
                    subnets: std::iter::once(chosen.v4).chain(chosen.v6).collect(),
                    published: mine.public4.into_iter().chain(mine.public6).collect(),
                };
                self.key = Some(key);
                return Ok(());
            }
            let (entries, _) = client.list(&self.prefix()).await?;
            self.set_entries(entries);
        }
        Err(EtcdError::Content(format!("others took {RACES} subnets in a row before this host could")))
    }

    /// True when this host's own key is gone.
    fn apply_watch(&mut self, response: &WatchResponse) -> bool {
        let mut lost = false;
        let (prefix, config) = (self.prefix(), self.config_key());
        for event in &response.events {
            let Some(kv) = &event.kv else { continue };
            let deleted = event.r#type() == EventType::Delete;
            let path = String::from_utf8_lossy(&kv.key);
            if path == config {
                self.check_config((!deleted).then_some(&kv.value));
            }
            let Some(key) = path.strip_prefix(&prefix) else { continue };
            match self.key.as_deref() == Some(key) {
                true => lost |= deleted,
                false if deleted => self.sender.send_lease(key, None),
                false => self.sender.send_lease(key, Some(read(key, &kv.value))),
            }
        }
        lost
    }

    fn set_entries(&mut self, entries: Vec<KeyValue>) {
        let prefix = self.prefix();
        let last = |key: &[u8]| String::from_utf8_lossy(key).strip_prefix(&prefix).map(str::to_owned);
        self.entries = entries.into_iter().filter_map(|kv| Some((last(&kv.key)?, kv.value))).collect();
    }

    /// Sends all listed leases. Later changes are sent one by one, and nothing is stored here.
    fn publish_snapshot(&mut self) {
        let key = self.key.clone();
        let others = std::mem::take(&mut self.entries).into_iter().filter(|(k, _)| Some(k) != key.as_ref());
        self.sender.send_snapshot(others.map(|(key, value)| (key.as_str().into(), read(&key, &value))));
        let subnets = self.last.subnets.clone();
        self.sender
            .update_status(|status| (status.subnets, status.synced, status.problem) = (subnets, true, None));
    }
}

fn read(key: &str, value: &[u8]) -> ReportedLease {
    LeaseValue::parse(value)
        .and_then(|record| record.lease(key))
        .map_err(|why| format!("lease {key:?} in etcd is left out: {why}"))
}
