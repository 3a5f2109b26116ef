//! External authentication and authorization: OpenID Connect, webhooks, policy files.

use super::remote::{Reply, Somebody};
use super::{holder, open};
use crate::authorization::as_user;
use auth::jwt::PrivateKey;
use auth::oidc::{ALGORITHMS, Issuer, Mapping, Oidc};
use auth::webhook::{OnFailure, WebhookAuthorizer, WebhookTokens};
use auth::{TokenAuthenticator, User};
use http::Method;
use meta::Clock;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use testkit::{AUDIENCE, Access, Cluster, VirtualClock};

/// Clauses: C14.oidc
#[tokio::test]
async fn openid_connect_tokens_authenticate() {
    let (key, _) = PrivateKey::generate().unwrap();
    let (next, _) = PrivateKey::generate().unwrap();
    let url: Arc<Mutex<String>> = Arc::default();
    let keys: Arc<Mutex<Value>> = Arc::new(Mutex::new(json!({"keys": [key.public().unwrap().to_jwk()]})));
    let (at, set) = (url.clone(), keys.clone());
    let issuer = Somebody::start(move |path, _| match path {
        "/.well-known/openid-configuration" => {
            let at = at.lock().clone();
            Some(json!({"issuer": at, "jwks_uri": format!("{at}/keys")}))
        }
        "/keys" => Some(set.lock().clone()),
        _ => None,
    })
    .await;
    *url.lock() = issuer.url.clone();
    let trusted = Issuer {
        url: issuer.url.clone(),
        ca: issuer.ca.clone(),
        audiences: vec!["cluster".into()],
        algorithms: ALGORITHMS.map(str::to_owned).to_vec(),
        username: Mapping { claim: "email".into(), prefix: "oidc:".into() },
        groups: Some(Mapping { claim: "groups".into(), prefix: "g:".into() }),
        required: vec![("hd".into(), "acme".into())],
        ..Issuer::default()
    };
    let clock = VirtualClock::new();
    let now = clock.now().as_second();
    let tokens: Vec<Arc<dyn TokenAuthenticator>> = vec![Arc::new(Oidc::new(trusted, vec![AUDIENCE.into()], clock))];
    let c = Cluster::with_access(1, Access { tokens, ..Access::default() }).await;
    open(&c).await;
    let claims = |change: Value| {
        let mut v = json!({"iss": issuer.url, "aud": ["cluster"], "exp": now + 3600, "sub": "1", "email": "jane@acme",
            "email_verified": true, "groups": ["a", "b"], "hd": "acme", "jti": "7"});
        for (k, x) in change.as_object().into_iter().flatten() {
            v[k] = x.clone();
        }
        v
    };
    let (code, user) = holder(&c, &key.sign(&claims(json!({}))).unwrap()).await;
    assert_eq!((code, &user["username"]), (201, &json!("oidc:jane@acme")));
    assert_eq!(user["groups"], json!(["g:a", "g:b", "system:authenticated"]));
    assert_eq!(user["extra"]["authentication.kubernetes.io/credential-id"], json!(["JTI=7"]));
    for bad in [
        json!({"aud": "other"}),
        json!({"exp": now - 10}),
        json!({"exp": null}),
        json!({"nbf": now + 3600}),
        json!({"email_verified": false}),
        json!({"email": null}),
        json!({"hd": "other"}),
        json!({"iss": "https://other"}),
    ] {
        assert_eq!(holder(&c, &key.sign(&claims(bad.clone())).unwrap()).await.0, 401, "{bad}");
    }
    assert_eq!(holder(&c, &next.sign(&claims(json!({}))).unwrap()).await.0, 401, "signed by nobody we know");
}

