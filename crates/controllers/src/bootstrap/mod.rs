//! Bootstrap tokens of new nodes (upstream `pkg/controller/bootstrap`): the signer signs the ConfigMap `cluster-info` with them, so
//! that their holders can verify it; the cleaner deletes expired ones.

pub mod cleaner;
pub mod signer;

use crate::controller::Builder;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use client::{ApiResource, Entry, Informer, Scope};
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

    /// When it expires; none for never. One that cannot be parsed has expired.
    fn expires(&self) -> Option<Timestamp> {
        let text = self.text("expiration");
        (!text.is_empty()).then(|| text.parse().unwrap_or(Timestamp::MIN))
    }
}

fn watch_tokens(builder: &mut Builder) -> Informer<Token> {
    let scope = Scope {
        namespace: Some(NAMESPACE.into()),
        field_selector: "type=bootstrap.kubernetes.io/token".into(),
        ..Scope::default()
    };
    builder.watch_scope(&ApiResource::typed::<Secret>(), &scope)
}

/// The identifier and key of a token that may sign; none if it may not, or has expired.
fn signing_key(entry: &Entry<Token>, now: Timestamp) -> Option<(String, String)> {
    let t = &entry.view;
    let (id, secret) = (t.text("token-id"), t.text("token-secret"));
    let named = !id.is_empty() && *entry.meta.name == *format!("bootstrap-token-{id}");
    let good = named && !secret.is_empty() && t.text("usage-bootstrap-signing") == "true";
    (good && t.expires().is_none_or(|end| end > now) && !entry.meta.is_deleting()).then_some((id, secret))
}
