//! Whether the API is served at all. A port that nobody can authenticate to is only a way in that waits for a mistake.

use crate::config::{AuthorizationMode, KubeletConfiguration};

/// Who is let in, and how it is decided what they may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exposure {
    Served {
        certificates: bool,
        tokens: bool,
        anonymous: bool,
        /// By asking the apiserver. Else everybody who got in may do everything.
        authorized: bool,
    },
    /// With the reason, in words for the log.
    Off(String),
}

pub fn exposure(config: &KubeletConfiguration, has_apiserver: bool) -> Exposure {
    if !config.enable_server {
        return Exposure::Off("enableServer is false".into());
    }
    let authentication = &config.authentication;
    let certificates = !authentication.x509.client_ca_file.is_empty();
    let tokens = authentication.webhook.enabled && has_apiserver;
    let anonymous = authentication.anonymous.enabled;
    if !(certificates || tokens || anonymous) {
        return Exposure::Off(
            "nobody could authenticate: give authentication.x509.clientCAFile, or a kubeconfig and authentication.webhook"
                .into(),
        );
    }
    let authorized = config.authorization.mode == AuthorizationMode::Webhook;
    if authorized && !has_apiserver {
        return Exposure::Off(
            "authorization.mode Webhook asks an apiserver and there is none: without a kubeconfig only AlwaysAllow can be served"
                .into(),
        );
    }
    Exposure::Served { certificates, tokens, anonymous, authorized }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_is_served_only_where_somebody_can_be_let_in_and_judged() {
        type Change = fn(&mut KubeletConfiguration);
        type Case = (&'static str, bool, Change, Option<(bool, bool, bool, bool)>);
        let served =
            |certificates, tokens, anonymous, authorized| Some((certificates, tokens, anonymous, authorized));
        let cases: [Case; 9] = [
            ("in a cluster, as it comes", true, |_| (), served(false, true, false, true)),
            (
                "in a cluster, with a CA",
                true,
                |c| c.authentication.x509.client_ca_file = "ca".into(),
                served(true, true, false, true),
            ),
            ("in a cluster, without tokens", true, |c| c.authentication.webhook.enabled = false, None),
            ("switched off", true, |c| c.enable_server = false, None),
            ("alone, as it comes", false, |_| (), None),
            ("alone, with a CA", false, |c| c.authentication.x509.client_ca_file = "ca".into(), None),
            (
                "alone, with a CA that may do everything",
                false,
                |c| {
                    c.authentication.x509.client_ca_file = "ca".into();
                    c.authorization.mode = AuthorizationMode::AlwaysAllow;
                },
                served(true, false, false, false),
            ),
            (
                "alone, everything allowed to nobody",
                false,
                |c| c.authorization.mode = AuthorizationMode::AlwaysAllow,
                None,
            ),
            (
                "alone, open to all by order",
                false,
                |c| {
                    c.authentication.anonymous.enabled = true;
                    c.authorization.mode = AuthorizationMode::AlwaysAllow;
                },
                served(false, false, true, false),
            ),
        ];
        for (case, has_apiserver, change, expected) in cases {
            let mut config = KubeletConfiguration::default();
            change(&mut config);
            let found = match exposure(&config, has_apiserver) {
                Exposure::Served { certificates, tokens, anonymous, authorized } => {
                    Some((certificates, tokens, anonymous, authorized))
                }
                Exposure::Off(_) => None,
            };
            assert_eq!(found, expected, "{case}");
        }
    }
}
