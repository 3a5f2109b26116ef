//! Service account tokens for pods: bound to the pod, renewed after four fifths of their lifetime, or a day.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use client::{Client, WriteOptions};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use meta::Clock;
use parking_lot::Mutex;
use serde_json::{Value, json};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to fetch token: {0}")]
    Request(#[from] client::Error),
    #[error("failed to fetch token: the answer holds none")]
    Empty,
}

#[async_trait::async_trait]
pub trait Tokens: Send + Sync {
    /// A token for the audience; without one, for the API server.
    async fn issue(&self, pod: &Pod, audience: Option<&str>, seconds: Option<i64>) -> Result<Issued, Error>;

    async fn token(&self, pod: &Pod, audience: Option<&str>, seconds: Option<i64>) -> Result<String, Error> {
        Ok(self.issue(pod, audience, seconds).await?.token)
    }
}

/// A token and its end.
#[derive(Clone, Debug, Default)]
pub struct Issued {
    pub token: String,
    pub expires: Timestamp,
}

struct Held {
    token: String,
    issued: Timestamp,
    expires: Timestamp,
}

/// `(pod uid, audience, seconds)`.
type Id = (String, String, i64);

pub struct TokenRequests {
    client: Client,
    clock: Arc<dyn Clock>,
    held: Mutex<BTreeMap<Id, Held>>,
}

const DAY: Duration = Duration::from_secs(24 * 3600);
const DEFAULT_SECONDS: i64 = 3600;

fn due(issued: Timestamp, expires: Timestamp) -> Timestamp {
    let life = meta::time::left(issued, expires);
    issued.saturating_add((life / 5 * 4).min(DAY)).unwrap_or(issued)
}

impl TokenRequests {
    pub fn new(client: Client, clock: Arc<dyn Clock>) -> Self {
        Self { client, clock, held: Mutex::default() }
    }

    pub fn forget(&self, uid: &str) {
        self.held.lock().retain(|(u, ..), _| u != uid);
    }
}

#[async_trait::async_trait]
impl Tokens for TokenRequests {
    async fn issue(&self, pod: &Pod, audience: Option<&str>, seconds: Option<i64>) -> Result<Issued, Error> {
        let text = |o: &Option<String>| o.clone().unwrap_or_default();
        let m = &pod.metadata;
        let seconds = seconds.unwrap_or(DEFAULT_SECONDS);
        let id = (text(&m.uid), audience.unwrap_or_default().to_owned(), seconds);
        let now = self.clock.now();
        if let Some(h) = self.held.lock().get(&id)
            && now < due(h.issued, h.expires)
        {
            return Ok(Issued { token: h.token.clone(), expires: h.expires });
        }
        let account =
            pod.spec.as_ref().and_then(|s| s.service_account_name.clone()).unwrap_or_else(|| "default".into());
        let mut spec = json!({
            "expirationSeconds": seconds,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": text(&m.name), "uid": text(&m.uid)},
        });
        spec["audiences"] = match audience.filter(|a| !a.is_empty()) {
            Some(a) => json!([a]),
            None => json!([]),
        };
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        let api = self.client.api::<ServiceAccount>().namespace(&text(&m.namespace));
        let answer: Result<Value, _> = api.create_subresource(&account, "token", &WriteOptions::default(), &body).await;
        let answer = match answer {
            Ok(a) => a,
            // An old token that is still valid is better than none.
            Err(e) => {
                return match self.held.lock().get(&id) {
                    Some(h) if now < h.expires => Ok(Issued { token: h.token.clone(), expires: h.expires }),
                    _ => Err(e.into()),
                };
            }
        };
        let status = &answer["status"];
        let token = status["token"].as_str().ok_or(Error::Empty)?.to_owned();
        let expires = status["expirationTimestamp"].as_str().and_then(meta::time::parse);
        let expires = expires.unwrap_or_else(|| meta::time::plus(now, seconds.max(0)));
        self.held.lock().insert(id, Held { token: token.clone(), issued: now, expires });
        Ok(Issued { token, expires })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_renewed_in_time() {
        let t = |s| Timestamp::from_second(s).unwrap();
        assert_eq!(due(t(0), t(3600)), t(2880));
        assert_eq!(due(t(0), t(10 * 86_400)), t(86_400));
    }
}