/// An issuer that takes connections and says nothing keeps nobody out whose key is known: who comes with an unknown key waits alone.
#[tokio::test]
async fn an_issuer_that_hangs_keeps_out_only_unknown_keys() {
    let (key, _) = PrivateKey::generate().unwrap();
    let (next, _) = PrivateKey::generate().unwrap();
    let url: Arc<Mutex<String>> = Arc::default();
    let (at, set) = (url.clone(), json!({"keys": [key.public().unwrap().to_jwk()]}));
    let hangs = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let hung = hangs.clone();
    let issuer = Somebody::replying(move |path, _| {
        let at = at.lock().clone();
        let answer = match path {
            "/keys" => set.clone(),
            _ => json!({"issuer": at, "jwks_uri": format!("{at}/keys")}),
        };
        match hung.load(std::sync::atomic::Ordering::Relaxed) {
            true => Reply::Never,
            false => Reply::Document(answer),
        }
    })
    .await;
    *url.lock() = issuer.url.clone();
    let trusted = Issuer {
        url: issuer.url.clone(),
        ca: issuer.ca.clone(),
        audiences: vec!["cluster".into()],
        algorithms: ALGORITHMS.map(str::to_owned).to_vec(),
        username: Mapping { claim: "sub".into(), prefix: String::new() },
        ..Issuer::default()
    };
    let clock = VirtualClock::new();
    let now = clock.now().as_second();
    let oidc = Arc::new(Oidc::new(trusted, vec![AUDIENCE.into()], clock));
    let token = |key: &PrivateKey| {
        key.sign(&json!({"iss": issuer.url, "aud": ["cluster"], "exp": now + 3600, "sub": "jane"})).unwrap()
    };
    let (known, unknown) = (token(&key), token(&next));
    assert!(oidc.authenticate(&known, &[AUDIENCE.into()]).await.unwrap().is_some());
    hangs.store(true, std::sync::atomic::Ordering::Relaxed);
    let later = async |seconds: u64| {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(seconds)).await;
        tokio::time::resume();
    };
    // The issuer may be asked again after a short while, and is.
    later(11).await;
    let waiting = oidc.clone();
    let waiting = tokio::spawn(async move { waiting.authenticate(&unknown, &[AUDIENCE.into()]).await });
    let asked = issuer.heard.clone();
    let heard = || asked.lock().len();
    while heard() < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let soon = Duration::from_secs(3);
    for _ in 0..3 {
        let answer = tokio::time::timeout(soon, oidc.authenticate(&known, &[AUDIENCE.into()])).await;
        assert!(answer.expect("it does not wait for the issuer").unwrap().is_some());
    }
    assert!(!waiting.is_finished(), "the unknown key waits for the issuer");
    waiting.abort();
}

/// Clauses: C14.token-webhook
#[tokio::test]
async fn a_token_webhook_authenticates() {
    let knows = Somebody::start(|_, v| match v["spec"]["token"].as_str() {
        Some("good") => Some(json!({"status": {"authenticated": true,
            "user": {"username": "jane", "uid": "1", "groups": ["team"], "extra": {"a": ["b"]}}}})),
        Some("for-others") => {
            Some(json!({"status": {"authenticated": true, "audiences": ["vault"], "user": {"username": "x"}}}))
        }
        Some("broken") => None,
        _ => Some(json!({"status": {"authenticated": false}})),
    })
    .await;
    let hook = WebhookTokens {
        remote: knows.remote("/who"),
        version: "v1".into(),
        lasts: Duration::from_secs(60),
        audiences: vec![AUDIENCE.into()],
        known: Default::default(),
    };
    let c = Cluster::with_access(1, Access { tokens: vec![Arc::new(hook)], ..Access::default() }).await;
    open(&c).await;
    for _ in 0..2 {
        let (code, user) = holder(&c, "good").await;
        let expect =
            json!({"username": "jane", "uid": "1", "groups": ["team", "system:authenticated"], "extra": {"a": ["b"]}});
        assert_eq!((code, user), (201, expect));
    }
    assert_eq!(knows.heard.lock().len(), 1, "it is asked once");
    assert_eq!(knows.heard.lock()[0]["spec"]["audiences"], json!([AUDIENCE]));
    for bad in ["bad", "for-others", "broken"] {
        assert_eq!(holder(&c, bad).await.0, 401, "{bad}");
    }
}

fn decides(from: &Somebody, on_failure: OnFailure) -> Access {
    let hook = WebhookAuthorizer {
        remote: from.remote("/may"),
        version: "v1".into(),
        allowed_lasts: Duration::from_secs(60),
        refused_lasts: Duration::from_secs(60),
        on_failure,
        conditions: Default::default(),
        known: Default::default(),
    };
    Access { authorizer: Some(Arc::new(hook)), ..Access::default() }
}

