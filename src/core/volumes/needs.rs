//! What has to be gathered before a volume can be prepared, and so what makes it stale when it changes.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, ProjectedVolumeSource, SecretVolumeSource, ServiceAccountTokenProjection, Volume,
    VolumeProjection,
};

/// Names are those of the pod's own namespace, optional ones included.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Needs {
    pub config_maps: BTreeSet<String>,
    pub secrets: BTreeSet<String>,
    pub tokens: BTreeSet<TokenNeed>,
    /// Trust bundles of the cluster. Which ones is seen when all are there: a label brings in one more.
    pub trust_bundles: bool,
    /// It names a claim, and so a persistent volume.
    pub claim: bool,
    /// The volume shows fields of the pod, whose labels and annotations change while it runs.
    pub pod_fields: bool,
}

/// A service account token for one audience.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenNeed {
    /// Empty for the API server's own audience.
    pub audience: String,
    pub expiration_seconds: i64,
}

const DEFAULT_EXPIRATION: i64 = 3600;

/// One thing that changed and that volumes may show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    ConfigMap(&'a str),
    Secret(&'a str),
    PodFields,
    TrustBundles,
    /// Changes were missed: any object may be among them.
    AnyObject,
}

impl Needs {
    /// What a volume of the kinds that are made of files, or that names a claim, needs. Other kinds need nothing.
    pub fn of(volume: &Volume) -> Self {
        let mut needs = Self::default();
        needs.config_map(volume.config_map.as_ref());
        needs.secret(volume.secret.as_ref());
        needs.claim = volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some();
        needs.pod_fields |= volume.downward_api.is_some();
        needs.projected(volume.projected.as_ref());
        // A reference without a name refers to nothing.
        needs.config_maps.retain(|name| !name.is_empty());
        needs.secrets.retain(|name| !name.is_empty());
        needs
    }

    /// True when a change concerns a volume with these needs.
    pub fn include(&self, change: Change<'_>) -> bool {
        match change {
            Change::ConfigMap(name) => self.config_maps.contains(name),
            Change::Secret(name) => self.secrets.contains(name),
            Change::PodFields => self.pod_fields,
            Change::TrustBundles => self.trust_bundles,
            Change::AnyObject => !self.config_maps.is_empty() || !self.secrets.is_empty(),
        }
    }

    fn config_map(&mut self, source: Option<&ConfigMapVolumeSource>) {
        self.config_maps.extend(source.map(|s| s.name.clone()));
    }

    fn secret(&mut self, source: Option<&SecretVolumeSource>) {
        self.secrets.extend(source.and_then(|s| s.secret_name.clone()));
    }

    fn projected(&mut self, source: Option<&ProjectedVolumeSource>) {
        source.iter().flat_map(|s| s.sources.iter().flatten()).for_each(|s| self.projection(s));
    }

    fn projection(&mut self, source: &VolumeProjection) {
        self.config_maps.extend(source.config_map.iter().map(|s| s.name.clone()));
        self.secrets.extend(source.secret.iter().map(|s| s.name.clone()));
        self.tokens.extend(source.service_account_token.iter().map(TokenNeed::of));
        self.trust_bundles |= source.cluster_trust_bundle.is_some();
        self.pod_fields |= source.downward_api.is_some();
    }
}

impl TokenNeed {
    pub(super) fn of(source: &ServiceAccountTokenProjection) -> Self {
        Self {
            audience: source.audience.clone().unwrap_or_default(),
            expiration_seconds: source.expiration_seconds.unwrap_or(DEFAULT_EXPIRATION),
        }
    }
}
