use std::fs;
use std::path::Path;

use keelson_core::config::{CREDENTIAL_PROVIDER_V1, Period};
use keelson_core::ids::PodUid;

use super::*;

/// A plugin of the shell that notes each of its runs, then does what the line says.
fn providers(dir: &Path, kind: &str, then: &str) -> Providers {
    let answer = format!(
        r#"{{"kind":"CredentialProviderResponse","apiVersion":"{CREDENTIAL_PROVIDER_V1}","cacheKeyType":"{kind}","auth":{{}}}}"#
    );
    let line = format!("cat >>{}; {then}; echo '{answer}'", dir.join("runs").display());
    let config = CredentialProvider {
        name: "plugin".into(),
        api_version: CREDENTIAL_PROVIDER_V1.into(),
        match_images: vec!["*.io".into(), "r.io:5000/team".into()],
        default_cache_duration: Period::minutes(5),
        args: vec![],
        env: vec![],
        token: None,
    };
    let args = vec!["-c".into(), line];
    let program = Program { path: "/bin/sh".into(), args, env: vec![], limit: Duration::from_secs(60) };
    Providers { providers: vec![Provider::new(config, program)], api: None }
}

fn pod() -> PodIdentity {
    PodIdentity {
        namespace: "a".into(),
        name: "p".into(),
        uid: PodUid::try_from("uid").unwrap(),
        service_account: Some("default".into()),
        secrets: vec![],
    }
}

fn image(name: &str) -> ImageName {
    ImageName::parse(name).unwrap()
}

fn runs(dir: &Path) -> Vec<String> {
    let text = fs::read_to_string(dir.join("runs")).unwrap_or_default();
    let image = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["image"].to_string();
    text.lines().map(image).collect()
}

#[tokio::test]
async fn a_plugin_is_run_for_its_images_and_not_again_while_its_answer_is_good() {
    let dir = tempfile::tempdir().unwrap();
    let providers = providers(dir.path(), "Registry", "true");
    for (name, asked) in
        [("r.io/x:1", 1), ("r.io/y:2", 1), ("q.io/x", 1), ("other.example/x", 0), ("r.io:5000/x", 0)]
    {
        assert_eq!(providers.ask(&image(name), &pod()).await.len(), asked, "{name}");
    }
    assert_eq!(runs(dir.path()), ["\"r.io/x\"", "\"q.io/x\""]);
}

#[tokio::test]
async fn those_who_ask_the_same_at_once_share_one_run() {
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go");
    let wait = format!("until [ -e {} ]; do sleep 0.02; done", go.display());
    let providers = providers(dir.path(), "Image", &wait);
    let (name, pod) = (image("r.io/x"), pod());
    let mut first = std::pin::pin!(providers.ask(&name, &pod));
    let mut second = std::pin::pin!(providers.ask(&name, &pod));
    while runs(dir.path()).is_empty() {
        assert!(futures::poll!(first.as_mut()).is_pending());
        assert!(futures::poll!(second.as_mut()).is_pending());
        tokio::task::yield_now().await;
    }
    fs::write(go, "").unwrap();
    let (first, second) = tokio::join!(first, second);
    assert!(first[0].1.is_ok() && second[0].1.is_ok());
    assert_eq!(runs(dir.path()).len(), 1);
}

#[tokio::test]
async fn one_that_gives_up_does_not_end_it_for_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go");
    let wait = format!("until [ -e {} ]; do sleep 0.02; done", go.display());
    let providers = providers(dir.path(), "Image", &wait);
    let (name, pod) = (image("r.io/x"), pod());
    let mut second = std::pin::pin!(providers.ask(&name, &pod));
    {
        let mut first = std::pin::pin!(providers.ask(&name, &pod));
        while runs(dir.path()).is_empty() {
            assert!(futures::poll!(first.as_mut()).is_pending());
            assert!(futures::poll!(second.as_mut()).is_pending());
            tokio::task::yield_now().await;
        }
    }
    fs::write(go, "").unwrap();
    assert!(second.await[0].1.is_ok());
    assert_eq!(runs(dir.path()).len(), 1);
}

#[tokio::test]
async fn a_failure_is_said_and_not_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let fixed = dir.path().join("fixed");
    let providers = providers(dir.path(), "Image", &format!("[ -e {} ] || exit 7", fixed.display()));
    let failed = providers.ask(&image("r.io/x"), &pod()).await;
    let (name, given) = &failed[0];
    assert_eq!(name, "plugin");
    assert!(given.as_ref().err().unwrap().contains("exit status: 7"));
    fs::write(fixed, "").unwrap();
    assert!(providers.ask(&image("r.io/x"), &pod()).await[0].1.is_ok());
    assert_eq!(runs(dir.path()).len(), 2);
}

#[tokio::test]
async fn pods_without_an_account_are_left_out_where_one_is_required() {
    let dir = tempfile::tempdir().unwrap();
    let mut providers = providers(dir.path(), "Image", "true");
    let mut static_pod = pod();
    static_pod.service_account = None;
    for (required, asked) in [(true, 0), (false, 1)] {
        providers.providers[0].config.token = Some(TokenAttributes {
            audience: "r.io".into(),
            cache_type: CacheType::ServiceAccount,
            require_service_account: required,
            required_annotations: vec![],
            optional_annotations: vec![],
        });
        assert_eq!(providers.ask(&image("r.io/x"), &static_pod).await.len(), asked);
    }
    let standalone = providers.ask(&image("r.io/x"), &pod()).await;
    assert!(standalone[0].1.as_ref().err().unwrap().contains("no apiserver"));
}
