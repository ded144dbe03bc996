//! The heartbeat: a Lease in kube-node-lease, renewed by one small write each time.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::core::Request;
use kube::core::params::{GetParams, PostParams};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use crate::call::body;
use crate::client::Api;
use crate::error::{ApiError, ErrorKind};
use crate::rate_limit::Priority;
use crate::watch::Followed as _;

const NAMESPACE_PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

#[derive(Debug, Clone)]
pub struct LeaseSettings {
    pub duration: Duration,
    pub renew_every: Duration,
}

impl Default for LeaseSettings {
    fn default() -> Self {
        Self { duration: Duration::from_secs(40), renew_every: Duration::from_secs(10) }
    }
}

/// Renews this node's lease.
pub struct LeaseKeeper {
    api: Api,
    settings: LeaseSettings,
    /// The Node's uid once it is registered: the lease then goes with the Node.
    node_uid: watch::Receiver<Option<String>>,
    /// As last written. In the steady state the next write starts from it, without reading.
    known: Option<Lease>,
}

impl LeaseKeeper {
    pub fn new(api: Api, settings: LeaseSettings, node_uid: watch::Receiver<Option<String>>) -> Self {
        Self { api, settings, node_uid, known: None }
    }

    /// Renews until dropped. A renewal that takes as long as the pause between two is given up and tried again, so that there
    /// are several tries before the lease runs out, each over a connection of its own.
    pub async fn run(mut self) {
        let mut ticks = tokio::time::interval(self.settings.renew_every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failing_since: Option<Instant> = None;
        loop {
            ticks.tick().await;
            let limit = self.settings.renew_every;
            let renewed = match tokio::time::timeout(limit, self.renew(Timestamp::now())).await {
                Ok(renewed) => renewed,
                Err(_) => {
                    self.api.distrust_connection();
                    let message = format!("{} did not answer within {limit:?}", self.api.server());
                    Err(ApiError::new(ErrorKind::Unreachable, &self.operation("renew"), message))
                }
            };
            match renewed {
                Ok(()) => {
                    if let Some(since) = failing_since.take() {
                        tracing::info!(
                            seconds = since.elapsed().as_secs(),
                            "the node's lease is renewed again"
                        );
                    }
                }
                Err(error) => {
                    // Said once when it starts; every ten seconds of the same helps nobody.
                    if failing_since.is_none() {
                        tracing::warn!(%error, "the node's lease was not renewed");
                    }
                    failing_since.get_or_insert_with(Instant::now);
                }
            }
        }
    }

    /// Writes the lease once: an update of what is known, or whatever it takes to get there.
    pub async fn renew(&mut self, now: Timestamp) -> Result<(), ApiError> {
        // Read, written by someone else meanwhile, read again: more than a few rounds means a rival.
        const ROUNDS: usize = 5;
        let mut last = None;
        for _ in 0..ROUNDS {
            let result = match self.known.take() {
                Some(lease) => self.write(self.renewed(lease, now)).await,
                None => self.read_or_create(now).await,
            };
            match result {
                Ok(RenewalStep::Written(lease)) => {
                    self.known = Some(*lease);
                    return Ok(());
                }
                Ok(RenewalStep::Found(lease)) => self.known = Some(*lease),
                Err(error) => match error.kind {
                    ErrorKind::Conflict | ErrorKind::NotFound | ErrorKind::AlreadyExists => {
                        last = Some(error)
                    }
                    _ => return Err(error),
                },
            }
        }
        Err(last.unwrap_or_else(|| {
            ApiError::new(ErrorKind::Conflict, &self.operation("renew"), "someone else keeps writing it")
        }))
    }

    async fn read_or_create(&self, now: Timestamp) -> Result<RenewalStep, ApiError> {
        let name = self.api.node_name();
        let request = Request::new(NAMESPACE_PATH).get(name, &GetParams::default());
        match self.api.call::<Lease>(&self.operation("get"), Priority::Urgent, request).await {
            Ok(mut lease) => {
                lease.drop_bulk();
                return Ok(RenewalStep::Found(Box::new(lease)));
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("kube-node-lease".to_owned()),
            ..ObjectMeta::default()
        };
        let lease = self.renewed(Lease { metadata, spec: None }, now);
        let operation = self.operation("create");
        let request = Request::new(NAMESPACE_PATH).create(&PostParams::default(), body(&operation, &lease)?);
        let mut created = self.api.call::<Lease>(&operation, Priority::Urgent, request).await?;
        created.drop_bulk();
        Ok(RenewalStep::Written(Box::new(created)))
    }

    async fn write(&self, lease: Lease) -> Result<RenewalStep, ApiError> {
        let operation = self.operation("renew");
        let data = body(&operation, &lease)?;
        let request =
            Request::new(NAMESPACE_PATH).replace(self.api.node_name(), &PostParams::default(), data);
        let mut written = self.api.call::<Lease>(&operation, Priority::Urgent, request).await?;
        written.drop_bulk();
        Ok(RenewalStep::Written(Box::new(written)))
    }

    fn renewed(&self, mut lease: Lease, now: Timestamp) -> Lease {
        let name = self.api.node_name();
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        spec.holder_identity = Some(name.to_owned());
        spec.lease_duration_seconds = i32::try_from(self.settings.duration.as_secs()).ok();
        spec.renew_time = Some(MicroTime(now));
        if let Some(uid) = self.node_uid.borrow().clone() {
            lease.metadata.owner_references = Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: name.to_owned(),
                uid,
                ..OwnerReference::default()
            }]);
        }
        lease
    }

    fn operation(&self, verb: &str) -> String {
        format!("{verb} lease kube-node-lease/{}", self.api.node_name())
    }
}

enum RenewalStep {
    Written(Box<Lease>),
    Found(Box<Lease>),
}
