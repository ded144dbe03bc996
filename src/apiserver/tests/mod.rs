//! The whole crate against an apiserver in this process that misbehaves when asked.

mod errors;
mod heartbeat;
mod nodes;
mod objects;
mod pods;
mod recording;
mod trust_bundles;
mod writing;

use std::time::Duration;

use keelson_core::ids::PodUid;
use keelson_fakes::api::FakeApi;
use keelson_kit::backoff::Policy;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Api, ClientOptions, Timings};

/// A server, and a client of node n1 that is impatient enough for tests.
struct Rig {
    fake: FakeApi,
    api: Api,
    directory: TempDir,
}

async fn rig() -> Rig {
    rig_with(impatient()).await
}

async fn rig_with(timings: Timings) -> Rig {
    let fake = FakeApi::start().await;
    let directory = tempfile::tempdir().unwrap();
    let options = ClientOptions { timings, ..ClientOptions::new(fake.kubeconfig(directory.path()), "n1") };
    let api = Api::connect(&options).await.unwrap();
    Rig { fake, api, directory }
}

fn impatient() -> Timings {
    Timings {
        request: Duration::from_secs(5),
        watch: Duration::from_secs(60),
        watch_idle: Duration::from_secs(60),
        retry: Policy::new(Duration::from_millis(5), Duration::from_millis(20)),
        identity_check: Duration::ZERO,
    }
}

/// Ends a test that waits for what never comes.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), what).await.expect("within half a minute")
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "managedFields": [{"manager": "test"}]},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]},
    })
}

fn uid(text: &str) -> PodUid {
    PodUid::try_from(text).unwrap()
}
