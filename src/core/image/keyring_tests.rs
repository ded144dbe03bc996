//! The kubelet's own keyring was asked for every line of the first table.

use super::*;

/// One entry for each key, with the key as the user.
fn users(image: &str, keys: &[&str]) -> Vec<String> {
    let mut keyring = Keyring::default();
    for key in keys {
        let config = DockerConfig::default().with_password((*key).into(), (*key).into(), "p".into());
        keyring.add(&Source::Node, config);
    }
    let name = ImageName::parse(image).unwrap();
    keyring.credentials(&name).into_iter().map(|c| c.credential.username).collect()
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
fn the_same_credential_is_tried_once_whosever_it_is() {
    let config = |location: &str, user: &str| {
        DockerConfig::default().with_password(location.into(), user.into(), "p".into())
    };
    let of = |name: &str| {
        Source::Secret(Coordinates { uid: name.into(), namespace: "a".into(), name: name.into() })
    };
    let mut keyring = Keyring::default();
    keyring.add(&of("first"), config("r.io", "u"));
    keyring.add(&of("second"), config("r.io", "u"));
    keyring.add(&Source::Node, config("r.io/x", "u"));
    keyring.add(&Source::Node, config("r.io", "other"));
    let found = keyring.credentials(&ImageName::parse("r.io/x/y").unwrap());
    assert_eq!(found.len(), 4, "all of them count for who may use the image");
    let tried = attempts(&found);
    let users: Vec<_> = tried.iter().map(|c| (&*c.credential.username, &c.source)).collect();
    assert_eq!(users, [("u", &Source::Node), ("other", &Source::Node)]);
}

#[test]
fn a_providers_pattern_is_a_host_with_stars_and_the_beginning_of_a_path() {
    for (pattern, image, expected) in [
        ("r.io", "r.io/team/app:1", true),
        ("*.r.io", "eu.r.io/app", true),
        ("*.io", "eu.r.io/app", false),
        ("r.io/team", "r.io/teams/app", true),
        ("r.io/team", "r.io/other/app", false),
        ("r.io:5000", "r.io:5000/app", true),
        ("r.io", "r.io:5000/app", false),
        ("docker.io", "busybox", true),
        ("docker.io/library", "busybox", true),
    ] {
        assert_eq!(
            pattern_matches(pattern, &ImageName::parse(image).unwrap()),
            expected,
            "{pattern} {image}"
        );
    }
}
