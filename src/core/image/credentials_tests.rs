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

fn credentials<'a>(image: &str, secrets: impl IntoIterator<Item = &'a Secret>) -> Vec<Credential> {
    let Ok(name) = ImageName::parse(image) else { return vec![] };
    of_secrets(&name, secrets).into_iter().map(|c| c.credential).collect()
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

/// The digests are of the JSON that Go writes for each.
#[test]
fn the_hash_is_that_of_a_kubelet_and_tokens_are_not_all_one() {
    let hash = |entry: Value| {
        let name = ImageName::parse("r.io/x").unwrap();
        of_secrets(&name, [&secret(json!({"r.io": entry}))]).remove(0).hash
    };
    let digest = |json: &str| hex::encode(Sha256::digest(json));
    let encoded = base64::engine::general_purpose::STANDARD.encode("u:p");
    for (name, entry, rendered) in [
        (
            "name and password",
            json!({"username": "u", "password": "p"}),
            r#"{"username":"u","password":"p"}"#,
        ),
        ("the same by auth", json!({"auth": encoded}), r#"{"username":"u","password":"p"}"#),
        (
            "an email too",
            json!({"username": "u", "password": "p", "email": "e"}),
            r#"{"username":"u","password":"p","email":"e"}"#,
        ),
        ("Go's escapes", json!({"password": "<&\u{2028}\""}), r#"{"password":"\u003c\u0026\u2028\""}"#),
        ("nothing", json!({}), "{}"),
    ] {
        assert_eq!(hash(entry), digest(rendered), "{name}");
    }
    assert_ne!(hash(json!({"identitytoken": "a"})), hash(json!({"identitytoken": "b"})));
    assert_ne!(hash(json!({"registrytoken": "a"})), hash(json!({"registrytoken": "b"})));
}

#[test]
fn what_is_secret_is_in_no_message() {
    let error = DockerConfig::framed(br#"{"auths": {"r.io": {"password": 7}}}"#).err().unwrap();
    assert!(error.contains("line 1") && !error.contains('7'), "{error}");
    let credential = Credential { username: "u".into(), password: "hidden".into(), ..Credential::default() };
    assert!(!format!("{credential:?}").contains("hidden"));
    assert!(DockerConfig::framed(br#"{"auths": null, "credsStore": "x"}"#).is_ok());
    assert!(DockerConfig::plain(b"[]").is_err());
}
