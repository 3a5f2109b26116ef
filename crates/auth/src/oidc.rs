//! OpenID Connect tokens (`k8s.io/apiserver/plugin/pkg/authenticator/token/oidc`): verified with the issuer's keys;
//! claims are mapped to the user, directly or through expressions.

use crate::claims::Expressions;
use crate::jwt::{PublicKey, Token, strings};
use crate::remote::Remote;
use crate::{Authenticated, TokenAuthenticator, User};
use async_trait::async_trait;
use client::https::{Config, Roots};
use meta::{Clock, Value};
use parking_lot::RwLock;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Minimum interval between key fetches when no known key has signed a token.
const AGAIN: Duration = Duration::from_secs(10);
/// Maximum age of keys. The refresh has a short timeout: if the issuer does not respond, known keys remain valid.
const STALE: Duration = Duration::from_secs(3600);
const STALE_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(30);

/// A claim that is mapped to the user, and a prefix for its value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// The name of the claim.
    pub claim: String,
    /// The prefix of its value.
    pub prefix: String,
}

/// The configuration of an issuer of OpenID Connect tokens.
#[derive(Clone, Debug, Default)]
pub struct Issuer {
    /// The issuer URL, as in the claim `iss`.
    pub url: String,
    /// The URL of the discovery document, if not below the issuer URL.
    pub discovery_url: Option<String>,
    /// PEM; empty: the system's trusted certificates.
    pub ca: String,
    /// Accepted audiences.
    pub audiences: Vec<String>,
    /// Accepted signing algorithms.
    pub algorithms: Vec<String>,
    /// The claim for the name of the user.
    pub username: Mapping,
    /// The claim for the groups.
    pub groups: Option<Mapping>,
    /// The claim for the UID.
    pub uid: Option<String>,
    /// Claims with required values.
    pub required: Vec<(String, String)>,
    /// Expressions for what no plain claim configures.
    pub expressions: Arc<Expressions>,
}

/// Default signing algorithms.
pub const ALGORITHMS: [&str; 9] = ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512"];

/// Authenticates the tokens of an OpenID Connect issuer.
pub struct Oidc {
    issuer: Issuer,
    /// The audiences of the API server.
    audiences: Vec<String>,
    clock: Arc<dyn Clock>,
    keys: RwLock<Keys>,
    /// Held while fetching keys. Only tokens without a known signing key wait for it.
    fetching: Mutex<()>,
}

#[derive(Clone, Default)]
struct Keys {
    all: Arc<Vec<PublicKey>>,
    /// The end of the last fetch, successful or not.
    fetched: Option<Instant>,
}

impl Oidc {
    /// An authenticator for an issuer. Fetches its keys when the first token arrives.
    pub fn new(issuer: Issuer, audiences: Vec<String>, clock: Arc<dyn Clock>) -> Self {
        Self { issuer, audiences, clock, keys: RwLock::default(), fetching: Mutex::default() }
    }

    async fn fetch(&self, url: &str) -> Result<Value, String> {
        let mut config = Config::new(url);
        if !self.issuer.ca.is_empty() {
            config.roots = Roots::Pem(self.issuer.ca.clone().into_bytes());
        }
        let remote = Remote::new(&config, TIMEOUT).map_err(|e| e.to_string())?;
        remote.get().await.map_err(|e| format!("{url}: {e}"))
    }

    async fn fetch_keys(&self) -> Result<Vec<PublicKey>, String> {
        let usual = || format!("{}/.well-known/openid-configuration", self.issuer.url.trim_end_matches('/'));
        let about = self.fetch(&self.issuer.discovery_url.clone().unwrap_or_else(usual)).await?;
        if about["issuer"] != *self.issuer.url {
            let issuer = about["issuer"].as_str().unwrap_or_default();
            return Err(format!(
                "oidc: issuer URL provided to client ({:?}) did not match the issuer URL returned by provider ({issuer:?})",
                self.issuer.url
            ));
        }
        let at = about["jwks_uri"].as_str().ok_or("the issuer does not say where its keys are")?;
        let set = self.fetch(at).await?;
        Ok(set["keys"].as_array().into_iter().flatten().filter_map(PublicKey::from_jwk).collect())
    }

    /// Fetches the keys, unless that was done recently. The caller holds the `fetching` lock.
    async fn refresh(&self) -> Result<(), String> {
        if self.keys.read().fetched.is_some_and(|t| t.elapsed() < AGAIN) {
            return Ok(());
        }
        let fetched = self.fetch_keys().await;
        let mut keys = self.keys.write();
        keys.fetched = Some(Instant::now());
        keys.all = Arc::new(fetched.map_err(|e| format!("oidc: authenticator not initialized: {e}"))?);
        Ok(())
    }

