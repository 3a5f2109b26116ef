//! ServiceAccount and its `token` subresource.

use crate::Config;
use crate::authentication::service_account::ServiceAccountTokens;
use crate::authentication::token_request::TokenRequest;
use crate::table::Row;
use meta::{Object, Value};
use registry::{CreateStrategy, Env, Request, Sub, Subresources, UpdateStrategy};
use std::sync::Arc;

pub fn row(config: &Config) -> Row {
    Row::stored(ServiceAccount(config.accounts.clone()))
}

pub struct ServiceAccount(pub Arc<ServiceAccountTokens>);

const MOUNTABLE: &str = "kubernetes.io/enforce-mountable-secrets";

impl CreateStrategy for ServiceAccount {
    fn prepare_for_create(&self, _env: Env<'_>, _request: &Request, o: &mut Object) {
        keep_names_of_secrets(o);
    }

    fn warnings(&self, o: &Object, old: Option<&Object>) -> Vec<String> {
        let has_annotation = |o: &Object| o.annotation(MOUNTABLE).is_some();
        if !has_annotation(o) || old.is_some_and(has_annotation) {
            return Vec::new();
        }
        vec![format!(
            "metadata.annotations[{MOUNTABLE}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"
        )]
    }
}

impl UpdateStrategy for ServiceAccount {
    fn prepare_for_update(&self, _env: Env<'_>, _request: &Request, o: &mut Object, _old: &Object) {
        keep_names_of_secrets(o);
    }
}

/// References to secrets are names only (upstream `cleanSecretReferences`).
fn keep_names_of_secrets(o: &mut Object) {
    let Some(Value::Array(secrets)) = o.0.get_mut("secrets") else { return };
    for m in secrets.iter_mut().filter_map(Value::as_object_mut) {
        m.retain(|k, _| k == "name");
    }
}

impl Subresources for ServiceAccount {
    fn subresource(&self, name: &str) -> Option<Sub> {
        (name == "token").then(|| Sub::Function(Arc::new(TokenRequest(self.0.clone()))))
    }
}

registry::strategy!(ServiceAccount: CreateStrategy, UpdateStrategy, Subresources);
