//! Service account tokens in secrets (`kubernetes.io/service-account-token`), which are valid until the secret is
//! deleted. Secrets record the day of last use, so that unused tokens can be removed.

use super::bound_objects::{BoundObjects, account_user};
use auth::User;
use meta::{Clock, Object, Value};
use registry::{AdmitAll, Registry, Request, Target, WriteOptions};
use serde_json::json;
use std::sync::Arc;

pub const ISSUER: &str = "kubernetes/serviceaccount";
const CLAIM: &str = "kubernetes.io/serviceaccount/";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

pub fn claims(account: &Object, secret: &Object) -> Value {
    json!({"iss": ISSUER, "sub": format!("system:serviceaccount:{}:{}", account.namespace(), account.name()),
        format!("{CLAIM}namespace"): account.namespace(), format!("{CLAIM}service-account.name"): account.name(),
        format!("{CLAIM}service-account.uid"): account.uid(), format!("{CLAIM}secret.name"): secret.name()})
}

fn text<'a>(claims: &'a Value, key: &str) -> &'a str {
    claims[format!("{CLAIM}{key}")].as_str().unwrap_or_default()
}

pub fn user(objects: &BoundObjects, claims: &Value, token: &str) -> Result<User, String> {
    let (namespace, name) = (text(claims, "namespace"), text(claims, "service-account.name"));
    let (uid, secret) = (text(claims, "service-account.uid"), text(claims, "secret.name"));
    if namespace.is_empty() || name.is_empty() || uid.is_empty() || secret.is_empty() {
        return Err("a claim is missing".into());
    }
    let sub = claims["sub"].as_str().unwrap_or_default();
    if sub != format!("system:serviceaccount:{namespace}:{name}") {
        return Err("sub claim is invalid".into());
    }
    let gone = || "service account token has been invalidated".to_owned();
    let (entry, kept) = objects.lookup("secrets", namespace, secret).ok_or_else(gone)?;
    let held = schema::base64_decode(&kept.token).unwrap_or_default();
    if held != token.as_bytes() {
        return Err("service account token does not match server's copy".into());
    }
    if let Some((_, since)) = entry.index().labels.iter().find(|(k, _)| **k == *INVALID_SINCE) {
        return Err(format!(
            "the token in secret {namespace}/{secret} for service account {namespace}/{name} has been marked invalid since {since}"
        ));
    }
    objects.check_account(namespace, name, uid)?;
    Ok(account_user(namespace, name, uid))
}

/// Records the use of a token in its secret, once a day and in the background.
pub fn record_use(registry: Option<Arc<Registry>>, clock: &dyn Clock, claims: &Value) {
    let Some(registry) = registry else { return };
    let (namespace, name) = (text(claims, "namespace").to_owned(), text(claims, "secret.name").to_owned());
    let day = clock.now().strftime("%Y-%m-%d").to_string();
    let rows = registry.rows();
    let Some(row) = rows.stored("", "secrets").cloned() else { return };
    let entry = row.key(&namespace, &name).and_then(|k| registry.store.snapshot().get(&k));
    let noted = |e: &store::Entry| e.index().labels.iter().any(|(k, v)| **k == *LAST_USED && **v == *day);
    if entry.is_none_or(|e| noted(&e)) {
        return;
    }
    tokio::spawn(async move {
        let request = Request::own(row, "", &namespace, &name);
        let change = |live: Option<&Object>, _: &_| {
            let mut o = live.cloned().unwrap_or_default();
            o.set_label(LAST_USED, &day);
            Ok(Target::object(o))
        };
        let options = WriteOptions::by("kube-apiserver");
        if let Err(s) = registry.update(&request, &change, &Default::default(), &options, &AdmitAll).await {
            tracing::debug!("noting that a token was used: {}", s.message);
        }
    });
}
