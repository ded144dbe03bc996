use std::time::Duration;

use serde_json::json;

use super::*;
use crate::config::{CREDENTIAL_PROVIDER_V1, TokenAttributes};
use crate::image::{ImageName, Keyring, Source};

fn provider() -> CredentialProvider {
    CredentialProvider {
        name: "p".into(),
        api_version: CREDENTIAL_PROVIDER_V1.into(),
        match_images: vec!["r.io".into()],
        default_cache_duration: Period::minutes(5),
        args: vec![],
        env: vec![],
        token: None,
    }
}

fn with_token(cache_type: CacheType) -> CredentialProvider {
    let token = TokenAttributes {
        audience: "r.io".into(),
        cache_type,
        require_service_account: true,
        required_annotations: vec!["needed".into()],
        optional_annotations: vec!["perhaps".into()],
    };
    CredentialProvider { token: Some(token), ..provider() }
}

fn response(change: impl FnOnce(&mut serde_json::Value)) -> Vec<u8> {
    let mut response = json!({
        "kind": "CredentialProviderResponse", "apiVersion": CREDENTIAL_PROVIDER_V1, "cacheKeyType": "Registry",
        "auth": {"r.io": {"username": "u", "password": "hidden"}},
    });
    change(&mut response);
    response.to_string().into_bytes()
}

#[test]
fn a_request_has_what_the_plugins_version_knows() {
    let mut request = Request { image: "r.io/x".into(), ..Request::default() };
    let plain = format!(
        "{{\"kind\":\"CredentialProviderRequest\",\"apiVersion\":\"{CREDENTIAL_PROVIDER_V1}\",\"image\":\"r.io/x\"}}\n"
    );
    assert_eq!(request.encode(&provider()), plain);
    request.token = "t".into();
    request.annotations = [("needed".to_owned(), "a".to_owned())].into();
    let text: serde_json::Value = serde_json::from_str(&request.encode(&provider())).unwrap();
    assert_eq!(text["serviceAccountToken"], "t");
    assert_eq!(text["serviceAccountAnnotations"], json!({"needed": "a"}));
}

#[test]
fn an_answer_says_for_what_and_how_long_it_is_good() {
    let request = Request { image: "r.io/x".into(), ..Request::default() };
    let read = |change: &dyn Fn(&mut serde_json::Value)| {
        Answer::decode(&response(change), &provider(), &request).unwrap()
    };
    for (name, duration, expected) in [
        ("the provider's own", json!(null), Some(Duration::from_secs(300))),
        ("the answer's", json!("1h"), Some(Duration::from_secs(3600))),
        ("none at all", json!("0s"), None),
    ] {
        assert_eq!(read(&|r| r["cacheDuration"] = duration.clone()).keep, expected, "{name}");
    }
    for (word, kind) in
        [("Image", CacheKind::Image), ("Registry", CacheKind::Registry), ("Global", CacheKind::Global)]
    {
        assert_eq!(read(&|r| r["cacheKeyType"] = json!(word)).kind, kind);
    }
    let mut keyring = Keyring::default();
    keyring.add(&Source::Node, read(&|_| ()).credentials);
    let found = keyring.credentials(&ImageName::parse("r.io/x").unwrap());
    assert_eq!((&*found[0].credential.username, &*found[0].credential.password), ("u", "hidden"));
    let nothing = read(&|r| r["auth"] = json!(null)).credentials;
    let mut keyring = Keyring::default();
    keyring.add(&Source::Node, nothing);
    assert!(keyring.credentials(&ImageName::parse("r.io/x").unwrap()).is_empty());
}

#[test]
fn a_bad_answer_is_described_and_never_quoted() {
    let request = Request::default();
    for (name, text, expected) in [
        ("nothing", vec![], "not JSON"),
        ("rubbish", b"login failed: hidden".to_vec(), "not JSON"),
        ("another kind", response(|r| r["kind"] = json!("Pod")), "\"Pod\""),
        ("another version", response(|r| r["apiVersion"] = json!("v9")), "\"v9\""),
        ("another cache", response(|r| r["cacheKeyType"] = json!("hidden")), "fields"),
        ("no cache", response(|r| drop(r.as_object_mut().unwrap().remove("cacheKeyType"))), "fields"),
        ("a field that nobody knows", response(|r| r["hidden"] = json!(1)), "fields"),
        ("a bad duration", response(|r| r["cacheDuration"] = json!("hidden")), "fields"),
        ("a bad login", response(|r| r["auth"] = json!({"r.io": "hidden"})), "fields"),
    ] {
        let error = Answer::decode(&text, &provider(), &request).err().unwrap();
        assert!(error.contains(expected) && !error.contains("hidden"), "{name}: {error}");
    }
}

#[test]
fn a_token_comes_back_as_a_password_only_where_it_is_kept_by_token() {
    let request = Request { token: "hidden".into(), ..Request::default() };
    assert!(Answer::decode(&response(|_| ()), &with_token(CacheType::Token), &request).is_ok());
    let error = Answer::decode(&response(|_| ()), &with_token(CacheType::ServiceAccount), &request);
    assert!(error.err().unwrap().contains("cacheType: Token"));
}

#[test]
fn an_account_without_a_required_annotation_is_not_asked_about() {
    let token = with_token(CacheType::Token).token.unwrap();
    let annotations = |keys: &[&str]| keys.iter().map(|k| ((*k).to_owned(), String::new())).collect();
    let told = |keys: &[&str]| {
        let told = super::super::annotations_for(&token, &annotations(keys));
        told.map(|told| told.into_keys().collect::<Vec<_>>())
    };
    assert_eq!(told(&["perhaps", "other"]), None);
    assert_eq!(told(&["needed", "other"]), Some(vec!["needed".to_owned()]));
    assert_eq!(told(&["needed", "perhaps"]), Some(vec!["needed".to_owned(), "perhaps".to_owned()]));
}
