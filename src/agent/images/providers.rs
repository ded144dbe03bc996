//! Asks credential providers: only those that an image is for, once for all who ask the same at the same time, and not again
//! while an answer is good.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared, join_all};
use keelson_apiserver::{Api, TokenCache, TokenSpec};
use keelson_core::config::{CacheType, CredentialProvider, Settings, TokenAttributes};
use keelson_core::credential_provider::{AccountKey, Answer, CredentialCache, Request, annotations_for};
use keelson_core::image::{Coordinates, DockerConfig, ImageName, Source, pattern_matches};

use super::plugin::Program;
use super::pod_credentials::PodIdentity;

/// The kubelet's.
const LIMIT: Duration = Duration::from_secs(60);
/// What the apiserver gives who asks for no life of a token in particular.
const TOKEN_SECONDS: i64 = 3600;

pub(super) struct Providers {
    /// In the order in which they were configured.
    providers: Vec<Provider>,
    api: Option<(Api, TokenCache)>,
}

struct Provider {
    config: CredentialProvider,
    program: Arc<Program>,
    cache: Mutex<CredentialCache>,
    asking: Mutex<HashMap<Request, WeakShared<Asking>>>,
}

type Asking = BoxFuture<'static, Result<Arc<Answer>, String>>;
type Given = Result<(Source, DockerConfig), String>;

/// A pod's service account, for a plugin that is told of it.
struct Account {
    coordinates: Coordinates,
    cache_type: CacheType,
}

impl Providers {
    pub fn new(settings: &Settings, api: Option<(Api, TokenCache)>) -> Self {
        let dir = &settings.paths.credential_provider_bin_dir;
        let provider = |config: &CredentialProvider| {
            let program = Program {
                path: dir.join(&config.name),
                args: config.args.clone(),
                env: config.env.clone(),
                limit: LIMIT,
            };
            Provider::new(config.clone(), program)
        };
        Self { providers: settings.credential_providers.iter().map(provider).collect(), api }
    }

    /// What each provider that the image is for gave, or why it gave nothing. All are asked at once: one that hangs does not keep
    /// the others waiting for their turn.
    pub async fn ask(&self, image: &ImageName, pod: &PodIdentity) -> Vec<(String, Given)> {
        let asked = self.providers.iter().filter(|provider| provider.is_for(image)).map(async |provider| {
            let given = self.ask_one(provider, image, pod).await.transpose()?;
            if let Err(error) = &given {
                tracing::warn!(provider = provider.config.name, %image, error, "credential provider failed");
            }
            Some((provider.config.name.clone(), given))
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    /// `None` where this pod is none of the provider's business.
    async fn ask_one(
        &self,
        provider: &Provider,
        image: &ImageName,
        pod: &PodIdentity,
    ) -> Result<Option<(Source, DockerConfig)>, String> {
        let mut request = Request { image: image.to_string(), ..Request::default() };
        let name = pod.service_account.as_deref().filter(|name| !name.is_empty());
        let account = match (&provider.config.token, name) {
            (Some(token), Some(name)) => match self.account(token, pod, name, &mut request).await? {
                Some(account) => Some(account),
                None => return Ok(None),
            },
            (Some(token), None) if token.require_service_account => return Ok(None),
            _ => None,
        };
        let config = provider.credentials(image, request, account.as_ref()).await?;
        let source = account.map_or(Source::Node, |account| Source::ServiceAccount(account.coordinates));
        Ok(Some((source, config)))
    }

    async fn account(
        &self,
        token: &TokenAttributes,
        pod: &PodIdentity,
        name: &str,
        request: &mut Request,
    ) -> Result<Option<Account>, String> {
        let Some((api, tokens)) = &self.api else {
            return Err(format!("wants a token of service account {name}, and there is no apiserver"));
        };
        let account = api.service_account(&pod.namespace, name).await.map_err(|e| e.to_string())?;
        let annotations = account.metadata.annotations.unwrap_or_default();
        let Some(told) = annotations_for(token, &annotations) else { return Ok(None) };
        request.annotations = told;
        let spec = TokenSpec {
            namespace: pod.namespace.clone(),
            service_account: name.to_owned(),
            pod_name: pod.name.clone(),
            pod_uid: pod.uid.clone(),
            audience: token.audience.clone(),
            expiration_seconds: TOKEN_SECONDS,
        };
        request.token = tokens.get(&spec).await.map_err(|e| e.to_string())?.token;
        let coordinates = Coordinates {
            uid: account.metadata.uid.unwrap_or_default(),
            namespace: pod.namespace.clone(),
            name: name.to_owned(),
        };
        Ok(Some(Account { coordinates, cache_type: token.cache_type }))
    }
}

impl Provider {
    fn new(config: CredentialProvider, program: Program) -> Self {
        Self { config, program: Arc::new(program), cache: Mutex::default(), asking: Mutex::default() }
    }

    fn is_for(&self, image: &ImageName) -> bool {
        self.config.match_images.iter().any(|pattern| pattern_matches(pattern, image))
    }

    async fn credentials(
        &self,
        image: &ImageName,
        request: Request,
        account: Option<&Account>,
    ) -> Result<DockerConfig, String> {
        let key = account.map(|a| AccountKey::new(&a.coordinates, &request, a.cache_type));
        if let Some(found) = self.cache().find(image, key.as_ref(), Instant::now()) {
            return Ok(found);
        }
        let answer = self.join(request).await?;
        self.cache().keep(image, key.as_ref(), &answer, Instant::now());
        Ok(answer.credentials.clone())
    }

    fn cache(&self) -> MutexGuard<'_, CredentialCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to a question that may be asked already. It is given up when nobody waits for it any more.
    fn join(&self, request: Request) -> Shared<Asking> {
        let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        asking.retain(|_, one| one.upgrade().is_some_and(|one| one.peek().is_none()));
        if let Some(one) = asking.get(&request).and_then(WeakShared::upgrade) {
            return one;
        }
        let (program, config, question) = (self.program.clone(), self.config.clone(), request.clone());
        let one: Asking = Box::pin(async move {
            let text = program.ask(&question.encode(&config)).await?;
            Answer::decode(&text, &config, &question).map(Arc::new)
        });
        let one = one.shared();
        asking.extend(one.downgrade().map(|weak| (request, weak)));
        one
    }
}

#[cfg(test)]
#[path = "providers_tests.rs"]
mod tests;
