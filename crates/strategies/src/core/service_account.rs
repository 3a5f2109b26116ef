//! ServiceAccount and its `token` subresource.

use crate::Config;
use crate::authentication::service_account::ServiceAccountTokens;
use crate::authentication::token_request::TokenRequest;
use crate::table::Row;
use meta::Object;
use registry::{CreateStrategy, Sub, Subresources};
use std::sync::Arc;

pub fn row(config: &Config) -> Row {
    Row::stored(ServiceAccount(config.accounts.clone()))
}

pub struct ServiceAccount(pub Arc<ServiceAccountTokens>);

const MOUNTABLE: &str = "kubernetes.io/enforce-mountable-secrets";

impl CreateStrategy for ServiceAccount {
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

impl Subresources for ServiceAccount {
    fn subresource(&self, name: &str) -> Option<Sub> {
        (name == "token").then(|| Sub::Function(Arc::new(TokenRequest(self.0.clone()))))
    }
}

registry::strategy!(ServiceAccount: CreateStrategy, Subresources);
