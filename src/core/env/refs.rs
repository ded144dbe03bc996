//! Which ConfigMaps and Secrets a pod refers to, so that they can be watched and be there in time.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, Pod, Volume};

use crate::volumes::Needs;

/// Names in the pod's own namespace, optional ones included.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObjectRefs {
    pub config_maps: BTreeSet<String>,
    pub secrets: BTreeSet<String>,
}

/// Everything that env, envFrom, volumes and imagePullSecrets name, in all kinds of containers.
pub fn object_refs(pod: &Pod) -> ObjectRefs {
    let mut refs = ObjectRefs::default();
    let Some(spec) = &pod.spec else { return refs };
    for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
        refs.environment(container.env.as_deref(), container.env_from.as_deref());
    }
    for container in spec.ephemeral_containers.iter().flatten() {
        refs.environment(container.env.as_deref(), container.env_from.as_deref());
    }
    spec.volumes.iter().flatten().for_each(|volume| refs.volume(volume));
    refs.secrets.extend(spec.image_pull_secrets.iter().flatten().map(|s| s.name.clone()));
    refs.secrets.retain(|name| !name.is_empty());
    refs.config_maps.retain(|name| !name.is_empty());
    refs
}

impl ObjectRefs {
    fn environment(&mut self, env: Option<&[EnvVar]>, env_from: Option<&[EnvFromSource]>) {
        for source in env_from.unwrap_or_default() {
            self.config_maps.extend(source.config_map_ref.iter().map(|r| r.name.clone()));
            self.secrets.extend(source.secret_ref.iter().map(|r| r.name.clone()));
        }
        for source in env.unwrap_or_default().iter().filter_map(|v| v.value_from.as_ref()) {
            self.config_maps.extend(source.config_map_key_ref.iter().map(|r| r.name.clone()));
            self.secrets.extend(source.secret_key_ref.iter().map(|r| r.name.clone()));
        }
    }

    fn volume(&mut self, volume: &Volume) {
        let needs = Needs::of(volume);
        self.config_maps.extend(needs.config_maps);
        self.secrets.extend(needs.secrets);
        // A driver's credentials for mounting, in the kinds whose secret lives in the pod's namespace.
        let csi = volume.csi.as_ref().and_then(|v| v.node_publish_secret_ref.as_ref());
        self.secrets.extend(csi.map(|r| r.name.clone()));
    }
}
