use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn secret(name: &str, hash: &str) -> PullCredentials {
    let coordinates = Coordinates { uid: format!("uid-{name}"), namespace: "a".into(), name: name.into() };
    let kubernetes_secrets = vec![PullSecret::new(&coordinates, hash)];
    PullCredentials { kubernetes_secrets, ..PullCredentials::default() }
}

fn account(name: &str) -> PullCredentials {
    let coordinates = Coordinates { uid: format!("uid-{name}"), namespace: "a".into(), name: name.into() };
    let kubernetes_service_accounts = vec![PullAccount::new(&coordinates)];
    PullCredentials { kubernetes_service_accounts, ..PullCredentials::default() }
}

fn everybody() -> PullCredentials {
    PullCredentials::of(None)
}

#[test]
fn records_are_what_a_kubelet_writes_to_the_byte() {
    let intent = PullIntent::new("r.io/x:1");
    let text = "{\"kind\":\"ImagePullIntent\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"image\":\"r.io/x:1\"}\n";
    assert_eq!(intent.encode(), text);
    assert_eq!(PullIntent::decode(text.as_bytes()).unwrap(), intent);

    let mut record = PulledRecord::new("sha256:00", at(1_700_000_000));
    assert!(record.admit("r.io/x", &secret("s", "h"), at(1_700_000_001)));
    assert!(record.admit("r.io/x", &account("b"), at(1_700_000_002)));
    assert!(record.admit("r.io/open", &everybody(), at(1_700_000_003)));
    let text = concat!(
        r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","#,
        r#""lastUpdatedTime":"2023-11-14T22:13:23Z","imageRef":"sha256:00","credentialMapping":{"#,
        r#""r.io/open":{"nodePodsAccessible":true},"#,
        r#""r.io/x":{"kubernetesSecrets":[{"uid":"uid-s","namespace":"a","name":"s","credentialHash":"h"}],"#,
        r#""kubernetesServiceAccounts":[{"uid":"uid-b","namespace":"a","name":"b"}]}}}"#,
        "\n"
    );
    assert_eq!(record.encode(), text);
    assert_eq!(PulledRecord::decode(text.as_bytes()).unwrap(), record);
    let earlier = text.replace("v1beta1", "v1alpha1");
    assert_eq!(PulledRecord::decode(earlier.as_bytes()).unwrap().encode(), text, "it is brought up to date");
    assert_eq!(
        file_name("r.io/x:1"),
        format!("sha256-{}", hex::encode(Sha256::digest("r.io/x:1"))),
        "which is how it is found"
    );
}

#[test]
fn what_is_no_record_is_not_gone_by() {
    let good = PulledRecord::new("sha256:00", at(0)).encode();
    for (name, text) in [
        ("nothing", String::new()),
        ("cut", good[..good.len() / 2].to_owned()),
        ("another kind", good.replace("ImagePulledRecord", "ImagePullIntent")),
        ("another version", good.replace("v1beta1", "v9")),
        ("a field that nobody knows", good.replace("\"imageRef\"", "\"anonymous\":true,\"imageRef\"")),
    ] {
        assert!(PulledRecord::decode(text.as_bytes()).is_err(), "{name}");
    }
    assert!(PullIntent::decode(good.as_bytes()).is_err());
}

#[test]
fn who_is_admitted_is_added_once_and_sorted() {
    let (first, second) = (at(1), at(2));
    let mut record = PulledRecord::new("sha256:00", first);
    assert!(!record.admit("x", &PullCredentials::default(), second), "nobody is nothing new");
    assert!(record.admit("x", &secret("b", "1"), first));
    assert!(record.admit("x", &secret("a", "2"), first));
    assert!(!record.admit("x", &secret("a", "2"), second), "it is there already");
    assert_eq!(record.last_updated_time, Some(first));
    assert!(record.admit("x", &secret("b", "3"), second), "it holds something else now");
    assert_eq!(record.last_updated_time, Some(second));
    let known = record.credentials("x").unwrap();
    let found: Vec<_> = known.kubernetes_secrets.iter().map(|s| (&*s.name, &*s.credential_hash)).collect();
    assert_eq!(found, [("a", "2"), ("b", "3")]);
    assert_eq!(record.credentials("y"), None, "another name has to prove itself");
    assert!(record.admit("x", &everybody(), second));
    assert_eq!(record.credentials("x"), Some(&everybody()), "who came before need not be kept");
    assert!(!record.admit("x", &secret("c", "4"), second));
}
