//! The webhook token authenticator (`TokenReview`) and webhook authorizer (`SubjectAccessReview`), with their caches.

use crate::attributes::Attributes;
use crate::conditions::{Conditions, Matched};
use crate::remote::{AnswerCache, CacheKey, Remote};
use crate::{Authenticated, Authorizer, Decision, TokenAuthenticator, User};
use async_trait::async_trait;
use meta::Value;
use meta::selector::Operator;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// Authenticates tokens by a webhook (`TokenReview`).
pub struct WebhookTokens {
    /// The webhook.
    pub remote: Remote,
    /// The version of `authentication.k8s.io`: `v1` or `v1beta1`.
    pub version: String,
    /// Cache TTLs.
    pub lasts: Duration,
    /// The audiences of the API server, for webhooks that return none.
    pub audiences: Vec<String>,
    /// Cached responses.
    pub known: AnswerCache<Option<Authenticated>>,
}

#[async_trait]
impl TokenAuthenticator for WebhookTokens {
    async fn authenticate(&self, token: &str, audiences: &[String]) -> Result<Option<Authenticated>, String> {
        let key = CacheKey::new(std::iter::once(token).chain(audiences.iter().map(String::as_str)));
        if let Some(found) = self.known.get(key) {
            return Ok(found);
        }
        let question = json!({"apiVersion": format!("authentication.k8s.io/{}", self.version), "kind": "TokenReview",
            "spec": {"token": token, "audiences": audiences}});
        let answer = self.remote.post(&question).await?;
        let status = &answer["status"];
        if let Some(why) = status["error"].as_str().filter(|e| !e.is_empty()) {
            return Err(why.to_owned());
        }
        let found = self.found(status, audiences);
        self.known.put(key, found.clone(), self.lasts);
        Ok(found)
    }
}

impl WebhookTokens {
    fn found(&self, status: &Value, requested: &[String]) -> Option<Authenticated> {
        if status["authenticated"] != true {
            return None;
        }
        // A webhook without audience support authenticates for the API server.
        let returned = crate::jwt::strings(&status["audiences"]);
        let audiences =
            crate::token::meant_for(if returned.is_empty() { &self.audiences } else { &returned }, requested);
        if audiences.is_empty() {
            return None;
        }
        let user = &status["user"];
        let text = |k: &str| user[k].as_str().unwrap_or_default().to_owned();
        let extra = user["extra"].as_object().into_iter().flatten();
        let user = User {
            name: text("username"),
            uid: text("uid"),
            groups: crate::jwt::strings(&user["groups"]),
            extra: extra.map(|(k, v)| (k.clone(), crate::jwt::strings(v))).collect(),
        };
        Some(Authenticated { user, audiences })
    }
}

/// The decision if the call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// The request is denied.
    Deny,
    /// The webhook has no opinion.
    NoOpinion,
}

/// Authorizes requests by a webhook (`SubjectAccessReview`).
pub struct WebhookAuthorizer {
    /// The webhook.
    pub remote: Remote,
    /// The version of `authorization.k8s.io`: `v1` or `v1beta1`.
    pub version: String,
    /// How long allowed decisions are cached.
    pub allowed_lasts: Duration,
    /// How long other decisions are cached.
    pub refused_lasts: Duration,
    /// The decision if the call fails.
    pub on_failure: OnFailure,
    /// The conditions for calling the webhook.
    pub conditions: Arc<Conditions>,
    /// Cached decisions.
    pub known: AnswerCache<Decision>,
}

#[async_trait]
impl Authorizer for WebhookAuthorizer {
    /// Blocks this thread; other tasks of the runtime continue.
    fn authorize(&self, a: &Attributes) -> Decision {
        if let Some(d) = self.spared(a) {
            return d;
        }
        let key = CacheKey::new([self.question(a).to_string().as_str()]);
        if let Some(known) = self.known.get(key) {
            return known;
        }
        let handle = tokio::runtime::Handle::current();
        match handle.runtime_flavor() {
            tokio::runtime::RuntimeFlavor::CurrentThread => {
                let work = || handle.block_on(self.decide(a));
                std::thread::scope(|s| s.spawn(work).join()).unwrap_or_else(|_| self.failed("the thread ended"))
            }
            _ => tokio::task::block_in_place(|| handle.block_on(self.decide(a))),
        }
    }

