//! Signs the ConfigMap `cluster-info` in `kube-public`, which has the address and CA of the cluster. It has one signature (a detached
//! JWS) for each signing token, with which the holder of the token verifies it.

use super::{Token, signing_key, watch_tokens};
use crate::context::{Context, Error};
use crate::controller::{Builder, Reconcile};
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as B64;
use client::{ApiResource, Informer, Key, Outcome, Scope, WriteOptions};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use meta::Object;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const NAMESPACE: &str = "kube-public";
const NAME: &str = "cluster-info";
const SIGNED: &str = "kubeconfig";
const SIGNATURE: &str = "jws-kubeconfig-";

struct Controller {
    context: Context,
    info: Informer<()>,
    tokens: Informer<Token>,
}

/// Runs until shutdown.
pub async fn run(context: Context) {
    let mut builder = Builder::new(&context);
    let scope = Scope {
        namespace: Some(NAMESPACE.into()),
        field_selector: format!("metadata.name={NAME}"),
        ..Scope::default()
    };
    let info = builder.watch_scope::<()>(&ApiResource::typed::<ConfigMap>(), &scope);
    let tokens = watch_tokens(&mut builder);
    // Any change concerns all signatures.
    builder.on_change(&info, |_, queue| queue.add(Key::new(NAMESPACE, NAME)));
    builder.on_change(&tokens, |_, queue| queue.add(Key::new(NAMESPACE, NAME)));
    builder.run(1, Arc::new(Controller { info, tokens, context })).await;
}

impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(entry) = self.info.get(&key) else { return Ok(Outcome::Done) };
        let now = self.context.now();
        let all: Vec<_> = self.tokens.cache().entries().cloned().collect();
        let keys: BTreeMap<String, String> = all.iter().filter_map(|t| signing_key(t, now)).collect();
        let resource = ApiResource::typed::<ConfigMap>();
        let mut o = crate::context::object(&resource, &entry)?;
        if sign(&mut o, &keys) {
            let api = self.context.client.dynamic(&resource).namespace(NAMESPACE);
            api.update(NAME, &WriteOptions::default(), &o).await?;
        }
        // The signature of a token is removed when the token expires.
        let ends = all.iter().filter_map(|t| t.view.expires()).filter(|end| *end > now).min();
        Ok(ends.and_then(|end| until(end, now)).map_or(Outcome::Done, Outcome::After))
    }
}

fn until(end: Timestamp, now: Timestamp) -> Option<Duration> {
    Duration::try_from(end.duration_since(now)).ok()
}

/// Updates the signatures; returns whether any changed.
fn sign(o: &mut Object, keys: &BTreeMap<String, String>) -> bool {
    let Some(data) = o.get("data").and_then(Value::as_object).cloned() else { return false };
    let Some(content) = data.get(SIGNED).and_then(Value::as_str) else { return false };
    let mut new = data.clone();
    new.retain(|k, _| !k.starts_with(SIGNATURE));
    for (id, secret) in keys {
        new.insert(format!("{SIGNATURE}{id}"), signature(content, id, secret).into());
    }
    let changed = new != data;
    o.set(&["data"], Value::Object(new));
    changed
}

/// A detached JWS (HS256).
fn signature(content: &str, id: &str, secret: &str) -> String {
    let header = B64.encode(format!(r#"{{"alg":"HS256","kid":{}}}"#, Value::from(id)));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let tag = hmac::sign(&key, format!("{header}.{}", B64.encode(content)).as_bytes());
    format!("{header}..{}", B64.encode(tag))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_token_signs_and_old_signatures_are_removed() {
        // Known answer: upstream's signature of an empty text.
        let known = "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..7Ui1ALizW4jXphVUB7xUqC9vLYLL9RZeOFfVLoB7Tgk";
        assert_eq!(signature("", "joshua", "my voice is my passcode"), known);
        let mut o = Object::from_value(json!({"metadata": {"name": "cluster-info"},
            "data": {"kubeconfig": "k", "jws-kubeconfig-old": "x", "other": "y"}}))
        .unwrap();
        let keys = BTreeMap::from([("abcdef".to_owned(), "secret".to_owned())]);
        assert!(sign(&mut o, &keys));
        let data = o.get("data").and_then(Value::as_object).unwrap();
        assert_eq!(
            data.keys().map(String::as_str).collect::<Vec<_>>(),
            ["jws-kubeconfig-abcdef", "kubeconfig", "other"]
        );
        assert!(!sign(&mut o.clone(), &keys), "nothing to do");
        let mut none = Object::from_value(json!({"metadata": {}, "data": {"a": "b"}})).unwrap();
        assert!(!sign(&mut none, &keys));
    }
}
