//! The ClusterTrustBundles of the cluster, where the apiserver serves them.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use futures::StreamExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIResourceList, ObjectMeta};
use keelson_core::volumes::TrustBundle;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::client::Api;
use crate::error::{ApiError, ErrorKind};
use crate::rate_limit::Priority;
use crate::watch::{Followed, Scope, Update};

const RESOURCE: &str = "clustertrustbundles";
/// The first that the apiserver serves is taken.
const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];

/// Trust bundles. They are followed from the first pod on that wants one; most nodes never see such a pod.
#[derive(Clone)]
pub struct TrustBundleCache {
    api: Api,
    shared: Arc<Shared>,
}

struct Shared {
    state: watch::Sender<State>,
    follower: OnceLock<AbortOnDrop>,
}

#[derive(Clone)]
enum State {
    Loading,
    Known(Arc<Vec<TrustBundle>>),
    /// Never seen yet, and why. It is being tried again.
    Failed(ApiError),
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// As much of the object as is needed.
#[derive(Deserialize)]
struct Bundle {
    metadata: ObjectMeta,
    spec: BundleSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BundleSpec {
    #[serde(default)]
    signer_name: String,
    #[serde(default)]
    trust_bundle: String,
}

impl Followed for Bundle {
    fn resource_version(&self) -> Option<&str> {
        self.metadata.resource_version.as_deref()
    }
}

/// Wakes whoever shows trust bundles.
#[derive(Clone)]
pub struct TrustBundleNews(watch::Receiver<State>);

impl TrustBundleNews {
    /// Returns after a change since this was made, or since it has returned last.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl TrustBundleCache {
    pub fn new(api: Api) -> Self {
        let shared = Shared { state: watch::Sender::new(State::Loading), follower: OnceLock::new() };
        Self { api, shared: Arc::new(shared) }
    }

    /// All bundles, as last reported. Waits for the first answer only. Served from memory while the server is away.
    pub async fn get(&self) -> Result<Arc<Vec<TrustBundle>>, ApiError> {
        if self.shared.follower.get().is_none() {
            let path = self.served().await?;
            let (api, state) = (self.api.clone(), self.shared.state.clone());
            self.shared.follower.get_or_init(|| AbortOnDrop(tokio::spawn(keep(api, path, state))));
        }
        let mut state = self.shared.state.subscribe();
        let loaded =
            state.wait_for(|state| !matches!(state, State::Loading)).await.map(|state| state.clone());
        match loaded {
            Ok(State::Known(bundles)) => Ok(bundles),
            Ok(State::Failed(error)) => Err(error),
            Ok(State::Loading) | Err(_) => Ok(Arc::default()),
        }
    }

    pub fn news(&self) -> TrustBundleNews {
        TrustBundleNews(self.shared.state.subscribe())
    }

    /// The path of the collection. The error of an apiserver that has none says what it would take.
    async fn served(&self) -> Result<String, ApiError> {
        let operation = "find clustertrustbundles";
        for version in VERSIONS {
            let group = format!("/apis/certificates.k8s.io/{version}");
            let request =
                http::Request::get(&group).body(vec![]).map_err(kube::core::request::Error::BuildRequest);
            match self.api.call::<APIResourceList>(operation, Priority::Normal, request).await {
                Ok(list) if list.resources.iter().any(|r| r.name == RESOURCE) => {
                    return Ok(format!("{group}/{RESOURCE}"));
                }
                Ok(_) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        let message = "the apiserver does not serve certificates.k8s.io/v1beta1 clustertrustbundles; its feature gates \
                       ClusterTrustBundle and ClusterTrustBundleProjection must be on, and the API in its --runtime-config";
        Err(ApiError::new(ErrorKind::NotFound, operation, message))
    }
}

async fn keep(api: Api, path: String, state: watch::Sender<State>) {
    let mut bundles: BTreeMap<String, TrustBundle> = BTreeMap::new();
    let mut updates = std::pin::pin!(api.follow::<Bundle>(Scope::new(RESOURCE, path).first_from_cache()));
    while let Some(update) = updates.next().await {
        let before = bundles.clone();
        let synced = matches!(update, Update::Synced { .. });
        match update {
            Update::Synced { items, .. } => bundles = items.into_iter().map(named).collect(),
            Update::Applied(bundle) => bundles.extend([named(bundle)]),
            Update::Deleted(bundle) => drop(bundles.remove(&named(bundle).0)),
            Update::Disconnected(error) => {
                tracing::debug!(%error, "going on with the trust bundles that are known");
                state.send_if_modified(|state| {
                    let unknown = !matches!(state, State::Known(_));
                    if unknown {
                        *state = State::Failed(error);
                    }
                    unknown
                });
                continue;
            }
        }
        state.send_if_modified(|state| {
            let news = bundles != before || (synced && !matches!(state, State::Known(_)));
            if news {
                *state = State::Known(Arc::new(bundles.values().cloned().collect()));
            }
            news
        });
    }
}

fn named(bundle: Bundle) -> (String, TrustBundle) {
    let name = bundle.metadata.name.unwrap_or_default();
    let labels = bundle.metadata.labels.unwrap_or_default();
    let BundleSpec { signer_name, trust_bundle } = bundle.spec;
    (name.clone(), TrustBundle { name, signer: signer_name, labels, pem: trust_bundle })
}
