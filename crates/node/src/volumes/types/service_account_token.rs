//! `serviceAccountToken`, a source of projected volumes: a token of the pod's service account, renewed before it expires.

use k8s_openapi::api::core::v1 as api;

use crate::volumes::Error;
use crate::volumes::files::{FileSet, FileSource};

pub(super) struct ServiceAccountToken {
    source: api::ServiceAccountTokenProjection,
    mode: i32,
}

impl ServiceAccountToken {
    pub fn from_projection(source: &api::VolumeProjection, mode: i32) -> Option<Self> {
        Some(Self { source: source.service_account_token.clone()?, mode })
    }
}

#[async_trait::async_trait]
impl FileSource for ServiceAccountToken {
    async fn add_files(&self, files: &mut FileSet<'_>) -> Result<(), Error> {
        let api::ServiceAccountTokenProjection { audience, expiration_seconds, path } = &self.source;
        files.check_path(path)?;
        let context = files.context;
        let token = context.tokens.token(context.pod, audience.as_deref(), *expiration_seconds).await?;
        // Only its owner may read a token: the user of all containers, and the group of the pod's volumes.
        let is_owned = context.group.is_some() || context.user.is_some();
        let mode = if is_owned { 0o600 } else { self.mode };
        files.add_owned(path, token, mode, context.user)
    }
}
