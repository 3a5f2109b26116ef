//! Authentication and authorization of the agent's clients: by client certificate or TokenReview, then SubjectAccessReview
//! (`pkg/kubelet/server/auth.go`). All other requests are denied.
//!
//! Invariants: caches are bounded, and requests without valid credentials evict no results of others. Few reviews run at a time, and
//! fewer for one address.

use client::KeyedLimit;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use client::{Client, Error};
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{Method, Response, StatusCode};
use meta::User;
use quick_cache::sync::Cache;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::target::{Target, verb};
use super::{Body, text};
use crate::configuration::KubeletConfiguration;

/// Cached results of each kind.
const REMEMBERED: usize = 4096;
/// Maximum length of a token.
const LONGEST_TOKEN: usize = 16 << 10;
/// Token reviews at a time, those of one address, and how long one waits for its turn.
const REVIEWS: usize = 16;
const REVIEWS_PER_ADDRESS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(10);

/// The client of a connection.
#[derive(Clone, Debug, Default)]
pub struct Sender {
    /// The user of the client certificate, if the cluster's certificate authority signed it.
    pub user: Option<User>,
    pub address: Option<IpAddr>,
}

type Hash256 = [u8; 32];

fn hash(text: &str) -> Hash256 {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
    bytes
}

pub(super) struct Access {
    client: Client,
    node: String,
    users: Remembered<Hash256, Arc<User>>,
    strangers: Remembered<Hash256, ()>,
    allowed: Remembered<Hash256, ()>,
    denied: Remembered<Hash256, ()>,
    reviews: Semaphore,
    by_address: Arc<KeyedLimit<IpAddr>>,
}

/// Caches answers, each for a while. Evicts those that are rarely used when there are too many.
struct Remembered<K, V> {
    time: Duration,
    entries: Cache<K, (V, Instant)>,
}

impl<K: Copy + Eq + Hash, V: Clone> Remembered<K, V> {
    fn new(time: Duration) -> Self {
        Self { time, entries: Cache::new(REMEMBERED) }
    }

    fn get(&self, key: &K) -> Option<V> {
        self.entries.get(key).filter(|(_, until)| *until > Instant::now()).map(|(value, _)| value)
    }

    fn insert(&self, key: K, value: V) {
        self.entries.insert(key, (value, Instant::now() + self.time));
    }
}

enum Authentication {
    User(Arc<User>),
    Failed,
    Busy,
}

impl Access {
    /// The configuration has the times for which results of reviews are cached.
    pub fn new(client: Client, node: &str, configuration: &KubeletConfiguration) -> Self {
        let tokens = configuration.authentication.webhook.cache_ttl.get();
        let reviews = &configuration.authorization.webhook;
        Self {
            client,
            node: node.to_owned(),
            users: Remembered::new(tokens),
            strangers: Remembered::new(tokens),
            allowed: Remembered::new(reviews.cache_authorized_ttl.get()),
            denied: Remembered::new(reviews.cache_unauthorized_ttl.get()),
            reviews: Semaphore::new(REVIEWS),
            by_address: KeyedLimit::new(usize::MAX, REVIEWS_PER_ADDRESS),
        }
    }

