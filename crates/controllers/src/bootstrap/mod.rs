//! Tokens that new nodes begin with (upstream `pkg/controller/bootstrap`): the signer lets whoever has one believe the ConfigMap
//! `cluster-info`, and the cleaner removes those that have ended.

pub mod cleaner;
pub mod signer;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use client::{ApiResource, Entry, Informer, Informers, Scope};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use serde::Deserialize;
use std::collections::BTreeMap;

const NAMESPACE: &str = "kube-system";

/// A secret of the type `bootstrap.kubernetes.io/token`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Token {
    #[serde(deserialize_with = "client::informer::or_default")]
    data: BTreeMap<String, String>,
}

impl Token {
    fn text(&self, key: &str) -> String {
        let bytes = self.data.get(key).and_then(|v| STANDARD.decode(v).ok());
        bytes.and_then(|b| String::from_utf8(b).ok()).unwrap_or_default()
    }

    /// When it ends; none for never. What cannot be read has ended.
    fn ends(&self) -> Option<Timestamp> {
        let text = self.text("expiration");
        (!text.is_empty()).then(|| text.parse().unwrap_or(Timestamp::MIN))
    }
}

fn tokens(informers: &Informers) -> Informer<Token> {
    let scope = Scope {
        namespace: Some(NAMESPACE.into()),
        field_selector: "type=bootstrap.kubernetes.io/token".into(),
        ..Scope::default()
    };
    informers.informer(&ApiResource::of::<Secret>(), &scope)
}

/// What the token of a secret signs with, under its identifier; none for one that may not sign, or not any more.
fn signing(entry: &Entry<Token>, now: Timestamp) -> Option<(String, String)> {
    let t = &entry.view;
    let (id, secret) = (t.text("token-id"), t.text("token-secret"));
    let named = !id.is_empty() && *entry.meta.name == *format!("bootstrap-token-{id}");
    let good = named && !secret.is_empty() && t.text("usage-bootstrap-signing") == "true";
    (good && t.ends().is_none_or(|end| end > now) && !entry.meta.is_deleting()).then_some((id, secret))
}