    /// Whether one of the issuer's keys signed the token.
    async fn verify(&self, token: &Token<'_>) -> Result<(), String> {
        let known = self.keys.read().clone();
        if known.fetched.is_some() && token.is_signed_by(&known.all) {
            if known.fetched.is_some_and(|t| t.elapsed() < STALE) {
                return Ok(());
            }
            // One request refreshes the keys; concurrent ones proceed.
            let Ok(_fetching) = self.fetching.try_lock() else { return Ok(()) };
            match tokio::time::timeout(STALE_TIMEOUT, self.refresh()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Ok(()),
                Err(_) => {
                    self.keys.write().fetched = Some(Instant::now());
                    return Ok(());
                }
            }
        } else {
            let _fetching = self.fetching.lock().await;
            self.refresh().await?;
        }
        let now = self.keys.read().all.clone();
        if token.is_signed_by(&now) {
            return Ok(());
        }
        Err("oidc: verify token: failed to verify signature: failed to verify id token signature".into())
    }

    fn user(&self, claims: &Value) -> Result<User, String> {
        let i = &self.issuer;
        let name = match &i.expressions.username {
            Some(e) => Expressions::evaluate(e, claims, "username")?,
            None => {
                let name = claims[&i.username.claim].as_str();
                let absent = || format!("oidc: parse username claims {:?}: claim not present", i.username.claim);
                name.ok_or_else(absent)?.to_owned()
            }
        };
        if i.username.claim == "email" && claims.get("email_verified").is_some_and(|v| v != true) {
            return Err("oidc: email not verified".into());
        }
        if name.is_empty() {
            return Err("oidc: the username is empty".into());
        }
        for (claim, value) in &i.required {
            if claims[claim].as_str() != Some(value) {
                let actual = &claims[claim];
                return Err(format!(
                    "oidc: required claim {claim} value does not match. Got = {actual}, want = {value}"
                ));
            }
        }
        i.expressions.check_claims(claims)?;
        let mut user = User { name: format!("{}{name}", i.username.prefix), ..User::default() };
        if let Some(m) = &i.groups {
            user.groups = strings(&claims[&m.claim]).iter().map(|g| format!("{}{g}", m.prefix)).collect();
        }
        if let Some(claim) = &i.uid {
            let uid = claims[claim].as_str().ok_or_else(|| format!("oidc: error getting uid claim {claim:?}"))?;
            user.uid = uid.to_owned();
        }
        if let Some(e) = &i.expressions.groups {
            user.groups = Expressions::many(e, claims, "group")?;
        }
        if let Some(e) = &i.expressions.uid {
            user.uid = Expressions::evaluate(e, claims, "uid")?;
        }
        for (key, e) in &i.expressions.extra {
            let values = Expressions::many(e, claims, "extra")?;
            if !values.is_empty() {
                user.extra.insert(key.clone(), values);
            }
        }
        if let Some(id) = claims["jti"].as_str().filter(|id| !id.is_empty()) {
            let key = "authentication.kubernetes.io/credential-id".to_owned();
            user.extra.insert(key, vec![format!("JTI={id}")]);
        }
        i.expressions.check_user(&user)?;
        Ok(user)
    }
}

#[async_trait]
impl TokenAuthenticator for Oidc {
    async fn authenticate(&self, text: &str, audiences: &[String]) -> Result<Option<Authenticated>, String> {
        let Some(token) = Token::parse(text).filter(|t| t.issuer() == self.issuer.url) else { return Ok(None) };
        let audiences = crate::token::meant_for(&self.audiences, audiences);
        if audiences.is_empty() {
            return Ok(None);
        }
        let algorithm = token.header["alg"].as_str().unwrap_or_default();
        if !self.issuer.algorithms.iter().any(|a| a == algorithm) {
            let known = crate::rbac::cover::quoted(&self.issuer.algorithms);
            return Err(format!(
                "oidc: verify token: oidc: id token signed with unsupported algorithm, expected {known} got {algorithm:?}"
            ));
        }
        let meant = token.audiences();
        if !meant.iter().any(|a| self.issuer.audiences.contains(a)) {
            let (expected, got) =
                (crate::rbac::cover::quoted(&self.issuer.audiences), crate::rbac::cover::quoted(&meant));
            return Err(format!("oidc: verify token: oidc: expected audience in {expected} got {got}"));
        }
        let now = self.clock.now().as_second();
        let time = |k: &str| token.claims[k].as_f64().map(|t| t as i64);
        if time("exp").is_none_or(|e| e < now) {
            return Err("oidc: verify token: oidc: token is expired".into());
        }
        // The issuer's clock may be ahead.
        if time("nbf").is_some_and(|n| n > now.saturating_add(300)) {
            return Err("oidc: verify token: current time before the nbf (not before) time".into());
        }
        self.verify(&token).await?;
        Ok(Some(Authenticated { user: self.user(&token.claims)?, audiences }))
    }
}