    /// Returns the name of the authorized user, or the error to answer. Removes the token from the request.
    pub async fn admit(&self, parts: &mut Parts, sender: &Sender) -> Result<String, Response<Body>> {
        let token = bearer(parts);
        parts.headers.remove(AUTHORIZATION);
        let user = match (&sender.user, token) {
            (Some(user), _) => Arc::new(user.clone()),
            (None, None) => return Err(text(StatusCode::UNAUTHORIZED, "Unauthorized".into())),
            (None, Some(token)) => match self.authenticate(&token, sender.address).await {
                Authentication::User(user) => user,
                Authentication::Failed => return Err(text(StatusCode::UNAUTHORIZED, "Unauthorized".into())),
                Authentication::Busy => {
                    let why = "too many tokens of this address are being reviewed, please try again later";
                    return Err(text(StatusCode::TOO_MANY_REQUESTS, why.into()));
                }
            },
        };
        let (verb, subresources) = (verb(&parts.method), Target::parse(parts.uri.path()).subresources());
        for subresource in subresources {
            match self.authorize(&user, verb, subresource).await {
                Ok(true) => return Ok(user.name.clone()),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(user = user.name, %error, "the API server did not review an access; the request is denied");
                    let why = format!(
                        "Authorization error (user={}, verb={verb}, resource=nodes, subresource={subresource})",
                        user.name
                    );
                    return Err(text(StatusCode::INTERNAL_SERVER_ERROR, why));
                }
            }
        }
        let all = subresources.join(" ");
        let why = format!("Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{all}])\n", user.name);
        Err(text(StatusCode::FORBIDDEN, why))
    }

    async fn authenticate(&self, token: &str, address: Option<IpAddr>) -> Authentication {
        if token.is_empty() || token.len() > LONGEST_TOKEN {
            return Authentication::Failed;
        }
        let key = hash(token);
        if let Some(user) = self.users.get(&key) {
            return Authentication::User(user);
        }
        if self.strangers.get(&key).is_some() {
            return Authentication::Failed;
        }
        let turn = address.map(|a| self.by_address.acquire(a));
        if matches!(turn, Some(None)) {
            return Authentication::Busy;
        }
        let Ok(Ok(_place)) = tokio::time::timeout(PATIENCE, self.reviews.acquire()).await else {
            return Authentication::Busy;
        };
        match self.review(token).await {
            Ok(Some(user)) => {
                let user = Arc::new(user);
                self.users.insert(key, user.clone());
                Authentication::User(user)
            }
            Ok(None) => {
                self.strangers.insert(key, ());
                Authentication::Failed
            }
            Err(error) => {
                tracing::warn!(%error, "the API server did not review a token; the request is denied");
                Authentication::Failed
            }
        }
    }

    async fn review(&self, token: &str) -> Result<Option<User>, Error> {
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
        let answer = self.post(path, &review).await?;
        let status = &answer["status"];
        let user = &status["user"];
        let name = user["username"].as_str().unwrap_or_default();
        if status["authenticated"] != true || name.is_empty() {
            return Ok(None);
        }
        let texts = |v: &Value| -> Vec<String> {
            v.as_array().into_iter().flatten().filter_map(|g| g.as_str().map(str::to_owned)).collect()
        };
        Ok(Some(User {
            name: name.to_owned(),
            uid: user["uid"].as_str().unwrap_or_default().to_owned(),
            groups: texts(&user["groups"]),
            extra: user["extra"].as_object().into_iter().flatten().map(|(k, v)| (k.clone(), texts(v))).collect(),
        }))
    }

    async fn authorize(&self, user: &User, verb: &str, subresource: &str) -> Result<bool, Error> {
        let spec = json!({
            "user": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra,
            "resourceAttributes": {"verb": verb, "version": "v1", "resource": "nodes", "subresource": subresource,
                "name": self.node},
        });
        let key = hash(&spec.to_string());
        if self.allowed.get(&key).is_some() {
            return Ok(true);
        }
        if self.denied.get(&key).is_some() {
            return Ok(false);
        }
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec});
        let allowed = self.post(path, &review).await?["status"]["allowed"] == true;
        if allowed {
            self.allowed.insert(key, ())
        } else {
            self.denied.insert(key, ())
        }
        Ok(allowed)
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Value, Error> {
        let body = Some(("application/json", body.to_string().into_bytes()));
        let request: http::Request<Bytes> = client::client::request(Method::POST, path, "application/json", body)?;
        self.client.json(request).await
    }
}

fn bearer(parts: &Parts) -> Option<String> {
    let (scheme, token) = parts.headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_is_bounded_in_time_and_number() {
        let all: Remembered<usize, usize> = Remembered::new(Duration::from_secs(30));
        all.insert(1, 10);
        tokio::time::advance(Duration::from_secs(29)).await;
        assert_eq!(all.get(&1), Some(10));
        all.insert(1, 11);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(all.get(&1), Some(11), "a repeated insert extends the time");
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(all.get(&1), None);
        for n in 0..2 * REMEMBERED {
            all.insert(n, n);
        }
        assert!(all.entries.len() <= REMEMBERED);
    }
}
