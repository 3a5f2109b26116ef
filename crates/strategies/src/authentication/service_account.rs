//! Service account tokens (`k8s.io/kubernetes/pkg/serviceaccount`): issued on request and bound to an object, or legacy
//! tokens in secrets. A token is valid while the objects it names exist.

use super::bound_objects::{BoundObjects, account_user};
use super::legacy;
use async_trait::async_trait;
use auth::jwt::{PrivateKey, PublicKey, Token};
use auth::{Authenticated, TokenAuthenticator, User};
use jiff::Timestamp;
use meta::{Clock, Object, Rng, Value};
use parking_lot::RwLock;
use registry::Registry;
use serde_json::json;
use std::sync::Arc;

/// Size of the cache of verified signatures.
const REMEMBERED: usize = 256;
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Issuers: the first issues tokens, tokens of all are accepted.
    pub issuers: Vec<String>,
    /// Audiences of this server.
    pub audiences: Vec<String>,
    /// Maximum lifetime of a token in seconds; `None` is unlimited.
    pub max_seconds: Option<i64>,
    /// Whether one-hour tokens of pods last a year, since not all programs reload them.
    pub extend: bool,
}

/// The claims of a token to be issued.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    pub namespace: String,
    pub account: String,
    pub account_uid: String,
    pub audiences: Vec<String>,
    /// Lifetime, and the time after which the token should have been replaced, in seconds.
    pub seconds: i64,
    pub warn_after: Option<i64>,
    /// Bound objects: `pod`, `secret` or `node`, with name and UID.
    pub bound: Vec<(&'static str, String, String)>,
}

/// Issues and verifies service account tokens.
pub struct ServiceAccountTokens {
    key: PrivateKey,
    keys: Vec<PublicKey>,
    pub settings: Settings,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    verified: RwLock<Vec<(String, Arc<Value>)>>,
    pub(super) objects: BoundObjects,
}

impl ServiceAccountTokens {
    /// Issues tokens with `key`, and accepts those signed with it or one of `others`.
    pub fn new(
        key: PrivateKey,
        others: Vec<PublicKey>,
        settings: Settings,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
    ) -> Result<Arc<Self>, String> {
        let own = key.public()?;
        let mut keys = others;
        if !keys.iter().any(|k| k.to_jwk() == own.to_jwk()) {
            keys.insert(0, own);
        }
        let objects = BoundObjects::new(clock.clone());
        Ok(Arc::new(Self { key, keys, settings, clock, rng, verified: RwLock::default(), objects }))
    }

    /// Attaches the registry. Tokens are rejected before.
    pub fn attach(&self, registry: &Arc<Registry>) {
        self.objects.attach(registry);
    }

    pub(super) fn issuer(&self) -> &str {
        self.settings.issuers.first().map_or("", String::as_str)
    }