/// Clauses: C14.authorization-webhook
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authorization_webhook_decides() {
    let knows = Somebody::start(|_, v| {
        let of = &v["spec"];
        let resource = of["resourceAttributes"]["resource"].as_str();
        Some(match (of["user"].as_str(), resource) {
            (Some("jane"), Some("secrets")) => json!({"status": {"allowed": false, "denied": true, "reason": "never"}}),
            (Some("jane"), _) => json!({"status": {"allowed": true}}),
            (Some("broken"), _) => return None,
            _ => json!({"status": {"allowed": false, "reason": "who knows"}}),
        })
    })
    .await;
    let c = Cluster::with_access(1, decides(&knows, OnFailure::NoOpinion)).await;
    let get = async |user: &str, path: &str| {
        as_user(&c, &User::new(user, &["team"]), Method::GET, path, &[], Value::Null).await
    };
    let pods = "/api/v1/namespaces/default/pods?fieldSelector=spec.nodeName%3Dn&labelSelector=a+in+(b,c)";
    for _ in 0..2 {
        assert_eq!(get("jane", pods).await.0, 200);
    }
    let heard = knows.heard.lock().clone();
    assert_eq!(heard.len(), 1, "it is asked once");
    assert_eq!((&heard[0]["kind"], &heard[0]["spec"]["user"]), (&json!("SubjectAccessReview"), &json!("jane")));
    let expect = json!({"namespace": "default", "verb": "list", "version": "v1", "resource": "pods",
        "fieldSelector": {"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n"]}]},
        "labelSelector": {"requirements": [{"key": "a", "operator": "In", "values": ["b", "c"]}]}});
    assert_eq!(heard[0]["spec"]["resourceAttributes"], expect);
    let (code, body) = get("jane", "/api/v1/namespaces/default/secrets").await;
    assert_eq!(code, 403);
    assert!(body["message"].as_str().unwrap().ends_with(": never"), "{body}");
    let (code, body) = get("joe", pods).await;
    assert!(code == 403 && body["message"].as_str().unwrap().ends_with(": who knows"), "{body}");
    assert_eq!(get("broken", pods).await.0, 403);
    assert_eq!(c.call("GET", "/version", Value::Null).await.code, 200, "the owners of the cluster are not asked about");
    let (_, v) = as_user(&c, &User::new("jane", &[]), Method::GET, "/version", &[], Value::Null).await;
    assert!(v["major"].is_string());
    assert_eq!(
        knows.heard.lock().last().unwrap()["spec"]["nonResourceAttributes"],
        json!({"path": "/version", "verb": "get"})
    );
    // Also where one cannot wait: who may grant what they do not hold.
    let role =
        json!({"metadata": {"name": "r"}, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]});
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
    assert_eq!(as_user(&c, &User::new("jane", &[]), Method::POST, roles, &[], role).await.0, 201);
    assert!(knows.heard.lock().iter().any(|v| v["spec"]["resourceAttributes"]["verb"] == "escalate"));
}

/// A file of policies decides, also about what somebody may see of his own rules. Clauses: C14.abac
#[tokio::test]
async fn abac_policies_decide() {
    let v1beta1 = |spec: Value| {
        json!({"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": spec}).to_string()
    };
    let file = [
        v1beta1(json!({"user": "bob", "namespace": "default", "resource": "configmaps", "readonly": true})),
        v1beta1(json!({"group": "writers", "namespace": "*", "resource": "*", "apiGroup": "*"})),
        v1beta1(json!({"user": "*", "nonResourcePath": "/version"})),
    ];
    let policies = auth::abac::Policies::parse(&file.join("\n")).unwrap();
    let c = Cluster::with_access(1, Access { authorizer: Some(Arc::new(policies)), ..Access::default() }).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let (bob, writer) = (User::new("bob", &[]), User::new("ann", &["writers"]));
    let map = || json!({"metadata": {"name": "m"}});
    let ask =
        async |who: &User, method: Method, path: &str, body: Value| as_user(&c, who, method, path, &[], body).await.0;
    assert_eq!(ask(&bob, Method::GET, maps, Value::Null).await, 200);
    assert_eq!(ask(&bob, Method::POST, maps, map()).await, 403, "reading only");
    assert_eq!(ask(&bob, Method::GET, "/api/v1/namespaces/golden/configmaps", Value::Null).await, 403);
    assert_eq!(ask(&bob, Method::GET, "/version", Value::Null).await, 200);
    assert_eq!(ask(&bob, Method::GET, "/metrics", Value::Null).await, 403);
    assert_eq!(ask(&writer, Method::POST, maps, map()).await, 201);
    assert_eq!(
        ask(&writer, Method::DELETE, "/apis/apps/v1/namespaces/golden/deployments/none", Value::Null).await,
        404
    );
    let review = json!({"spec": {"namespace": "default"}});
    let reviews = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let (code, rules) = as_user(&c, &bob, Method::POST, reviews, &[], review).await;
    assert_eq!(code, 403, "which no policy allows: {rules}");
}
