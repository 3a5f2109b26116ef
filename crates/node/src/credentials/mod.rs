//! Credential provider plugins: programs that return credentials for the images of a registry (upstream
//! `pkg/credentialprovider/plugin`).
//!
//! [`configuration`] reads which programs there are and for which images, [`program`] runs one, and [`Providers`] keeps what they
//! returned for as long as they allow. A program that fails gives no credentials: the image is pulled with others, or without.

mod configuration;
mod program;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use distribution::Credentials;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use meta::Clock;
use parking_lot::Mutex;
use runtime::image::{PullAccount, PullSource};
use tokio::sync::Semaphore;

pub use configuration::ConfigurationError;
use configuration::{CacheType, Provider};
use program::{CacheKeyType, Response};

use crate::pod::keyring::{PullCredentials, key, matches};
use crate::volumes::token::Tokens;

/// The most responses of one program that are kept.
const MOST_KEPT: usize = 1_000;
/// How often one program runs at a time: users decide how many pods start together.
const MOST_RUNNING: usize = 8;

/// Reads service accounts for programs that act for them.
#[async_trait::async_trait]
pub trait Accounts: Send + Sync {
    /// The service account; none if it does not exist.
    async fn account(&self, namespace: &str, name: &str) -> Result<Option<ServiceAccount>, client::Error>;
}

#[async_trait::async_trait]
impl Accounts for client::Client {
    async fn account(&self, namespace: &str, name: &str) -> Result<Option<ServiceAccount>, client::Error> {
        self.api::<ServiceAccount>().namespace(namespace).get_opt(name).await
    }
}

/// The programs of a node, as they are configured.
#[derive(Clone, Debug, Default)]
pub struct Plugins(Vec<(Provider, PathBuf)>);

impl Plugins {
    /// Reads the configuration, a file or a directory of files, and looks for the programs in another directory.
    ///
    /// # Errors
    /// A file cannot be read, is invalid, or a program is missing.
    pub fn read(path: &Path, programs: &Path) -> Result<Self, ConfigurationError> {
        let all = configuration::read(path)?.into_iter().map(|provider| {
            let program = configuration::find_program(programs, &provider.name)?;
            Ok((provider, program))
        });
        all.collect::<Result<_, ConfigurationError>>().map(Self)
    }
}

/// Returns the credentials of all programs.
pub struct Providers {
    all: Vec<Cached>,
    clock: Arc<dyn Clock>,
    accounts: Arc<dyn Accounts>,
    tokens: Arc<dyn Tokens>,
}

struct Cached {
    provider: Provider,
    program: PathBuf,
    running: Semaphore,
    kept: Mutex<HashMap<Key, Kept>>,
}

/// What a response is kept for: an image, a registry or all, and what identifies the service account.
type Key = (String, Vec<String>);

struct Kept {
    auth: BTreeMap<String, Credentials>,
    until: Timestamp,
}

/// The service account for which a program returns credentials.
#[derive(Default)]
struct Identity {
    account: Option<PullAccount>,
    token: String,
    annotations: BTreeMap<String, String>,
    /// What identifies it among kept responses.
    key: Vec<String>,
}

impl Providers {
    /// `accounts` and `tokens` are those of the pods' service accounts.
    pub fn new(plugins: Plugins, clock: Arc<dyn Clock>, accounts: Arc<dyn Accounts>, tokens: Arc<dyn Tokens>) -> Self {
        let cached = |(provider, program)| Cached {
            provider,
            program,
            running: Semaphore::new(MOST_RUNNING),
            kept: Mutex::default(),
        };
        Self { all: plugins.0.into_iter().map(cached).collect(), clock, accounts, tokens }
    }

    /// The credentials for an image, without tag and digest, such as `quay.io/team/app`; those of the longest path first.
    pub async fn find(&self, pod: &Pod, image: &str) -> Vec<PullCredentials> {
        let mut found: Vec<(String, PullCredentials)> = Vec::new();
        for cached in self.all.iter().filter(|c| c.provider.match_images.iter().any(|m| matches(&key(m), image))) {
            match self.ask(cached, pod, image).await {
                Ok((account, auth)) => {
                    let fitting = auth.into_iter().map(|(location, c)| (key(&location), c));
                    let fitting = fitting.filter(|(location, _)| matches(location, image));
                    let source = account.map_or(PullSource::Node, PullSource::Account);
                    let whose = |credentials| PullCredentials { credentials, source: source.clone() };
                    found.extend(fitting.map(|(location, credentials)| (location, whose(credentials))));
                }
                Err(error) => {
                    let (provider, m) = (&cached.provider.name, &pod.metadata);
                    tracing::warn!(
                        provider,
                        image,
                        namespace = m.namespace,
                        pod = m.name,
                        "a credential provider failed: {error}"
                    );
                }
            }
        }
        found.sort_by(|(a, _), (b, _)| b.cmp(a));
        found.into_iter().map(|(_, credentials)| credentials).collect()
    }