    /// Returns the OpenID Connect discovery document, with `keys_at` as the address of the keys, and the key set.
    pub fn documents(&self, keys_at: &str) -> (Value, Value) {
        let mut algorithms: Vec<&str> = self.keys.iter().map(PublicKey::algorithm).collect();
        algorithms.sort_unstable();
        algorithms.dedup();
        let about = json!({"issuer": self.issuer(), "jwks_uri": keys_at, "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"], "id_token_signing_alg_values_supported": algorithms});
        (about, json!({"keys": self.keys.iter().map(PublicKey::to_jwk).collect::<Vec<_>>()}))
    }

    /// Issues a token. Returns it with its expiration time.
    pub fn issue(&self, c: &Claims) -> Result<(String, Timestamp), String> {
        let now = self.clock.now();
        let end = meta::time::plus(now, c.seconds);
        let mut own = json!({"namespace": c.namespace, "serviceaccount": {"name": c.account, "uid": c.account_uid}});
        for (kind, name, uid) in &c.bound {
            own[*kind] = json!({"name": name, "uid": uid});
        }
        if let Some(s) = c.warn_after {
            own["warnafter"] = now.as_second().saturating_add(s).into();
        }
        let claims = json!({"aud": c.audiences, "exp": end.as_second(), "iat": now.as_second(), "nbf": now.as_second(),
            "iss": self.issuer(), "jti": meta::random::uuid(&*self.rng), "kubernetes.io": own,
            "sub": format!("system:serviceaccount:{}:{}", c.namespace, c.account)});
        Ok((self.key.sign(&claims)?, end))
    }

    /// Issues a legacy token, without expiration and audience.
    pub fn issue_legacy(&self, account: &Object, secret: &Object) -> Result<String, String> {
        self.key.sign(&legacy::claims(account, secret))
    }

    fn claims(&self, text: &str) -> Result<Option<Arc<Value>>, String> {
        if let Some((_, c)) = self.verified.read().iter().find(|(t, _)| t == text) {
            return Ok(Some(c.clone()));
        }
        let Some(token) = Token::parse(text) else { return Ok(None) };
        if token.issuer() != legacy::ISSUER && !self.settings.issuers.iter().any(|i| i == token.issuer()) {
            return Ok(None);
        }
        if !token.is_signed_by(&self.keys) {
            return Err("invalid signature, no keys found".into());
        }
        let claims = Arc::new(token.claims);
        let mut v = self.verified.write();
        if v.len() >= REMEMBERED {
            v.remove(0);
        }
        v.push((text.to_owned(), claims.clone()));
        Ok(Some(claims))
    }

    fn user(&self, claims: &Value) -> Result<User, String> {
        let now = self.clock.now().as_second();
        if claims["exp"].as_i64().is_some_and(|e| e < now) {
            return Err("service account token has expired".into());
        }
        if claims["nbf"].as_i64().is_some_and(|n| n > now + 1) {
            return Err("service account token is not valid yet".into());
        }
        let own = &claims["kubernetes.io"];
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let (namespace, account) = (text(&own["namespace"]), &own["serviceaccount"]);
        let (name, uid) = (text(&account["name"]), text(&account["uid"]));
        self.objects.check_account(&namespace, &name, &uid)?;
        let mut user = account_user(&namespace, &name, &uid);
        let mut add_extra = |key: &str, v: String| {
            user.extra.insert(format!("authentication.kubernetes.io/{key}"), vec![v]);
        };
        let pod = own["pod"].is_object();
        for (field, resource) in [("secret", "secrets"), ("pod", "pods"), ("node", "nodes")] {
            let b = &own[field];
            if !b.is_object() {
                continue;
            }
            let (name, uid) = (text(&b["name"]), text(&b["uid"]));
            // The node of a pod is informative; the token is bound to the pod.
            let namespace = if field == "node" { "" } else { &namespace };
            let is_informative = field == "node" && pod;
            if !is_informative && self.objects.lookup(resource, namespace, &name).is_none_or(|(_, o)| o.uid != uid) {
                return Err(format!("service account token has been invalidated: the {field} it is bound to is gone"));
            }
            if field != "secret" {
                add_extra(&format!("{field}-name"), name.clone());
                add_extra(&format!("{field}-uid"), uid.clone());
            }
        }
        if let Some(id) = claims["jti"].as_str().filter(|id| !id.is_empty()) {
            add_extra("credential-id", format!("JTI={id}"));
        }
        user.extra.retain(|_, v| v.iter().any(|v| !v.is_empty()));
        Ok(user)
    }
}

#[async_trait]
impl TokenAuthenticator for ServiceAccountTokens {
    async fn authenticate(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, String> {
        let Some(claims) = self.claims(token)? else { return Ok(None) };
        if claims["iss"] == legacy::ISSUER {
            // Legacy tokens are meant for this server.
            let audiences = auth::token::meant_for(&self.settings.audiences, audiences);
            if audiences.is_empty() {
                return Err(format!("token audiences do not include any of {:?}", self.settings.audiences));
            }
            let user = legacy::user(&self.objects, &claims, token)?;
            legacy::record_use(self.objects.registry(), &*self.clock, &claims);
            return Ok(Some(Authenticated { user, audiences }));
        }
        let meant = auth::jwt::strings(&claims["aud"]);
        let common: Vec<String> = audiences.iter().filter(|a| meant.contains(a)).cloned().collect();
        if common.is_empty() {
            let list = |l: &[String]| format!("[{}]", l.iter().map(|a| format!("{a:?}")).collect::<Vec<_>>().join(" "));
            return Err(format!(
                "token audiences {} is invalid for the target audiences {}",
                list(&meant),
                list(audiences)
            ));
        }
        Ok(Some(Authenticated { user: self.user(&claims)?, audiences: common }))
    }
}
