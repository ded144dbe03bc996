//! Leases from etcd, by flannel's keys: this host's own registered and renewed, the others' watched.

mod client;

use std::collections::BTreeMap;
use std::time::Duration;

use keelson_proto::etcd::etcdserverpb::WatchResponse;
use keelson_proto::etcd::mvccpb::KeyValue;
use keelson_proto::etcd::mvccpb::event::EventType;
use tokio::sync::watch;
use tokio::time::Instant;

pub use client::{Client, EtcdError};

use super::Outbox;
use super::registration::{self, Memory};
use crate::config::{EtcdOptions, NetConf, Pool};
use crate::lease::{Heard, Own, Record, subnet_key};

/// flannel's: a lease lasts a day.
const TTL: Duration = Duration::from_secs(24 * 3600);
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// The network configuration, from the first endpoint that has an answer.
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

/// Registers this host and follows the others, until dropped.
pub async fn follow(
    options: EtcdOptions,
    conf: NetConf,
    mut own: watch::Receiver<Option<Own>>,
    memory: Memory,
    outbox: Outbox,
) {
    let mut keeper = Keeper { options, conf, memory, entries: BTreeMap::new(), key: None, outbox };
    let mut pause = FIRST_PAUSE;
    for number in 0.. {
        let began = Instant::now();
        let error = match keeper.attend(number, &mut own).await {
            Ok(Ending::NobodyAsks) => return,
            Ok(Ending::Moved) => continue,
            Err(error) => error,
        };
        tracing::warn!(%error, "etcd cannot be heard; what was heard last stays in force");
        keeper.outbox.tell(|view| view.trouble = Some(error.to_string()));
        if began.elapsed() > LONGEST_PAUSE {
            pause = FIRST_PAUSE;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Why a connection was given up although nothing is wrong with it.
enum Ending {
    NobodyAsks,
    /// This host has another address now: a connection from the old one may never carry anything again.
    Moved,
}

struct Keeper {
    options: EtcdOptions,
    conf: NetConf,
    memory: Memory,
    /// All keys under `subnets`, by their last part, while a subnet is chosen.
    entries: BTreeMap<String, Vec<u8>>,
    /// The key that this host holds.
    key: Option<String>,
    outbox: Outbox,
}

impl Keeper {
    /// What all of flannel's keys begin with.
    fn root(&self) -> String {
        format!("{}/", self.options.prefix.trim_end_matches('/'))
    }

    fn prefix(&self) -> String {
        format!("{}subnets/", self.root())
    }

    fn config_key(&self) -> String {
        format!("{}config", self.root())
    }

    /// Tells when the network configuration is no longer the one that this host works by.
    fn compare(&self, value: Option<&[u8]>) {
        let told = match value {
            Some(value) => {
                let text = String::from_utf8_lossy(value);
                self.conf.differs_from(&text, self.options.backend.as_deref(), "in etcd")
            }
            None => Some(format!(
                "there is no {} in etcd any more: this host goes on, but would not get a new lease",
                self.config_key()
            )),
        };
        self.outbox.tell(|view| view.reconfigured = told);
    }

    /// One connection's worth.
    async fn attend(
        &mut self,
        number: usize,
        own: &mut watch::Receiver<Option<Own>>,
    ) -> Result<Ending, EtcdError> {
        let client = Client::connect(&self.options, number).await?;
        loop {
            let Some(mine) = own.borrow_and_update().clone() else {
                if own.changed().await.is_err() {
                    return Ok(Ending::NobodyAsks);
                }
                continue;
            };
            let (entries, revision) = client.list(&self.prefix()).await?;
            self.keep(entries);
            self.register(&client, &mine).await?;
            self.tell();
            self.compare(client.get(&self.config_key()).await?.as_deref());
            let mut changes = client.watch(&self.root(), revision + 1).await?;
            let renew_at = Instant::now() + TTL.saturating_sub(self.options.renew_margin);
            loop {
                tokio::select! {
                    told = changes.message() => {
                        let told = told.map_err(|s| client.failed("watch leases", s.message().to_owned()))?;
                        let told = told.ok_or_else(|| client.failed("watch leases", "the watch ended".into()))?;
                        if told.canceled {
                            tracing::info!(reason = told.cancel_reason, "listing leases again");
                            break;
                        }
                        if self.take(&told) {
                            tracing::warn!(key = self.key, "somebody deleted this host's lease; registering again");
                            break;
                        }
                    }
                    () = tokio::time::sleep_until(renew_at) => break,
                    changed = own.changed() => return Ok(match changed {
                        Ok(()) => Ending::Moved,
                        Err(_) => Ending::NobodyAsks,
                    }),
                }
            }
        }
    }

    /// Writes this host's lease, in its place or in a free one.
    async fn register(&mut self, client: &Client, mine: &Own) -> Result<(), EtcdError> {
        /// Somebody else may take the same subnet in the same moment; not many times in a row.
        const RACES: u64 = 10;
        let content = |e: crate::config::PoolError| EtcdError::Content(e.to_string());
        let network = self.conf.v4.ok_or_else(|| {
            EtcdError::Content(
                "flannel's keys in etcd begin with an IPv4 subnet: EnableIPv4 must be true".into(),
            )
        })?;
        let pool4 = Pool::new(network, &self.conf.division4).map_err(content)?;
        let pool6 = match self.conf.v6 {
            Some(network) => Some(Pool::new(network, &self.conf.division6).map_err(content)?),
            None => None,
        };
        for _ in 0..RACES {
            let readable = self
                .entries
                .iter()
                .filter_map(|(key, value)| Some((key.as_str(), Record::parse(value).ok()?)));
            let chosen =
                registration::choose((&pool4, pool6.as_ref()), readable, mine, &self.memory, random())
                    .map_err(EtcdError::Content)?;
            for key in &chosen.obsolete {
                client.delete(&format!("{}{key}", self.prefix())).await?;
                self.entries.remove(key);
            }
            let key = subnet_key(chosen.v4, chosen.v6);
            let record = Record::of(mine);
            let path = format!("{}{key}", self.prefix());
            if client.put(&path, &record.to_json(), TTL, chosen.is_new).await? {
                self.memory = Memory {
                    subnets: std::iter::once(chosen.v4).chain(chosen.v6).collect(),
                    published: mine.public4.into_iter().chain(mine.public6).collect(),
                };
                self.key = Some(key);
                return Ok(());
            }
            let (entries, _) = client.list(&self.prefix()).await?;
            self.keep(entries);
        }
        Err(EtcdError::Content(format!("others took {RACES} subnets in a row before this host could")))
    }

    /// True when this host's own key is gone.
    fn take(&mut self, told: &WatchResponse) -> bool {
        let mut lost = false;
        let (prefix, config) = (self.prefix(), self.config_key());
        for event in &told.events {
            let Some(kv) = &event.kv else { continue };
            let deleted = event.r#type() == EventType::Delete;
            let path = String::from_utf8_lossy(&kv.key);
            if path == config {
                self.compare((!deleted).then_some(&kv.value));
            }
            let Some(key) = path.strip_prefix(&prefix) else { continue };
            match self.key.as_deref() == Some(key) {
                true => lost |= deleted,
                false if deleted => self.outbox.lease(key, None),
                false => self.outbox.lease(key, Some(read(key, &kv.value))),
            }
        }
        lost
    }

    fn keep(&mut self, entries: Vec<KeyValue>) {
        let prefix = self.prefix();
        let last = |key: &[u8]| String::from_utf8_lossy(key).strip_prefix(&prefix).map(str::to_owned);
        self.entries = entries.into_iter().filter_map(|kv| Some((last(&kv.key)?, kv.value))).collect();
    }

    /// Tells of all that was listed. From then on changes are handed on one by one, and nothing is kept here.
    fn tell(&mut self) {
        let key = self.key.clone();
        let others = std::mem::take(&mut self.entries).into_iter().filter(|(k, _)| Some(k) != key.as_ref());
        self.outbox.leases(others.map(|(key, value)| (key.as_str().into(), read(&key, &value))));
        let subnets = self.memory.subnets.clone();
        self.outbox.tell(|view| (view.subnets, view.heard, view.trouble) = (subnets, true, None));
    }
}

fn read(key: &str, value: &[u8]) -> Heard {
    Record::parse(value)
        .and_then(|record| record.lease(key))
        .map_err(|why| format!("lease {key:?} in etcd is left out: {why}"))
}

/// From the seed that the standard library draws for its hash maps: enough to choose by.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