    async fn ask(
        &self,
        cached: &Cached,
        pod: &Pod,
        image: &str,
    ) -> Result<(Option<PullAccount>, BTreeMap<String, Credentials>), String> {
        let Some(identity) = self.identity(&cached.provider, pod).await? else { return Ok((None, BTreeMap::new())) };
        let registry = image.split('/').next().unwrap_or_default().to_owned();
        let _turn = cached.running.acquire().await.map_err(|e| e.to_string())?;
        let now = self.clock.now();
        for place in [image.to_owned(), registry.clone(), String::new()] {
            if let Some(kept) = cached.kept.lock().get(&(place, identity.key.clone())).filter(|k| now <= k.until) {
                return Ok((identity.account, kept.auth.clone()));
            }
        }
        let request = program::Request { image, token: &identity.token, annotations: &identity.annotations };
        let response = program::run(&cached.program, &cached.provider, &request).await?;
        let by_token = cached.provider.token_attributes.as_ref().is_some_and(|t| t.cache_type == CacheType::Token);
        if !identity.token.is_empty() && !by_token && response.auth.values().any(|c| c.password == identity.token) {
            return Err(
                "credential provider plugin returned the service account token as the password which is not allowed \
                        when service account cache type is not set to 'Token'"
                    .into(),
            );
        }
        let Response { cache_key_type, cache_duration, auth } = response;
        let seconds = cache_duration.unwrap_or(cached.provider.default_cache_duration).get();
        if !seconds.is_zero() {
            let place = match cache_key_type {
                CacheKeyType::Image => image.to_owned(),
                CacheKeyType::Registry => registry,
                CacheKeyType::Global => String::new(),
            };
            let until = jiff::SignedDuration::try_from(seconds).ok().and_then(|s| now.checked_add(s).ok());
            let kept = Kept { auth: auth.clone(), until: until.unwrap_or(Timestamp::MAX) };
            cached.keep((place, identity.key), kept, now);
        }
        Ok((identity.account, auth))
    }

    /// The service account of the pod, with a token. None if the program is not for this pod.
    async fn identity(&self, provider: &Provider, pod: &Pod) -> Result<Option<Identity>, String> {
        let Some(attributes) = &provider.token_attributes else { return Ok(Some(Identity::default())) };
        let m = &pod.metadata;
        let text = |o: &Option<String>| o.clone().unwrap_or_default();
        let name = pod.spec.as_ref().and_then(|s| s.service_account_name.clone()).unwrap_or_default();
        // Static pods have no service account.
        if name.is_empty() {
            return Ok((!attributes.require_service_account).then(Identity::default));
        }
        let namespace = text(&m.namespace);
        let account = self.accounts.account(&namespace, &name).await;
        let account = account.map_err(|e| format!("failed to get service account: {e}"))?;
        let account =
            account.ok_or_else(|| format!("failed to get service account: serviceaccount {name:?} not found"))?;
        let has = account.metadata.annotations.unwrap_or_default();
        let required = &attributes.required_service_account_annotation_keys;
        if required.iter().any(|k| !has.contains_key(k)) {
            // The annotation is how a workload opts in.
            return Ok(None);
        }
        let keys = required.iter().chain(&attributes.optional_service_account_annotation_keys);
        let annotations: BTreeMap<String, String> =
            keys.filter_map(|k| Some((k.clone(), has.get(k)?.clone()))).collect();
        let token = self.tokens.token(pod, Some(&attributes.service_account_token_audience), None).await;
        let token = token.map_err(|e| format!("failed to get service account token: {e}"))?;
        let uid = text(&account.metadata.uid);
        let mut key = vec![namespace.clone(), name.clone(), uid.clone()];
        key.extend(annotations.iter().flat_map(|(k, v)| [k.clone(), v.clone()]));
        if attributes.cache_type == CacheType::Token {
            key.extend([text(&m.name), text(&m.uid), token.clone()]);
        }
        let account = Some(PullAccount { namespace, name, uid });
        Ok(Some(Identity { account, token, annotations, key }))
    }
}

impl Cached {
    fn keep(&self, key: Key, kept: Kept, now: Timestamp) {
        let mut all = self.kept.lock();
        if all.len() >= MOST_KEPT {
            all.retain(|_, k| now <= k.until);
        }
        if all.len() >= MOST_KEPT {
            all.clear();
        }
        all.insert(key, kept);
    }
}

#[cfg(test)]
mod tests;
