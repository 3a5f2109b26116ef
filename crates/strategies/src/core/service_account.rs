//! ServiceAccount and its `token` subresource.

use crate::authentication::TokenRequest;
use crate::authentication::service_account::ServiceAccountTokens;
use registry::{Strategy, Sub};
use std::sync::Arc;

pub struct ServiceAccount(pub Arc<ServiceAccountTokens>);

impl Strategy for ServiceAccount {
    fn returns_deleted_object(&self) -> bool {
        true
    }

    fn subresource(&self, name: &str) -> Option<Sub> {
        (name == "token").then(|| Sub::Function(Arc::new(TokenRequest(self.0.clone()))))
    }
}
