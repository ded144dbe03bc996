use jiff::Timestamp;

use super::*;
use crate::image::Credential;
use crate::image::keyring::Coordinates;

fn policy(verification: ImagePullVerification) -> AccessPolicy {
    let mut kubelet = KubeletConfiguration::default();
    kubelet.image_pull_credentials_verification_policy = verification;
    kubelet.preloaded_images_verification_allowlist = vec!["r.io/open/*".into()];
    AccessPolicy::of(&kubelet)
}

fn coordinates(name: &str) -> Coordinates {
    Coordinates { uid: format!("uid-{name}"), namespace: "a".into(), name: name.into() }
}

fn owned(source: Source, hash: &str) -> OwnedCredential {
    OwnedCredential { credential: Credential::default(), hash: hash.into(), source }
}

fn of_secret(name: &str, hash: &str) -> OwnedCredential {
    owned(Source::Secret(coordinates(name)), hash)
}

fn of_account(name: &str) -> OwnedCredential {
    owned(Source::ServiceAccount(coordinates(name)), "h")
}

fn record(known: &[&OwnedCredential]) -> PulledRecord {
    let mut record = PulledRecord::new("sha256:00", Timestamp::UNIX_EPOCH);
    for owned in known {
        record.admit("r.io/x", &PullCredentials::of(Some(owned)), Timestamp::UNIX_EPOCH);
    }
    record
}

#[test]
fn the_policy_says_which_images_have_to_be_asked_about() {
    use ImagePullVerification::*;
    let pulled = record(&[]);
    // The policy; then an image that was there before, one that was pulled, one whose pull was cut off, one on the list.
    for (verification, expected) in [
        (NeverVerify, [true, true, true, true]),
        (NeverVerifyPreloadedImages, [true, false, false, false]),
        (NeverVerifyAllowlistedImages, [false, false, false, true]),
        (AlwaysVerify, [false, false, false, false]),
    ] {
        let policy = policy(verification);
        let granted = [
            policy.access("r.io/x:1", None, false),
            policy.access("r.io/x:1", Some(&pulled), false),
            policy.access("r.io/x:1", None, true),
            policy.access("r.io/open/x:1", Some(&pulled), false),
        ]
        .map(|access| access == Access::Granted);
        assert_eq!(granted, expected, "{verification}");
    }
    let mut kubelet = KubeletConfiguration::default();
    kubelet.feature_gates = [("KubeletEnsureSecretPulledImages".to_owned(), false)].into();
    let off = AccessPolicy::of(&kubelet);
    assert!(!off.enabled() && off.access("r.io/x", Some(&pulled), false) == Access::Granted);
}

#[test]
fn an_image_is_for_those_who_have_what_it_came_with() {
    let (known, other) = (of_secret("s", "1"), of_secret("other", "2"));
    let policy = policy(ImagePullVerification::NeverVerifyPreloadedImages);
    let of_everybody = record(&[&owned(Source::Node, "n")]);
    assert_eq!(policy.access("r.io/x:1", Some(&of_everybody), false), Access::Granted);
    let access = policy.access("r.io/x:1", Some(&record(&[&known, &of_account("b")])), false);
    let Access::With(list) = access else { panic!("{access:?}") };
    let admitted = |pod: &[OwnedCredential]| list.admits(pod).map(|new| new.kubernetes_secrets.len());
    assert_eq!(admitted(&[]), None);
    assert_eq!(admitted(std::slice::from_ref(&other)), None);
    assert_eq!(admitted(&[owned(Source::Node, "1")]), None, "what the node has proves nothing of a pod");
    assert_eq!(admitted(std::slice::from_ref(&known)), Some(1));
    assert_eq!(admitted(&[other, of_secret("twin", "1")]), Some(1), "the same content in another secret");
    assert_eq!(admitted(&[of_secret("s", "rotated")]), Some(1), "the same secret, rotated");
    assert_eq!(admitted(&[of_account("b")]), Some(0));
    assert_eq!(admitted(&[of_account("c")]), None);
    let access = policy.access("r.io/y:1", Some(&record(&[&known])), false);
    assert_eq!(access, Access::Unproven, "the same image under a name that nobody has shown to be theirs");
}

#[test]
fn a_long_list_is_compared_but_not_made_longer() {
    let many: Vec<_> = (0..MOST_COMPARED).map(|n| of_secret(&format!("s{n}"), &format!("h{n}"))).collect();
    let list = record(&many.iter().collect::<Vec<_>>()).credentials("r.io/x").cloned().unwrap();
    let note = list.admits(&[of_secret("twin", "h7")]);
    assert_eq!(note, Some(PullCredentials::default()), "admitted, and nothing to note");
    assert_eq!(list.admits(&[of_secret("s7", "rotated")]), None);
}
