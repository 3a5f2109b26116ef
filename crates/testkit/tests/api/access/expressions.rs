//! CEL expressions in authentication and authorization configurations, and reloading of these files.

use super::remote::Somebody;
use super::{holder, open};
use crate::authorization::as_user;
use auth::conditions::Conditions;
use auth::config::Authentication;
use auth::jwt::PrivateKey;
use auth::oidc::Oidc;
use auth::reloaded::{Deciding, Issuers};
use auth::union::Always;
use auth::webhook::{OnFailure, WebhookAuthorizer};
use auth::{Decision, TokenAuthenticator, User};
use http::Method;
use meta::Clock;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use testkit::{AUDIENCE, Access, Cluster, VirtualClock};

fn configuration(issuer: &Somebody, username: &str) -> String {
    json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "jwt": [{
        "issuer": {"url": issuer.url, "audiences": ["cluster"], "certificateAuthority": issuer.ca},
        "claimMappings": {"username": {"expression": username},
            "groups": {"expression": "claims.roles.split(',').map(r, 'team:' + r)"},
            "uid": {"expression": "string(claims.sub)"},
            "extra": [{"key": "example.org/tenant", "valueExpression": "claims.tenant"},
                {"key": "example.org/none", "valueExpression": "''"}]},
        "claimValidationRules": [{"expression": "claims.exp - claims.nbf <= 86400", "message": "too long a life"}],
        "userValidationRules": [{"expression": "!user.username.startsWith('system:')", "message": "reserved"},
            {"expression": "user.groups.all(g, g != 'team:banned')"}]}]})
    .to_string()
}

/// Clauses: C14.oidc
#[tokio::test]
async fn expressions_map_claims_to_users() {
    let (key, _) = PrivateKey::generate().unwrap();
    let url: Arc<Mutex<String>> = Arc::default();
    let (at, set) = (url.clone(), json!({"keys": [key.public().unwrap().to_jwk()]}));
    let issuer = Somebody::start(move |path, _| match path {
        "/keys" => Some(set.clone()),
        _ => Some(json!({"issuer": *at.lock(), "jwks_uri": format!("{}/keys", at.lock())})),
    })
    .await;
    url.lock().clone_from(&issuer.url);
    let clock = VirtualClock::new();
    let now = clock.now().as_second();
    let all = |text: &str| -> Vec<Arc<dyn TokenAuthenticator>> {
        let parsed = Authentication::parse(text).unwrap();
        let one = |i| -> Arc<dyn TokenAuthenticator> { Arc::new(Oidc::new(i, vec![AUDIENCE.into()], clock.clone())) };
        parsed.issuers.into_iter().map(one).collect()
    };
    let issuers = Arc::new(Issuers::default());
    issuers.replace(all(&configuration(&issuer, "'acme:' + claims.name")));
    let c = Cluster::with_access(1, Access { tokens: vec![issuers.clone()], ..Access::default() }).await;
    open(&c).await;
    let token = |change: Value| {
        let mut v = json!({"iss": issuer.url, "aud": ["cluster"], "exp": now + 3600, "nbf": now, "sub": 17, "name": "jane",
            "roles": "a,b", "tenant": ["x", "y"]});
        for (k, x) in change.as_object().into_iter().flatten() {
            v[k] = x.clone();
        }
        key.sign(&v).unwrap()
    };
    let (code, user) = holder(&c, &token(json!({}))).await;
    assert_eq!((code, &user["username"], &user["uid"]), (201, &json!("acme:jane"), &json!("17")), "{user}");
    let groups: Vec<&Value> = user["groups"].as_array().unwrap().iter().collect();
    assert!(groups.contains(&&json!("team:a")) && groups.contains(&&json!("team:b")), "{user}");
    assert_eq!(user["extra"]["example.org/tenant"], json!(["x", "y"]));
    assert_eq!(user["extra"].get("example.org/none"), None, "an empty text is nothing");
    let refused = [
        json!({"exp": now + 90_000}),
        json!({"roles": "banned"}),
        json!({"roles": 3}),
        json!({"name": null}),
        json!({"sub": null}),
    ];
    for change in refused {
        assert_eq!(holder(&c, &token(change.clone())).await.0, 401, "{change}");
    }

    // The file changes: what it says now holds, for tokens that were good before as well.
    issuers.replace(all(&configuration(&issuer, "claims.name")));
    assert_eq!(holder(&c, &token(json!({}))).await.1["username"], "jane");
    assert_eq!(holder(&c, &token(json!({"name": "system:admin"}))).await.0, 401, "reserved");
    issuers.replace(Vec::new());
    assert_eq!(holder(&c, &token(json!({}))).await.0, 401);
}

/// A webhook is asked of requests on which its conditions hold. Clauses: C14.authorization-webhook
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authorizer_is_called_where_its_conditions_hold() {
    let knows = Somebody::start(|_, _| Some(json!({"status": {"allowed": true}}))).await;
    let hook = |on_failure, expressions: &[&str]| {
        let list: Vec<Value> = expressions.iter().map(|e| json!({"expression": e})).collect();
        Arc::new(WebhookAuthorizer {
            remote: knows.remote("/may"),
            version: "v1beta1".into(),
            allowed_lasts: Duration::ZERO,
            refused_lasts: Duration::ZERO,
            on_failure,
            conditions: Arc::new(Conditions::read(&list).unwrap()),
            known: Default::default(),
        })
    };
    let pods = [
        "has(request.resourceAttributes)",
        "request.resourceAttributes.resource == 'pods' && request.resourceAttributes.name == ''",
    ];
    let deciding = Arc::new(Deciding::new(hook(OnFailure::NoOpinion, &pods)));
    let c = Cluster::with_access(1, Access { authorizer: Some(deciding.clone()), ..Access::default() }).await;
    let get =
        async |path: &str| as_user(&c, &User::new("jane", &["team"]), Method::GET, path, &[], Value::Null).await.0;
    let path = "/api/v1/namespaces/default/pods";
    assert_eq!(get(path).await, 200);
    assert_eq!(get(&format!("{path}/one")).await, 403, "it is not asked");
    assert_eq!(get("/api/v1/namespaces/default/secrets").await, 403);
    assert_eq!(get("/metrics").await, 403);
    assert_eq!(knows.heard.lock().len(), 1);

    let selected = "request.resourceAttributes.labelSelector.requirements.exists(r, r.key == 'a' && r.values == ['b'])";
    deciding.replace(hook(OnFailure::NoOpinion, &[selected, "'team' in request.groups && request.uid == ''"]));
    assert_eq!(get(&format!("{path}?labelSelector=a%3Db")).await, 200);
    assert_eq!(get(&format!("{path}?labelSelector=a%3Dc")).await, 403);
    // Without a selector the question has no answer, and the failure policy decides.
    assert_eq!(get(path).await, 403);
    assert_eq!(knows.heard.lock().len(), 2);
    deciding.replace(Arc::new(Always(Decision::Allow(String::new()))));
    assert_eq!(get("/api/v1/namespaces/default/secrets").await, 200, "who decides has changed");
}
