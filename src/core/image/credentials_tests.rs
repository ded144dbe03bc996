//! The kubelet's own keyring was asked for every line of the first table.

use super::*;
use k8s_openapi::ByteString;
use serde_json::{Value, json};

fn secret(auths: Value) -> Secret {
    let text = json!({ "auths": auths }).to_string();
    Secret {
        type_: Some("kubernetes.io/dockerconfigjson".into()),
        data: Some([(".dockerconfigjson".to_owned(), ByteString(text.into_bytes()))].into()),
        ..Default::default()
    }
}

/// One secret for each key, with the key as the user.
fn users(image: &str, keys: &[&str]) -> Vec<String> {
    let secrets: Vec<_> =
        keys.iter().map(|k| secret(json!({*k: {"username": k, "password": "p"}}))).collect();
    credentials(image, &secrets).into_iter().map(|c| c.username).collect()
}

const KEYS: &[&str] = &[
    "docker.io",
    "docker.io/org",
    "https://docker.io/v1/",
    "index.docker.io",
    "https://index.docker.io/v1/",
    "https://index.docker.io/v1",
    "index.docker.io/org",
    "http://index.docker.io",
    "registry-1.docker.io",
    "*.docker.io",
    "*.io",
    "r.io",
    "r.io/",
    "https://r.io/v2/",
    "r.io/team",
    "r.io/team/",
    "r.io/te",
    "r.io/v1/team",
    "r.io:5000",
    "*.r.io",
    "e*.r.io",
    "*u.r.io",
    "e*u*.r.io",
    "*.*.r.io",
    "R.io",
    "localhost",
    "localhost:5000",
    "[::1]:5000",
    "user@r.io",
];

#[test]
fn credentials_go_to_the_registries_they_were_given_for_as_a_kubelet_hands_them_out() {
    let hub_digest = format!("docker.io/org/x@sha256:{}", "0".repeat(64));
    // With each key alone, those that the image gets; with all of them, the order in which they are tried.
    let cases: &[(&str, &[&str], &[&str])] = &[
        (
            "busybox",
            &[
                "docker.io",
                "https://docker.io/v1/",
                "index.docker.io",
                "https://index.docker.io/v1/",
                "http://index.docker.io",
                "*.io",
            ],
            &["docker.io", "https://docker.io/v1/", "*.io"],
        ),
        (
            "library/busybox",
            &[
                "docker.io",
                "https://docker.io/v1/",
                "index.docker.io",
                "https://index.docker.io/v1/",
                "http://index.docker.io",
                "*.io",
            ],
            &["docker.io", "https://docker.io/v1/", "*.io"],
        ),
        (
            "org/x:1",
            &[
                "docker.io",
                "docker.io/org",
                "https://docker.io/v1/",
                "index.docker.io",
                "https://index.docker.io/v1/",
                "http://index.docker.io",
                "*.io",
            ],
            &["docker.io/org", "docker.io", "https://docker.io/v1/", "*.io"],
        ),
        (
            "docker.io/x",
            &[
                "docker.io",
                "https://docker.io/v1/",
                "index.docker.io",
                "https://index.docker.io/v1/",
                "http://index.docker.io",
                "*.io",
            ],
            &["docker.io", "https://docker.io/v1/", "*.io"],
        ),
        (
            "docker.io/org/x:1",
            &[
                "docker.io",
                "docker.io/org",
                "https://docker.io/v1/",
                "index.docker.io",
                "https://index.docker.io/v1/",
                "http://index.docker.io",
                "*.io",
            ],
            &["docker.io/org", "docker.io", "https://docker.io/v1/", "*.io"],
        ),
        (
            &hub_digest,
            &[
                "docker.io",
                "docker.io/org",
                "https://docker.io/v1/",
                "index.docker.io",
                "https://index.docker.io/v1/",
                "http://index.docker.io",
                "*.io",
            ],
            &["docker.io/org", "docker.io", "https://docker.io/v1/", "*.io"],
        ),
        (
            "index.docker.io/org/x",
            &[
                "docker.io",
                "docker.io/org",
                "https://docker.io/v1/",
                "index.docker.io",
                "https://index.docker.io/v1/",
                "http://index.docker.io",
                "*.io",
            ],
            &["docker.io/org", "docker.io", "https://docker.io/v1/", "*.io"],
        ),
        (
            "docker.io/organ/x",
            &[
                "docker.io",
                "docker.io/org",
                "https://docker.io/v1/",
                "index.docker.io",
                "https://index.docker.io/v1/",
                "http://index.docker.io",
                "*.io",
            ],
            &["docker.io/org", "docker.io", "https://docker.io/v1/", "*.io"],
        ),
        (
            "r.io/app",
            &["*.io", "r.io", "r.io/", "https://r.io/v2/", "user@r.io"],
            &["r.io", "r.io/", "https://r.io/v2/", "user@r.io", "*.io"],
        ),
        (
            "r.io/team/app:2",
            &[
                "*.io",
                "r.io",
                "r.io/",
                "https://r.io/v2/",
                "r.io/team",
                "r.io/team/",
                "r.io/te",
                "r.io/v1/team",
                "user@r.io",
            ],
            &[
                "r.io/team/",
                "r.io/team",
                "r.io/v1/team",
                "r.io/te",
                "r.io",
                "r.io/",
                "https://r.io/v2/",
                "user@r.io",
                "*.io",
            ],
        ),
        (
            "r.io/team",
            &[
                "*.io",
                "r.io",
                "r.io/",
                "https://r.io/v2/",
                "r.io/team",
                "r.io/te",
                "r.io/v1/team",
                "user@r.io",
            ],
            &[
                "r.io/team",
                "r.io/v1/team",
                "r.io/te",
                "r.io",
                "r.io/",
                "https://r.io/v2/",
                "user@r.io",
                "*.io",
            ],
        ),
        (
            "r.io/teamwork/app",
            &[
                "*.io",
                "r.io",
                "r.io/",
                "https://r.io/v2/",
                "r.io/team",
                "r.io/te",
                "r.io/v1/team",
                "user@r.io",
            ],
            &[
                "r.io/team",
                "r.io/v1/team",
                "r.io/te",
                "r.io",
                "r.io/",
                "https://r.io/v2/",
                "user@r.io",
                "*.io",
            ],
        ),
        ("r.io:5000/app", &["r.io:5000"], &["r.io:5000"]),
        (
            "eu.r.io/app",
            &["*.r.io", "e*.r.io", "*u.r.io", "e*u*.r.io"],
            &["e*u*.r.io", "e*.r.io", "*u.r.io", "*.r.io"],
        ),
        (
            "elu.r.io/team/app",
            &["*.r.io", "e*.r.io", "*u.r.io", "e*u*.r.io"],
            &["e*u*.r.io", "e*.r.io", "*u.r.io", "*.r.io"],
        ),
        ("a.eu.r.io/app", &["*.*.r.io"], &["*.*.r.io"]),
        ("localhost/x", &["localhost"], &["localhost"]),
        ("localhost:5000/x", &["localhost:5000"], &["localhost:5000"]),
        ("[::1]:5000/x", &["[::1]:5000"], &["[::1]:5000"]),
        ("other.example/r.io/x", &[], &[]),
    ];
    for (image, alone, together) in cases {
        let got: Vec<&str> = KEYS.iter().copied().filter(|key| !users(image, &[*key]).is_empty()).collect();
        assert_eq!(got, *alone, "{image} with each key alone");
        assert_eq!(users(image, KEYS), *together, "{image} with all keys");
    }
}

