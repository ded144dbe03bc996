use super::*;

const FILE: &str = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n";
const PROVIDER: &str = "- name: p\n  matchImages: [r.io]\n  defaultCacheDuration: 5m\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n";
const TOKEN: &str = "  tokenAttributes:\n    serviceAccountTokenAudience: a\n    cacheType: Token\n    requireServiceAccount: true\n";

fn input(files: &[String]) -> ConfigInput {
    let texts = files.iter().enumerate().map(|(index, text)| {
        let name = ["providers.yaml", "more.yaml"][index].into();
        ConfigText { name, text: text.clone() }
    });
    let mut input = config("");
    input.node.credential_provider_config = Some(texts.collect());
    input.node.credential_provider_bin_dir = Some("/plugins".into());
    input
}

fn read(files: &[String]) -> Vec<CredentialProvider> {
    load(&input(files)).unwrap().credential_providers
}

#[test]
fn providers_are_read_in_order_from_all_files() {
    let second = PROVIDER.replace("name: p", "name: q").replace("/v1", "/v1beta1");
    let older = FILE.replace("io/v1", "io/v1alpha1");
    let read = read(&[
        format!("{FILE}{PROVIDER}{TOKEN}"),
        format!("{older}{second}  args: [a]\n  env: [{{name: NOTE, value: v}}]\n"),
    ]);
    let token = TokenAttributes {
        audience: "a".into(),
        cache_type: CacheType::Token,
        require_service_account: true,
        required_annotations: vec![],
        optional_annotations: vec![],
    };
    let first = CredentialProvider {
        name: "p".into(),
        api_version: CREDENTIAL_PROVIDER_V1.into(),
        match_images: vec!["r.io".into()],
        default_cache_duration: Period::minutes(5),
        args: vec![],
        env: vec![],
        token: Some(token),
    };
    let second = CredentialProvider {
        name: "q".into(),
        api_version: "credentialprovider.kubelet.k8s.io/v1beta1".into(),
        args: vec!["a".into()],
        env: vec![("NOTE".into(), "v".into())],
        token: None,
        ..first.clone()
    };
    assert_eq!(read, [first, second]);
}

#[test]
fn what_is_wrong_is_said_with_file_line_and_field() {
    let good = format!("{FILE}{PROVIDER}");
    let with_token = format!("{good}{TOKEN}");
    for (name, text, expected) in [
        (
            "no provider",
            FILE.replace("providers:\n", "providers: []\n"),
            "providers.yaml:1: providers: at least one provider is needed",
        ),
        (
            "another kind",
            good.replace("CredentialProviderConfig", "Pod"),
            "providers.yaml:2: kind: this must be \"CredentialProviderConfig\"",
        ),
        (
            "another version",
            good.replace("io/v1\nkind", "io/v9\nkind"),
            "providers.yaml:1: apiVersion: this must be",
        ),
        (
            "an unknown field",
            good.replace("matchImages", "matchImage"),
            "providers.yaml:5: providers[0].matchImage: there is no such field, did you mean matchImages?",
        ),
        (
            "a path for a name",
            good.replace("name: p", "name: ../p"),
            "providers.yaml:4: providers[0].name: \"../p\" cannot name a program",
        ),
        ("no name", good.replace("name: p", "name: ''"), "providers.yaml:4: providers[0].name: is needed"),
        (
            "no pattern",
            good.replace("[r.io]", "[]"),
            "providers.yaml:5: providers[0].matchImages: at least one pattern",
        ),
        (
            "a scheme",
            good.replace("[r.io]", "['https://r.io']"),
            "providers.yaml:5: providers[0].matchImages: \"https://r.io\" matches nothing",
        ),
        (
            "no duration",
            good.replace("  defaultCacheDuration: 5m\n", ""),
            "providers.yaml:4: providers[0].defaultCacheDuration: is needed",
        ),
        (
            "a bad duration",
            good.replace("5m", "-5m"),
            "providers.yaml:6: providers[0].defaultCacheDuration: -5m",
        ),
        (
            "an unknown protocol",
            good.replace("credentialprovider.kubelet.k8s.io/v1", "v1"),
            "providers.yaml:7: providers[0].apiVersion: \"v1\" is not known",
        ),
        (
            "two of a name",
            format!("{good}{PROVIDER}"),
            "providers.yaml:8: providers[1].name: there are two providers of the name p",
        ),
        (
            "a token for an old protocol",
            with_token.replace("s.io/v1\n  tok", "s.io/v1beta1\n  tok"),
            "providers.yaml:8: providers[0].tokenAttributes: needs",
        ),
        (
            "no audience",
            with_token.replace("Audience: a", "Audience: ''"),
            "providers.yaml:9: providers[0].tokenAttributes.serviceAccountTokenAudience: is needed",
        ),
        (
            "a bad cache type",
            with_token.replace("cacheType: Token", "cacheType: Pod"),
            "providers.yaml:10: providers[0].tokenAttributes.cacheType: this must be \"ServiceAccount\" or \"Token\"",
        ),
        (
            "annotations of no account",
            with_token.replace("ccount: true", "ccount: false")
                + "    requiredServiceAccountAnnotationKeys: [a]\n",
            "providers.yaml:12: providers[0].tokenAttributes.requiredServiceAccountAnnotationKeys: needs requireServiceAccount: true",
        ),
        (
            "an annotation twice",
            with_token
                + "    requiredServiceAccountAnnotationKeys: [a]\n    optionalServiceAccountAnnotationKeys: [a]\n",
            "providers.yaml:13: providers[0].tokenAttributes.optionalServiceAccountAnnotationKeys: a is there twice",
        ),
        ("not YAML", "{".into(), "providers.yaml:1: "),
    ] {
        let said = error(&input(&[text]));
        assert!(said.starts_with(expected), "{name}: {said}");
    }
}

#[test]
fn the_two_flags_need_each_other() {
    let mut half = input(&[format!("{FILE}{PROVIDER}")]);
    half.node.credential_provider_bin_dir = None;
    assert!(
        error(&half)
            .contains("--image-credential-provider-config: needs --image-credential-provider-bin-dir")
    );
    let mut other = config("");
    other.node.credential_provider_bin_dir = Some("/plugins".into());
    assert!(
        error(&other)
            .contains("--image-credential-provider-bin-dir: needs --image-credential-provider-config")
    );
}

#[test]
fn who_may_use_images_is_configured_without_contradictions() {
    let allowlisted = "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\n";
    for (body, expected) in [
        (
            "preloadedImagesVerificationAllowlist: [r.io/x]",
            "needs imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages",
        ),
        (
            &format!("{allowlisted}preloadedImagesVerificationAllowlist: ['r.io/x:1']"),
            "must have neither tag nor digest",
        ),
        (
            "imagePullCredentialsVerificationPolicy: AlwaysVerify\nfeatureGates: {KubeletEnsureSecretPulledImages: false}",
            "has no meaning with featureGates: {KubeletEnsureSecretPulledImages: false}",
        ),
        ("imagePullCredentialsVerificationPolicy: Sometimes", "\"Sometimes\" is not known"),
    ] {
        let said = error(&config(body));
        assert!(said.contains(expected), "{body}: {said}");
    }
    load(&config(&format!("{allowlisted}preloadedImagesVerificationAllowlist: ['r.io/*']"))).unwrap();
}