    async fn decide(&self, a: &Attributes) -> Decision {
        if let Some(d) = self.spared(a) {
            return d;
        }
        let question = self.question(a);
        let key = CacheKey::new([question.to_string().as_str()]);
        if let Some(known) = self.known.get(key) {
            return known;
        }
        let answer = match self.remote.post(&question).await {
            Ok(answer) => answer,
            Err(why) => return self.failed(&why),
        };
        let status = &answer["status"];
        let reason = status["reason"].as_str().unwrap_or_default().to_owned();
        let decision = match (status["allowed"] == true, status["denied"] == true) {
            (true, true) => return self.failed("webhook subject access review returned both allow and deny response"),
            (true, false) => Decision::Allow(reason),
            (false, true) => Decision::Deny(reason),
            (false, false) => Decision::NoOpinion(reason),
        };
        let lasts = if decision.allowed() { self.allowed_lasts } else { self.refused_lasts };
        self.known.put(key, decision.clone(), lasts);
        decision
    }

    fn unlisted(&self, _user: &User) -> Vec<&'static str> {
        vec!["webhook authorizer does not support user rule resolution"]
    }
}

impl WebhookAuthorizer {
    /// The decision for a request that the webhook is not called for; none if it is.
    fn spared(&self, a: &Attributes) -> Option<Decision> {
        if self.conditions.is_empty() {
            return None;
        }
        let mut spec = self.question(a)["spec"].take();
        // Conditions see `v1` with all string fields.
        spec["groups"] = json!(a.user.groups);
        spec["uid"] = a.user.uid.clone().into();
        spec["extra"] = json!(a.user.extra);
        if let Some(r) = spec.get_mut("resourceAttributes") {
            for k in ["namespace", "verb", "group", "version", "resource", "subresource", "name"] {
                if r[k].is_null() {
                    r[k] = "".into();
                }
            }
        }
        match self.conditions.hold(&spec) {
            Matched::Yes => None,
            Matched::No => Some(Decision::NoOpinion(String::new())),
            Matched::Failed(why) => Some(self.failed(&why)),
        }
    }

    fn failed(&self, why: &str) -> Decision {
        tracing::warn!("the authorization webhook failed: {why}");
        match self.on_failure {
            OnFailure::Deny => Decision::Deny(String::new()),
            OnFailure::NoOpinion => Decision::NoOpinion(String::new()),
        }
    }

    fn question(&self, a: &Attributes) -> Value {
        let groups = if self.version == "v1beta1" { "group" } else { "groups" };
        let mut spec = json!({"user": a.user.name, groups: a.user.groups});
        if !a.user.uid.is_empty() {
            spec["uid"] = a.user.uid.clone().into();
        }
        if !a.user.extra.is_empty() {
            spec["extra"] = json!(a.user.extra);
        }
        if a.resource.is_empty() {
            spec["nonResourceAttributes"] = json!({"path": a.path, "verb": a.verb});
        } else {
            let fields = [
                ("namespace", &a.namespace),
                ("verb", &a.verb),
                ("group", &a.group),
                ("version", &a.version),
                ("resource", &a.resource),
                ("subresource", &a.subresource),
                ("name", &a.name),
            ];
            let present = fields.into_iter().filter(|(_, v)| !v.is_empty());
            spec["resourceAttributes"] =
                present.map(|(k, v)| (k.to_owned(), Value::from(v.clone()))).collect::<meta::Map<_, _>>().into();
            if let Some(f) = &a.fields {
                let requirement = |t: &meta::selector::FieldTerm| json!({"key": t.field, "operator": if t.equal { "In" } else { "NotIn" }, "values": [t.value]});
                spec["resourceAttributes"]["fieldSelector"] =
                    json!({"requirements": f.terms.iter().map(requirement).collect::<Vec<_>>()});
            }
            if let Some(l) = &a.labels {
                let requirements: Vec<Value> = l.requirements.iter().filter_map(requirement).collect();
                if !requirements.is_empty() {
                    spec["resourceAttributes"]["labelSelector"] = json!({"requirements": requirements});
                }
            }
        }
        json!({"apiVersion": format!("authorization.k8s.io/{}", self.version), "kind": "SubjectAccessReview", "spec": spec})
    }
}

/// Numeric comparisons cannot be expressed and are dropped.
fn requirement(r: &meta::selector::Requirement) -> Option<Value> {
    let operator = match r.operator {
        Operator::Equals | Operator::DoubleEquals | Operator::In => "In",
        Operator::NotEquals | Operator::NotIn => "NotIn",
        Operator::Exists => "Exists",
        Operator::DoesNotExist => "DoesNotExist",
        Operator::GreaterThan | Operator::LessThan => return None,
    };
    let mut v = json!({"key": r.key, "operator": operator});
    if !r.values.is_empty() {
        v["values"] = json!(r.values);
    }
    Some(v)
}
