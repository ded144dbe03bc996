//! tlsCipherSuites, by the names that Go gives them.

use rustls::crypto::CryptoProvider;
use rustls::{CipherSuite, ProtocolVersion};

/// Of TLS 1.2. Those of 1.3 are not chosen by configuration, by the kubelet neither: all of them are good.
const SUITES: &[(&str, CipherSuite)] = &[
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// Names that a kubelet takes and that add nothing here: TLS 1.3 has its own, the others are too weak to be offered.
const WITHOUT_EFFECT: &[&str] = &[
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

/// An empty list leaves the provider's own.
pub(super) fn restrict(mut provider: CryptoProvider, names: &[String]) -> Result<CryptoProvider, String> {
    if names.is_empty() {
        return Ok(provider);
    }
    let mut allowed = vec![];
    for name in names {
        match SUITES.iter().find(|(known, _)| known == name) {
            Some((_, suite)) => allowed.push(*suite),
            None if WITHOUT_EFFECT.contains(&name.as_str()) => {
                tracing::warn!(name, "tlsCipherSuites: not offered in TLS 1.2; TLS 1.3 has its own");
            }
            None => {
                let known: Vec<_> = SUITES.iter().map(|(name, _)| *name).collect();
                return Err(format!("tlsCipherSuites: {name:?} is not known: use {}", known.join(", ")));
            }
        }
    }
    provider
        .cipher_suites
        .retain(|s| s.version().version == ProtocolVersion::TLSv1_3 || allowed.contains(&s.suite()));
    Ok(provider)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(names: &[&str]) -> Result<usize, String> {
        let names: Vec<_> = names.iter().map(|n| (*n).to_owned()).collect();
        restrict(rustls::crypto::ring::default_provider(), &names).map(|p| p.cipher_suites.len())
    }

    #[test]
    fn suites_are_chosen_by_gos_names() {
        let all = rustls::crypto::ring::default_provider().cipher_suites.len();
        assert_eq!(left(&[]), Ok(all));
        assert_eq!(left(&["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"]), Ok(3 + 1));
        assert_eq!(left(&["TLS_RSA_WITH_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256"]), Ok(3));
        let error = left(&["TLS_ROT13"]).unwrap_err();
        assert!(
            error.contains("TLS_ROT13") && error.contains("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
            "{error}"
        );
    }
}
