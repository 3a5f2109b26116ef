//! Bearer tokens: the administrator's, and those of service accounts (JWT, ES256).

use apiserver::TokenAuthenticator;
use async_trait::async_trait;
use auth::User;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, EcdsaKeyPair, KeyPair, UnparsedPublicKey};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as B64;
use meta::{Clock, Value};
use parking_lot::RwLock;
use registry::Registry;
use serde_json::json;
use std::sync::{Arc, OnceLock, Weak};
use strategies::authentication::{Claims, TokenIssuer};

/// One fixed token of a cluster administrator.
pub struct AdminToken(pub String);

#[async_trait]
impl TokenAuthenticator for AdminToken {
    async fn authenticate(&self, token: &str) -> Result<Option<User>, String> {
        let same = aws_lc_rs::constant_time::verify_slices_are_equal(token.as_bytes(), self.0.as_bytes()).is_ok();
        Ok(same.then(|| User::new("kubernetes-admin", &[auth::user::GROUP_MASTERS])))
    }
}

pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// Makes and verifies tokens of service accounts.
pub struct ServiceAccountTokens {
    key: EcdsaKeyPair,
    clock: Arc<dyn Clock>,
    /// To see whether the account and what the token is bound to still exist.
    registry: OnceLock<Weak<Registry>>,
    /// Tokens whose signature was verified, with their claims; bounded.
    verified: RwLock<Vec<(String, Arc<Value>)>>,
}

const REMEMBERED: usize = 256;

impl ServiceAccountTokens {
    pub fn new(key: EcdsaKeyPair, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { key, clock, registry: OnceLock::new(), verified: RwLock::new(Vec::new()) })
    }

    pub fn attach(&self, registry: &Arc<Registry>) {
        let _ = self.registry.set(Arc::downgrade(registry));
    }

    fn claims(&self, token: &str) -> Result<Option<Arc<Value>>, String> {
        if let Some((_, c)) = self.verified.read().iter().find(|(t, _)| t == token) {
            return Ok(Some(c.clone()));
        }
        let parts: Vec<&str> = token.split('.').collect();
        let [header, body, signature] = parts[..] else { return Ok(None) };
        let decode = |t: &str| B64.decode(t).ok();
        let claims: Option<Value> = decode(body).and_then(|b| serde_json::from_slice(&b).ok());
        let Some(claims) = claims.filter(|c| c["iss"] == ISSUER) else { return Ok(None) };
        let signature = decode(signature).ok_or("the signature is no base64")?;
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.key.public_key().as_ref());
        let message = format!("{header}.{body}");
        public.verify(message.as_bytes(), &signature).map_err(|_| "the signature is not ours".to_owned())?;
        let claims = Arc::new(claims);
        let mut v = self.verified.write();
        if v.len() >= REMEMBERED {
            v.remove(0);
        }
        v.push((token.to_owned(), claims.clone()));
        Ok(Some(claims))
    }

    fn user(&self, claims: &Value) -> Result<User, String> {
        let now = self.clock.now().as_second();
        if claims["exp"].as_i64().is_some_and(|e| e < now) {
            return Err("service account token has expired".into());
        }
        let k = &claims["kubernetes.io"];
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let (ns, name, uid) =
            (text(&k["namespace"]), text(&k["serviceaccount"]["name"]), text(&k["serviceaccount"]["uid"]));
        let exists = |resource: &str, namespace: &str, name: &str, uid: &str| -> bool {
            let Some(registry) = self.registry.get().and_then(Weak::upgrade) else { return false };
            let rows = registry.rows();
            let key = rows.stored("", resource).and_then(|r| r.key(namespace, name));
            let entry = key.and_then(|k| registry.store.snapshot().get(&k));
            entry.is_some_and(|e| registry::encode::decode(&e).uid() == uid)
        };
        if !exists("serviceaccounts", &ns, &name, &uid) {
            return Err(format!("service account {ns}/{name} has been deleted"));
        }
        for (field, resource) in [("pod", "pods"), ("secret", "secrets")] {
            let b = &k[field];
            if b.is_object() && !exists(resource, &ns, &text(&b["name"]), &text(&b["uid"])) {
                return Err(format!("the {field} that the token is bound to is gone"));
            }
        }
        let groups = [auth::user::GROUP_SERVICE_ACCOUNTS, &format!("system:serviceaccounts:{ns}")];
        let mut user = User::new(format!("system:serviceaccount:{ns}:{name}"), &groups);
        user.uid = uid;
        if k["pod"].is_object() {
            user.extra.insert("authentication.kubernetes.io/pod-name".into(), vec![text(&k["pod"]["name"])]);
            user.extra.insert("authentication.kubernetes.io/pod-uid".into(), vec![text(&k["pod"]["uid"])]);
        }
        if let Some(id) = claims["jti"].as_str() {
            user.extra.insert("authentication.kubernetes.io/credential-id".into(), vec![format!("JTI={id}")]);
        }
        Ok(user)
    }
}

fn audiences(claims: &Value) -> Vec<String> {
    claims["aud"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[async_trait]
impl TokenAuthenticator for ServiceAccountTokens {
    async fn authenticate(&self, token: &str) -> Result<Option<User>, String> {
        let Some(claims) = self.claims(token)? else { return Ok(None) };
        if !audiences(&claims).iter().any(|a| a == ISSUER) {
            return Err("the token is for another audience".into());
        }
        self.user(&claims).map(Some)
    }
}

#[async_trait]
impl TokenIssuer for ServiceAccountTokens {
    fn issue(&self, c: &Claims) -> Result<(String, String), String> {
        let now = self.clock.now();
        let end = now + jiff::SignedDuration::from_secs(c.seconds);
        let mut id = [0; 16];
        aws_lc_rs::rand::fill(&mut id).map_err(|e| e.to_string())?;
        let hex: String = id.iter().map(|b| format!("{b:02x}")).collect();
        let mut k = json!({"namespace": c.namespace, "serviceaccount": {"name": c.account, "uid": c.account_uid}});
        if let Some((kind, name, uid)) = &c.bound {
            k[kind.to_lowercase()] = json!({"name": name, "uid": uid});
        }
        let body = json!({"aud": c.audiences, "exp": end.as_second(), "iat": now.as_second(), "nbf": now.as_second(),
            "iss": ISSUER, "jti": hex, "kubernetes.io": k,
            "sub": format!("system:serviceaccount:{}:{}", c.namespace, c.account)});
        let header = json!({"alg": "ES256", "typ": "JWT"});
        let message = format!("{}.{}", B64.encode(header.to_string()), B64.encode(body.to_string()));
        let s = self.key.sign(&SystemRandom::new(), message.as_bytes()).map_err(|e| e.to_string())?;
        Ok((format!("{message}.{}", B64.encode(s.as_ref())), meta::time::format(end)))
    }

    async fn review(&self, token: &str) -> Result<Option<(User, Vec<String>)>, String> {
        let Some(claims) = self.claims(token)? else { return Ok(None) };
        Ok(Some((self.user(&claims)?, audiences(&claims))))
    }

    fn default_audience(&self) -> String {
        ISSUER.to_owned()
    }
}
