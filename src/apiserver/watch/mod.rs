//! A list that stays true, of any kind of object: list once, watch from there, and list again only when the server has
//! forgotten where we were.

mod event;
mod follow;
mod lines;

use futures::Stream;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;

use crate::client::Api;
use crate::error::ApiError;

/// What a followed collection reports.
#[derive(Debug, Clone)]
pub enum Update<K> {
    /// Everything there is, after the start and whenever the server had forgotten where we were: whatever was known
    /// before and is not in here is gone.
    Synced {
        items: Vec<K>,
        version: String,
    },
    /// New or changed.
    Applied(K),
    Deleted(K),
    /// The server cannot be reached, and why. What was reported before may be out of date; more follows when it is back.
    Disconnected(ApiError),
}

/// Which objects to follow, and how careful to be about their age.
#[derive(Debug, Clone)]
pub struct Scope {
    what: String,
    path: String,
    field_selector: Option<String>,
    from_cache: bool,
    relist_after_outage: bool,
}

impl Scope {
    /// All objects at the collection's path, such as `/api/v1/pods`. `what` names them in messages: "pods of node n1".
    pub fn new(what: impl Into<String>, path: impl Into<String>) -> Self {
        let (what, path) = (what.into(), path.into());
        Self { what, path, field_selector: None, from_cache: false, relist_after_outage: true }
    }

    /// Only those whose fields match, such as `spec.nodeName=n1`.
    #[must_use]
    pub fn with_fields(mut self, selector: impl Into<String>) -> Self {
        self.field_selector = Some(selector.into());
        self
    }

    /// Takes the first list from the server's cache, which answers at once but may be a moment behind. The watch that
    /// follows catches up.
    #[must_use]
    pub fn first_from_cache(mut self) -> Self {
        self.from_cache = true;
        self
    }

    /// Watches on after the server was away, instead of listing again. Cheaper, but a server that came back with an
    /// older state has nothing to report to a client that is ahead of it.
    #[must_use]
    pub fn resuming_after_outage(mut self) -> Self {
        self.relist_after_outage = false;
        self
    }
}

/// Objects that can be followed. Every type of the API can; so can a struct of one's own that has only the fields which
/// are needed, where whole objects would be too large to hold.
pub trait Followed: DeserializeOwned + Send + 'static {
    fn resource_version(&self) -> Option<&str>;

    /// Drops what is large and of no use, before the object is handed on.
    fn drop_bulk(&mut self) {}
}

impl<K> Followed for K
where
    K: k8s_openapi::Metadata<Ty = ObjectMeta> + DeserializeOwned + Send + 'static,
{
    fn resource_version(&self) -> Option<&str> {
        self.metadata().resource_version.as_deref()
    }

    /// Field ownership is often larger than the object itself.
    fn drop_bulk(&mut self) {
        self.metadata_mut().managed_fields = None;
    }
}

impl Api {
    /// Follows a collection until the stream is dropped. An update is handed on the moment that its line is complete, and
    /// nothing is held back for the next. The stream never ends by itself: failures are reported as
    /// [`Update::Disconnected`] and retried with a back-off.
    ///
    /// ```
    /// use std::collections::BTreeMap;
    ///
    /// use futures::StreamExt as _;
    /// use k8s_openapi::api::discovery::v1::EndpointSlice;
    /// use keelson_apiserver::{Api, Scope, Update};
    ///
    /// async fn keep(api: &Api, slices: &mut BTreeMap<Option<String>, EndpointSlice>) {
    ///     let scope = Scope::new("endpoint slices", "/apis/discovery.k8s.io/v1/endpointslices").first_from_cache();
    ///     let mut updates = std::pin::pin!(api.follow::<EndpointSlice>(scope));
    ///     while let Some(update) = updates.next().await {
    ///         match update {
    ///             Update::Synced { items, .. } => {
    ///                 *slices = items.into_iter().map(|slice| (slice.metadata.uid.clone(), slice)).collect();
    ///             }
    ///             Update::Applied(slice) => drop(slices.insert(slice.metadata.uid.clone(), slice)),
    ///             Update::Deleted(slice) => drop(slices.remove(&slice.metadata.uid)),
    ///             Update::Disconnected(error) => eprintln!("serving what is known: {error}"),
    ///         }
    ///     }
    /// }
    /// ```
    pub fn follow<K: Followed>(&self, scope: Scope) -> impl Stream<Item = Update<K>> + Send + use<K> {
        follow::follow(self.clone(), scope)
    }
}