/// A kubelet gives those of the hub away here: to it, localhost is a user's name there.
#[test]
fn a_registry_on_this_machine_does_not_get_the_hubs_credentials() {
    assert_eq!(users("localhost/x", &["https://index.docker.io/v1/"]), [""; 0]);
}

#[test]
fn user_and_password_are_taken_from_the_auth_field_first() {
    let encoded = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let no_padding = encoded("user:secret").trim_end_matches('=').to_owned();
    let user =
        |u: &str, p: &str| Credential { username: u.into(), password: p.into(), ..Credential::default() };
    let cases = [
        ("name and password", json!({"username": "u", "password": "p"}), user("u", "p")),
        ("auth", json!({"auth": encoded("user:secret")}), user("user", "secret")),
        ("auth without padding", json!({"auth": no_padding}), user("user", "secret")),
        ("a password with a colon", json!({"auth": encoded("user:se:cret")}), user("user", "se:cret")),
        (
            "auth beside a name",
            json!({"username": "u", "password": "p", "auth": encoded("a:b")}),
            user("a", "b"),
        ),
        ("unknown fields", json!({"username": "u", "password": "p", "email": "e"}), user("u", "p")),
        (
            "an auth that is none is left to the runtime",
            json!({"auth": "!"}),
            Credential { auth: "!".into(), ..Credential::default() },
        ),
        (
            "a token instead of a password",
            json!({"auth": encoded("0000:"), "identitytoken": "t"}),
            Credential { auth: encoded("0000:"), identity_token: "t".into(), ..Credential::default() },
        ),
    ];
    for (name, entry, expected) in cases {
        assert_eq!(credentials("r.io/x", [&secret(json!({"r.io": entry}))]), [expected], "{name}");
    }
}

#[test]
fn a_star_stands_for_any_part_of_a_label() {
    for (pattern, label, expected) in [
        ("*", "", true),
        ("a*", "a", true),
        ("a*a", "a", false),
        ("a*a", "aa", true),
        ("*b*", "abc", true),
        ("a*b*c", "a1b2c", true),
        ("a*b*c", "acb", false),
        ("*ab*ab*", "ab", false),
        ("*ab*ab*", "xabyabz", true),
        ("**", "x", true),
    ] {
        assert_eq!(label_matches(pattern, label), expected, "{pattern} {label}");
    }
    let (stars, label) = ("a*".repeat(50_000), "a".repeat(100_000));
    assert!(!label_matches(&format!("{stars}b"), &label), "and this ends");
    assert!(label_matches(&stars, &label));
}

#[test]
fn the_same_credential_is_tried_once() {
    let entry = json!({"username": "u", "password": "p"});
    let both = secret(json!({"r.io": entry, "r.io/x": entry}));
    assert_eq!(credentials("r.io/x/y", [&both, &both]).len(), 1);
}

#[test]
fn the_older_kind_of_secret_holds_the_same_without_a_frame() {
    let text = json!({"https://index.docker.io/v1/": {"username": "u", "password": "p"}}).to_string();
    let old = Secret {
        type_: Some("kubernetes.io/dockercfg".into()),
        data: Some([(".dockercfg".to_owned(), ByteString(text.into_bytes()))].into()),
        ..Default::default()
    };
    assert_eq!(credentials("docker.io/org/x:1", [&old])[0].username, "u");
}

#[test]
fn a_garbled_secret_gives_nothing_and_harms_nothing() {
    let mut bad = secret(json!({}));
    bad.data = Some([(".dockerconfigjson".to_owned(), ByteString(b"{".to_vec()))].into());
    let good = secret(json!({"r.io": {"username": "u", "password": "p"}}));
    assert_eq!(credentials("r.io/app", [&bad]), []);
    assert_eq!(credentials("r.io/app", [&bad, &good]).len(), 1);
    assert_eq!(credentials("no name", [&good]), []);
}
