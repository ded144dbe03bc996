//! A static pod must be able to start without an apiserver, so it may not name anything that only an apiserver has.

use k8s_openapi::api::core::v1::{Container, Pod, Volume};

use super::Problem;

pub(super) fn refuse(pod: &Pod) -> Result<(), Problem> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let named = |name: &Option<String>| name.as_deref().is_some_and(|n| !n.is_empty());
    if named(&spec.service_account_name) || named(&spec.service_account) {
        return Err(refused("spec.serviceAccountName", "a service account"));
    }
    if spec.image_pull_secrets.iter().flatten().next().is_some() {
        return Err(refused("spec.imagePullSecrets", "a secret"));
    }
    if spec.resource_claims.iter().flatten().next().is_some() {
        return Err(refused("spec.resourceClaims", "a resource claim"));
    }
    for (i, container) in spec.init_containers.iter().flatten().enumerate() {
        in_container(&format!("spec.initContainers[{i}]"), container)?;
    }
    for (i, container) in spec.containers.iter().enumerate() {
        in_container(&format!("spec.containers[{i}]"), container)?;
    }
    for (i, volume) in spec.volumes.iter().flatten().enumerate() {
        in_volume(&format!("spec.volumes[{i}]"), volume)?;
    }
    Ok(())
}

fn refused(field: impl Into<String>, what: &str) -> Problem {
    Problem::at(
        field,
        format!(
            "refers to {what}, which a static pod may not: it has to start without the apiserver; remove it, or create the pod through the apiserver"
        ),
    )
}

fn in_container(at: &str, container: &Container) -> Result<(), Problem> {
    for (i, source) in container.env_from.iter().flatten().enumerate() {
        if source.config_map_ref.is_some() {
            return Err(refused(format!("{at}.envFrom[{i}].configMapRef"), "a config map"));
        }
        if source.secret_ref.is_some() {
            return Err(refused(format!("{at}.envFrom[{i}].secretRef"), "a secret"));
        }
    }
    for (i, var) in container.env.iter().flatten().enumerate() {
        let Some(source) = &var.value_from else { continue };
        if source.config_map_key_ref.is_some() {
            return Err(refused(format!("{at}.env[{i}].valueFrom.configMapKeyRef"), "a config map"));
        }
        if source.secret_key_ref.is_some() {
            return Err(refused(format!("{at}.env[{i}].valueFrom.secretKeyRef"), "a secret"));
        }
    }
    Ok(())
}

fn in_volume(at: &str, volume: &Volume) -> Result<(), Problem> {
    let kinds = [
        (volume.config_map.is_some(), "configMap", "a config map"),
        (volume.secret.is_some(), "secret", "a secret"),
        (volume.csi.is_some(), "csi", "a CSI driver object"),
        (volume.glusterfs.is_some(), "glusterfs", "an endpoints object"),
        (volume.persistent_volume_claim.is_some(), "persistentVolumeClaim", "a persistent volume claim"),
        (volume.ephemeral.is_some(), "ephemeral", "a persistent volume claim"),
        (volume.azure_file.is_some(), "azureFile", "a secret"),
    ];
    if let Some((_, kind, what)) = kinds.into_iter().find(|(set, _, _)| *set) {
        return Err(refused(format!("{at}.{kind}"), what));
    }
    let sources = volume.projected.as_ref().and_then(|p| p.sources.as_deref()).unwrap_or_default();
    for (i, source) in sources.iter().enumerate() {
        let kinds = [
            (source.config_map.is_some(), "configMap", "a config map"),
            (source.secret.is_some(), "secret", "a secret"),
            (source.service_account_token.is_some(), "serviceAccountToken", "a service account"),
            (source.cluster_trust_bundle.is_some(), "clusterTrustBundle", "a cluster trust bundle"),
            (source.pod_certificate.is_some(), "podCertificate", "a pod certificate"),
        ];
        if let Some((_, kind, what)) = kinds.into_iter().find(|(set, _, _)| *set) {
            return Err(refused(format!("{at}.projected.sources[{i}].{kind}"), what));
        }
    }
    Ok(())
}
