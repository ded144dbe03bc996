//! CredentialProviderConfig of kubelet.config.k8s.io: the plugins that are asked for credentials, and for which images.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::decode::decode;
use super::load::ConfigError;
use super::names::is_qualified_name;
use super::tree::{self, Node, Origin, Value};
use super::words::listed;
use super::{ConfigText, Period};

/// What a plugin that is handed tokens of service accounts has to speak.
pub const CREDENTIAL_PROVIDER_V1: &str = "credentialprovider.kubelet.k8s.io/v1";
const SPOKEN: [&str; 3] = [
    CREDENTIAL_PROVIDER_V1,
    "credentialprovider.kubelet.k8s.io/v1beta1",
    "credentialprovider.kubelet.k8s.io/v1alpha1",
];
const KIND: &str = "CredentialProviderConfig";
const VERSIONS: [&str; 3] =
    ["kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"];

/// A plugin, as it was configured. All of it has been checked.
#[derive(Debug, Clone, PartialEq)]
pub struct CredentialProvider {
    /// Also that of its program.
    pub name: String,
    /// The version of the protocol that it speaks.
    pub api_version: String,
    pub match_images: Vec<String>,
    /// For credentials that come without a duration.
    pub default_cache_duration: Period,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub token: Option<TokenAttributes>,
}

/// How a plugin works with the service accounts of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenAttributes {
    pub audience: String,
    pub cache_type: CacheType,
    /// Pods without an account are none of the plugin's business.
    pub require_service_account: bool,
    /// Accounts without these annotations are none of it either.
    pub required_annotations: Vec<String>,
    pub optional_annotations: Vec<String>,
}

/// What credentials that came for a token are kept for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheType {
    ServiceAccount,
    Token,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    #[serde(rename = "apiVersion")]
    _api_version: Option<String>,
    #[serde(rename = "kind")]
    _kind: Option<String>,
    providers: Option<Vec<Written>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    name: Option<String>,
    match_images: Option<Vec<String>>,
    default_cache_duration: Option<Period>,
    api_version: Option<String>,
    args: Option<Vec<String>>,
    env: Option<Vec<Variable>>,
    token_attributes: Option<WrittenToken>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Variable {
    name: String,
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenToken {
    service_account_token_audience: Option<String>,
    cache_type: Option<String>,
    require_service_account: Option<bool>,
    required_service_account_annotation_keys: Option<Vec<String>>,
    optional_service_account_annotation_keys: Option<Vec<String>>,
}

/// Reads the files in order. Whatever is wrong is said with file, line and field.
pub(super) fn read(texts: &[ConfigText], problems: &mut Vec<ConfigError>) -> Vec<CredentialProvider> {
    let mut providers: Vec<CredentialProvider> = vec![];
    let mut any = false;
    for text in texts {
        let Some((tree, file)) = read_file(text, problems) else {
            any = true;
            continue;
        };
        for (index, written) in file.providers.unwrap_or_default().into_iter().enumerate() {
            any = true;
            let mut place = Place { tree: &tree, index, problems };
            let taken = |name: &str| providers.iter().any(|known| known.name == name);
            let provider = settle(written, taken, &mut place);
            providers.push(provider);
        }
    }
    if !any {
        let origin = texts.first().map(|text| Origin::File { name: text.name.as_str().into(), line: 1 });
        let problem = "at least one provider is needed".to_owned();
        problems.push(ConfigError { origin, field: "providers".into(), problem });
    }
    providers
}

fn read_file(text: &ConfigText, problems: &mut Vec<ConfigError>) -> Option<(Node, File)> {
    let origin = |line| Origin::File { name: text.name.as_str().into(), line };
    let tree = match tree::read(&text.name, &text.text) {
        Ok(tree) => tree,
        Err((line, problem)) => {
            let origin = Some(origin(line.unwrap_or(1)));
            problems.push(ConfigError { origin, field: String::new(), problem });
            return None;
        }
    };
    for (field, right) in [("apiVersion", &VERSIONS[..]), ("kind", &[KIND])] {
        let origin = match tree.get(field) {
            Some(Node { value: Value::Text(text), .. }) if right.contains(&text.as_str()) => continue,
            Some(found) => found.place.clone(),
            None => origin(1),
        };
        let problem = format!("this must be {}", listed(right));
        problems.push(ConfigError { origin: Some(origin), field: field.into(), problem });
        return None;
    }
    match decode::<File>(&tree) {
        Ok(file) => Some((tree, file)),
        Err(misfit) => {
            problems.push(misfit.into());
            None
        }
    }
}

/// Where a provider was written.
struct Place<'a> {
    tree: &'a Node,
    index: usize,
    problems: &'a mut Vec<ConfigError>,
}

