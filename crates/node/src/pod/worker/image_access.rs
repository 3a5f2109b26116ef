//! Who may use an image that is present (kubelet `images/pullmanager`).
//!
//! **Invariant.** A pod uses an image that was pulled with the secrets of another pod only if it has a secret with the same credentials, or
//! the same secret; otherwise its registry decides again. Which images are verified at all, the configuration says: by default, not those that an
//! administrator imported or pulled.

use client::Severity;
use distribution::{Credentials, Reference};
use runtime::image::{Access, Error, Image, PullError, Pulled};

use super::Worker;
use crate::options::Options;
use crate::pod::keyring::{self, Keyring, PullCredentials};
use crate::pod::spec::text;

impl Worker {
    /// Finds an image that the pod may use by the name of its repository. One that it may not use is not found, so that its presence stays
    /// secret.
    pub(super) async fn find_usable_image(&self, image: &str, reference: &Reference) -> Result<Image, Error> {
        let found = self.find_image(image).await?;
        if self.may_use(image, &found, reference).await { Ok(found) } else { Err(Error::NotFound(image.to_owned())) }
    }

    async fn may_use(&self, name: &str, image: &Image, reference: &Reference) -> bool {
        let recorded = image.access.as_ref();
        if !self.shared.verification.is_needed(name, recorded.is_some()) {
            return true;
        }
        let Some(access) = recorded.and_then(|all| all.get(&reference.full_repository())) else { return false };
        if access.every_pod {
            return true;
        }
        let credentials = if access.is_restricted() { self.pull_credentials(reference).await } else { Vec::new() };
        let Some(source) = access.matching(credentials.iter().map(|c| &c.source)) else { return false };
        if !access.has(source) {
            record(&self.shared.options, image, reference, Access::with(source.clone())).await;
        }
        true
    }

    /// The credentials of the pod's secrets for a repository, then those of credential providers.
    pub(super) async fn pull_credentials(&self, reference: &Reference) -> Vec<PullCredentials> {
        let (mut keyring, mut missing) = (Keyring::default(), Vec::new());
        let namespace = text(&self.pod.metadata.namespace);
        for name in keyring::names(&self.pod) {
            match self.shared.objects.secret(namespace, name).await {
                Ok(Some(secret)) => {
                    if let Err(error) = keyring.add(&secret) {
                        tracing::warn!(pod = %self.name(), secret = name, error, "the pull secret cannot be decoded");
                    }
                }
                Ok(None) | Err(_) => missing.push(name),
            }
        }
        if !missing.is_empty() {
            let message = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                missing.join(", ")
            );
            self.event(None, Severity::Warning, "FailedToRetrieveImagePullSecret", message);
        }
        let repository = reference.full_repository();
        let mut all = keyring.find(&repository);
        all.extend(self.shared.credential_providers.find(&self.pod, &repository).await);
        all
    }
}

/// Pulls an image for a pod of a namespace, and records who may use it.
pub(super) async fn pull(
    options: &Options,
    namespace: &str,
    image: &str,
    credentials: &[PullCredentials],
) -> Result<Pulled, PullError> {
    let plain: Vec<Credentials> = credentials.iter().map(|c| c.credentials.clone()).collect();
    let pulled = options.images.pull(namespace, image, &plain).await?;
    let access = match &pulled.credentials {
        None => Access::for_every_pod(),
        Some(used) => {
            let source = credentials.iter().find(|c| c.credentials == *used).map(|c| c.source.clone());
            source.map(Access::with).unwrap_or_default()
        }
    };
    if let Ok(reference) = Reference::parse(image) {
        record(options, &pulled.image, &reference, access).await;
    }
    Ok(pulled)
}

/// Records who may use an image. Without the record, the registry is asked again.
async fn record(options: &Options, image: &Image, reference: &Reference, access: Access) {
    let recorded = options.images.record_access(&image.id, &reference.full_repository(), access).await;
    if let Err(error) = recorded {
        tracing::warn!(image = %reference, %error, "recording who may use an image failed; its registry is asked again for each pod");
    }
}
