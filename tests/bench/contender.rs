//! An agent on a runtime of its own, put through the paces by way of the apiserver.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use keelson_tests::agent::Agent;
use keelson_tests::cluster::Cluster;
use keelson_tests::containerd::Containerd;
use keelson_tests::pods::{pod, sleeper};
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::usage::{cpu_seconds, memory_mib};
use crate::watch::{Moment, Watch};

const LIMIT: Duration = Duration::from_secs(180);

pub struct Contender {
    pub name: &'static str,
    agent: Agent,
    pods: u32,
    cpu: f64,
    _containerd: Containerd,
}

/// One pod's start and stop.
#[derive(Debug, Clone, Copy)]
pub struct Took {
    pub start: Duration,
    pub stop: Duration,
}

/// Many pods at once, and the agent while they idle.
#[derive(Debug, Clone, Copy)]
pub struct Many {
    pub all_ready: Duration,
    pub all_gone: Duration,
    /// Per cent of one core.
    pub idle_cpu: f64,
    pub rss: f64,
    pub anonymous: f64,
}

impl Contender {
    pub fn new(name: &'static str, agent: Agent, containerd: Containerd) -> Self {
        Self { name, agent, pods: 0, cpu: 0.0, _containerd: containerd }
    }

    /// Processor time of the agent for one pod started and stopped, one at a time.
    pub fn cpu_per_pod(&self) -> Duration {
        Duration::from_secs_f64(self.cpu / f64::from(self.pods.max(1)))
    }

    pub async fn one(&mut self, cluster: &Cluster, watch: &Watch, name: &str) -> Result<Took> {
        let pods = cluster.pods();
        let names = [name.to_owned()];
        let before = cpu_seconds(self.process()?)?;
        let began = Instant::now();
        pods.create(self.pod(name)).await?;
        let ready = watch.all(&names, Moment::Ready, LIMIT).await?;
        let deleted = Instant::now();
        pods.api.delete(name, &DeleteParams::default()).await?;
        let gone = watch.all(&names, Moment::Gone, LIMIT).await?;
        self.cpu += cpu_seconds(self.process()?)? - before;
        self.pods += 1;
        Ok(Took { start: last(&ready, began), stop: last(&gone, deleted) })
    }

    pub async fn many(
        &mut self,
        cluster: &Cluster,
        watch: &Watch,
        count: u32,
        idle: Duration,
    ) -> Result<Many> {
        let pods = cluster.pods();
        let names: Vec<String> = (0..count).map(|n| format!("{}-of-{count}-{n}", self.name)).collect();
        let began = Instant::now();
        for name in &names {
            pods.create(self.pod(name)).await?;
        }
        let ready = watch.all(&names, Moment::Ready, LIMIT).await?;
        // What follows the last Ready (events, renewed status) is not idling yet.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let (cpu, since) = (cpu_seconds(self.process()?)?, Instant::now());
        tokio::time::sleep(idle).await;
        let idle_cpu = (cpu_seconds(self.process()?)? - cpu) / since.elapsed().as_secs_f64() * 100.0;
        let (rss, anonymous) = memory_mib(self.process()?)?;
        let deleted = Instant::now();
        for name in &names {
            pods.api.delete(name, &DeleteParams::default()).await?;
        }
        let gone = watch.all(&names, Moment::Gone, LIMIT).await?;
        Ok(Many { all_ready: last(&ready, began), all_gone: last(&gone, deleted), idle_cpu, rss, anonymous })
    }

    fn process(&self) -> Result<u32> {
        self.agent.process_id().with_context(|| format!("{} does not run", self.name))
    }

    /// Bound already, so that no scheduler is in the way; without a token, which is measured by nobody.
    fn pod(&self, name: &str) -> Value {
        let mut container = sleeper("main");
        container["resources"] = json!({"requests": {"cpu": "1m", "memory": "1Mi"}});
        let mut pod = pod(name, self.agent.node(), json!([container]));
        pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
        pod["spec"]["automountServiceAccountToken"] = json!(false);
        pod
    }
}

fn last(instants: &[Instant], began: Instant) -> Duration {
    instants.iter().max().map(|i| i.saturating_duration_since(began)).unwrap_or_default()
}