impl Place<'_> {
    /// `path` is below the provider.
    fn complain(&mut self, path: &str, problem: impl Into<String>) {
        let item = match self.tree.get("providers").map(|list| &list.value) {
            Some(Value::List(items)) => items.get(self.index),
            _ => None,
        };
        let origin = item.map(|item| match item.origin_of(path) {
            Origin::Default => item.place.clone(),
            found => found,
        });
        let field = format!("providers[{}].{path}", self.index);
        self.problems.push(ConfigError { origin, field, problem: problem.into() });
    }

    fn require<T>(&mut self, path: &str, given: Option<T>) -> Option<T> {
        if given.is_none() {
            self.complain(path, "is needed");
        }
        given
    }
}

fn settle(written: Written, taken: impl Fn(&str) -> bool, place: &mut Place<'_>) -> CredentialProvider {
    let name = place.require("name", written.name.filter(|name| !name.is_empty())).unwrap_or_default();
    if name == "." || name == ".." || name.contains(['/', ' ', '\0']) {
        place.complain("name", format!("{name:?} cannot name a program in a directory"));
    }
    if taken(&name) {
        place.complain("name", format!("there are two providers of the name {name}"));
    }
    let api_version = place.require("apiVersion", written.api_version).unwrap_or_default();
    if !api_version.is_empty() && !SPOKEN.contains(&api_version.as_str()) {
        place.complain("apiVersion", format!("{api_version:?} is not known: use {}", listed(&SPOKEN)));
    }
    let match_images = written.match_images.unwrap_or_default();
    if match_images.is_empty() {
        place.complain("matchImages", "at least one pattern is needed");
    }
    for pattern in match_images.iter().filter(|pattern| !is_pattern(pattern)) {
        let shape = "a host, with stars or without, and perhaps a port and a path";
        place.complain("matchImages", format!("{pattern:?} matches nothing: write {shape}"));
    }
    let duration = place.require("defaultCacheDuration", written.default_cache_duration).unwrap_or_default();
    if duration.is_negative() {
        place.complain("defaultCacheDuration", format!("{duration} is too short: this must be 0s or more"));
    }
    if written.token_attributes.is_some()
        && (api_version != CREDENTIAL_PROVIDER_V1 || tree_version(place.tree) != Some(VERSIONS[0]))
    {
        let problem = format!("needs a file of {} and a provider of {CREDENTIAL_PROVIDER_V1}", VERSIONS[0]);
        place.complain("tokenAttributes", problem);
    }
    let env = written.env.unwrap_or_default();
    if env.iter().any(|v| v.name.is_empty() || v.name.contains(['=', '\0']) || v.value.contains('\0')) {
        place.complain("env", "has a variable that no program can be given");
    }
    CredentialProvider {
        name,
        api_version,
        match_images,
        default_cache_duration: duration,
        args: written.args.unwrap_or_default(),
        env: env.into_iter().map(|v| (v.name, v.value)).collect(),
        token: written.token_attributes.map(|token| settle_token(token, place)),
    }
}

fn settle_token(written: WrittenToken, place: &mut Place<'_>) -> TokenAttributes {
    let at = |field: &str| format!("tokenAttributes.{field}");
    let audience = written.service_account_token_audience.filter(|audience| !audience.is_empty());
    let audience = place.require(&at("serviceAccountTokenAudience"), audience).unwrap_or_default();
    let required = place.require(&at("requireServiceAccount"), written.require_service_account);
    let cache_type = match written.cache_type.as_deref() {
        Some("ServiceAccount") => CacheType::ServiceAccount,
        Some("Token") => CacheType::Token,
        _ => {
            place
                .complain(&at("cacheType"), format!("this must be {}", listed(&["ServiceAccount", "Token"])));
            CacheType::Token
        }
    };
    let required_annotations = written.required_service_account_annotation_keys.unwrap_or_default();
    let optional_annotations = written.optional_service_account_annotation_keys.unwrap_or_default();
    if required == Some(false) && !required_annotations.is_empty() {
        let problem = "needs requireServiceAccount: true";
        place.complain(&at("requiredServiceAccountAnnotationKeys"), problem);
    }
    let mut seen = BTreeSet::new();
    for (field, keys) in [
        ("requiredServiceAccountAnnotationKeys", &required_annotations),
        ("optionalServiceAccountAnnotationKeys", &optional_annotations),
    ] {
        for key in keys {
            if !is_qualified_name(&key.to_lowercase()) {
                place.complain(&at(field), format!("{key:?} cannot be the name of an annotation"));
            }
            if !seen.insert(key) {
                place.complain(&at(field), format!("{key} is there twice"));
            }
        }
    }
    TokenAttributes {
        audience,
        cache_type,
        require_service_account: required.unwrap_or(true),
        required_annotations,
        optional_annotations,
    }
}

fn tree_version(tree: &Node) -> Option<&str> {
    match &tree.get("apiVersion")?.value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

/// Anything that could be an image's host and path. A scheme or a space would never match.
fn is_pattern(pattern: &str) -> bool {
    let host = pattern.split('/').next().unwrap_or_default();
    !host.is_empty()
        && !pattern.contains("://")
        && !pattern.contains(|c: char| c.is_whitespace() || c.is_control())
}
