//! Reviews of tokens and identities, and the tokens of service accounts.

use async_trait::async_trait;
use auth::User;
use meta::{Object, Status, Value};
use registry::{Env, Function, Request, WriteOptions};
use serde_json::json;
use std::sync::Arc;

/// What a token is made of.
pub struct Claims {
    pub namespace: String,
    pub account: String,
    pub account_uid: String,
    pub audiences: Vec<String>,
    pub seconds: i64,
    /// Kind, name and uid of what the token is bound to.
    pub bound: Option<(String, String, String)>,
}

/// Makes and reads service account tokens.
#[async_trait]
pub trait TokenIssuer: Send + Sync {
    /// The token and the time at which it ends, as the API writes it.
    fn issue(&self, claims: &Claims) -> Result<(String, String), String>;
    /// The user of a token of any kind and the audiences it is good for.
    async fn review(&self, token: &str) -> Result<Option<(User, Vec<String>)>, String>;
    fn default_audience(&self) -> String;
}

pub struct SelfSubjectReview;

#[async_trait]
impl Function for SelfSubjectReview {
    async fn create(&self, env: Env<'_>, request: &Request, mut o: Object, _: &WriteOptions) -> Result<Object, Status> {
        o.set(&["metadata", "creationTimestamp"], meta::time::format(env.clock().now()));
        o.set(&["status", "userInfo"], info(&request.user));
        Ok(o)
    }
}

fn info(user: &User) -> Value {
    let mut v = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        v["uid"] = user.uid.clone().into();
    }
    if !user.extra.is_empty() {
        v["extra"] = json!(user.extra);
    }
    v
}

pub struct TokenReview(pub Arc<dyn TokenIssuer>);

#[async_trait]
impl Function for TokenReview {
    async fn create(
        &self,
        _env: Env<'_>,
        _request: &Request,
        mut o: Object,
        _: &WriteOptions,
    ) -> Result<Object, Status> {
        let token = o.str_at(&["spec", "token"]).unwrap_or_default().to_owned();
        if token.is_empty() {
            return Err(Status::bad_request("token is required for TokenReview in authentication"));
        }
        let asked: Vec<String> = o
            .at(&["spec", "audiences"])
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect();
        let status = match self.0.review(&token).await {
            Ok(Some((user, audiences))) => {
                let wanted = if asked.is_empty() { vec![self.0.default_audience()] } else { asked };
                let common: Vec<&String> = wanted.iter().filter(|a| audiences.contains(a)).collect();
                if common.is_empty() {
                    json!({"user": {}, "error": "token audiences do not match"})
                } else {
                    json!({"authenticated": true, "user": info(&user), "audiences": common})
                }
            }
            Ok(None) => json!({"user": {}}),
            Err(why) => json!({"user": {}, "error": why}),
        };
        o.set(&["status"], status);
        Ok(o)
    }
}

/// The `token` subresource of a service account.
pub struct TokenRequest(pub Arc<dyn TokenIssuer>);

#[async_trait]
impl Function for TokenRequest {
    async fn create(&self, env: Env<'_>, request: &Request, mut o: Object, _: &WriteOptions) -> Result<Object, Status> {
        let account = env.registry.get(request).await?;
        let mut audiences: Vec<String> = o
            .at(&["spec", "audiences"])
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .filter(|a| !a.is_empty())
            .map(str::to_owned)
            .collect();
        if audiences.is_empty() {
            audiences.push(self.0.default_audience());
        }
        let seconds = o.int_at(&["spec", "expirationSeconds"]).unwrap_or(3600);
        if seconds < 600 {
            let gk = meta::GroupKind { group: "authentication.k8s.io".into(), kind: "TokenRequest".into() };
            let path = meta::FieldPath::new("spec.expirationSeconds");
            let e = meta::FieldError::invalid(&path, seconds, "may not specify a duration less than 10 minutes");
            return Err(Status::invalid(&gk, "", &[e]));
        }
        let seconds = seconds.min(24 * 3600);
        let text = |k: &str| o.str_at(&["spec", "boundObjectRef", k]).unwrap_or_default().to_owned();
        let bound = (!text("kind").is_empty()).then(|| (text("kind"), text("name"), text("uid")));
        let bound = match bound {
            None => None,
            Some((kind, name, uid)) => Some(self.check_bound(env, request, kind, name, uid)?),
        };
        let claims = Claims {
            namespace: request.namespace.clone(),
            account: account.name().to_owned(),
            account_uid: account.uid().to_owned(),
            audiences: audiences.clone(),
            seconds,
            bound,
        };
        let (token, expiration) = self.0.issue(&claims).map_err(Status::internal)?;
        o.set(&["spec", "audiences"], audiences);
        o.set(&["spec", "expirationSeconds"], seconds);
        o.set(&["metadata", "creationTimestamp"], meta::time::format(env.clock().now()));
        o.set(&["status"], json!({"token": token, "expirationTimestamp": expiration}));
        Ok(o)
    }
}

impl TokenRequest {
    /// What a token is bound to must be there, and be the one that is meant.
    fn check_bound(
        &self,
        env: Env<'_>,
        request: &Request,
        kind: String,
        name: String,
        uid: String,
    ) -> Result<(String, String, String), Status> {
        let (resource, namespace) = match kind.as_str() {
            "Pod" => ("pods", request.namespace.as_str()),
            "Secret" => ("secrets", request.namespace.as_str()),
            "Node" => ("nodes", ""),
            other => {
                return Err(Status::bad_request(format!(
                    "cannot bind token for serviceaccount to object with kind {other:?}"
                )));
            }
        };
        let rows = env.registry.rows();
        let row = rows.stored("", resource).ok_or_else(|| Status::internal("not served"))?;
        let key = row.key(namespace, &name).ok_or_else(|| Status::internal("not stored"))?;
        let entry =
            env.registry.store.snapshot().get(&key).ok_or_else(|| Status::not_found(&row.group_resource(), &name))?;
        let object = registry::encode::decode(&entry);
        if !uid.is_empty() && uid != object.uid() {
            let why = format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
            );
            return Err(Status::conflict(&row.group_resource(), &name, &why));
        }
        Ok((kind, name, object.uid().to_owned()))
    }
}
