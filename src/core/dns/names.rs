//! A pod's host name and domain.

use k8s_openapi::api::core::v1::Pod;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodNames {
    pub hostname: String,
    /// Empty without a subdomain.
    pub domain: String,
    /// What the kernel is told: the host name, or with setHostnameAsFQDN the full one.
    pub kernel: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostnameError {
    #[error(
        "pod {field} {value:?} is not a valid {kind}: lower case letters, digits and '-', {limit} characters at most, beginning and ending with a letter or digit"
    )]
    Invalid { field: &'static str, value: String, kind: &'static str, limit: usize },
    #[error("hostname for pod {pod:?} was invalid: {value:?} leaves nothing when it is cut to 63 characters")]
    Empty { pod: String, value: String },
    #[error("failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long (64 characters is the max, {} characters requested)", fqdn.len())]
    TooLong { fqdn: String },
}

/// hostnameOverride stands alone; else spec.hostname or the pod's name, beneath the subdomain's domain if it has one.
pub fn pod_names(pod: &Pod, cluster_domain: &str) -> Result<PodNames, HostnameError> {
    let pod_name = pod.metadata.name.clone().unwrap_or_default();
    let Some(spec) = &pod.spec else {
        return Ok(PodNames { kernel: pod_name.clone(), hostname: pod_name, domain: String::new() });
    };
    if let Some(hostname) = &spec.hostname_override {
        if hostname.len() > 253 || !hostname.split('.').all(is_label_text) {
            return Err(invalid("HostnameOverride", hostname, "DNS subdomain", 253));
        }
        let hostname = truncated(&pod_name, hostname)?;
        return Ok(PodNames { kernel: hostname.clone(), hostname, domain: String::new() });
    }

    let wanted = spec.hostname.as_deref().unwrap_or_default();
    if !wanted.is_empty() && !is_label(wanted) {
        return Err(invalid("Hostname", wanted, "DNS label", 63));
    }
    let hostname = truncated(&pod_name, if wanted.is_empty() { &pod_name } else { wanted })?;

    let domain = match spec.subdomain.as_deref().unwrap_or_default() {
        "" => String::new(),
        subdomain if is_label(subdomain) => {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
            format!("{subdomain}.{namespace}.svc.{cluster_domain}")
        }
        subdomain => return Err(invalid("Subdomain", subdomain, "DNS label", 63)),
    };

    let mut kernel = hostname.clone();
    if spec.set_hostname_as_fqdn == Some(true) && !domain.is_empty() {
        kernel = format!("{hostname}.{domain}");
        // The kernel holds 64 bytes, and half a name is another name.
        if kernel.len() > 64 {
            return Err(HostnameError::TooLong { fqdn: kernel });
        }
    }
    Ok(PodNames { hostname, domain, kernel })
}

fn truncated(pod: &str, hostname: &str) -> Result<String, HostnameError> {
    if hostname.len() <= 63 {
        return Ok(hostname.to_owned());
    }
    let mut end = 63;
    while !hostname.is_char_boundary(end) {
        end -= 1;
    }
    // A cut must not leave a separator at the end.
    let cut = hostname[..end].trim_end_matches(['-', '.']);
    match cut {
        "" => Err(HostnameError::Empty { pod: pod.to_owned(), value: hostname.to_owned() }),
        cut => Ok(cut.to_owned()),
    }
}

fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_label_text(text)
}

fn is_label_text(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(plain) && text.ends_with(plain) && text.chars().all(|c| plain(c) || c == '-')
}

fn invalid(field: &'static str, value: &str, kind: &'static str, limit: usize) -> HostnameError {
    HostnameError::Invalid { field, value: value.to_owned(), kind, limit }
}
