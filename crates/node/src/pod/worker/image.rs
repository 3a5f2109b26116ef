//! Images of containers: presence, pull policies, pulls and their back-off (kubelet `images/image_manager.go`).

use std::sync::Arc;

use client::Severity;
use distribution::Reference;
use k8s_openapi::api::core::v1::Container as Spec;
use runtime::image::{BUILTIN_REGISTRY, Error, Image, normalize};

use super::{Worker, image_access};
use crate::pod::backoff::go_milliseconds;
use crate::pod::holds::SYNC_RETRY;
use crate::pod::keyring::PullCredentials;
use crate::pod::pulls::{Failure, Outcome, Pulled};
use crate::pod::spec::text;
use crate::pod::status::Waiting;
use crate::volumes;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Always,
    IfNotPresent,
    Never,
}

/// The pull policy of an image. The default depends on the tag. The built-in image is in no registry.
fn policy(requested: Option<&str>, reference: &Reference) -> Policy {
    if reference.registry == BUILTIN_REGISTRY {
        return Policy::Never;
    }
    match requested {
        Some("Always") => Policy::Always,
        Some("Never") => Policy::Never,
        None if reference.to_string().ends_with(":latest") => Policy::Always,
        _ => Policy::IfNotPresent,
    }
}

/// An image that a container needs.
#[derive(Clone, Copy)]
struct Need<'a> {
    /// The name of the container.
    container: &'a str,
    /// The image volume that the container mounts; `None` for its own image.
    volume: Option<&'a str>,
    image: &'a str,
    policy: Option<&'a str>,
}

impl Need<'_> {
    /// The key of its pull.
    fn key(&self) -> String {
        match self.volume {
            Some(volume) => format!("{}/{volume}", self.container),
            None => self.container.to_owned(),
        }
    }
}

impl Worker {
    /// Ensures that the images of a container and of its volumes are present as their policies require, and returns the user of its
    /// own. `None` if one is being pulled, or is not available, which is reported.
    pub(super) async fn images(&mut self, spec: &Spec) -> Option<String> {
        let (pod, container) = (self.pod.clone(), spec.name.as_str());
        for (volume, source) in volumes::images(&pod, spec) {
            let (image, policy) = (text(&source.reference), source.pull_policy.as_deref());
            self.image(Need { container, volume: Some(volume), image, policy }).await?;
        }
        let (image, policy) = (text(&spec.image), spec.image_pull_policy.as_deref());
        self.image(Need { container, volume: None, image, policy }).await
    }

    /// Ensures that one image is present. While the container waits for others, it is not pulled again.
    async fn image(&mut self, need: Need<'_>) -> Option<String> {
        if let Some(user) = self.pulls.ready(&need.key(), need.image) {
            return Some(user);
        }
        let user = self.ensure_image(need).await?;
        self.pulls.set_ready(need.key(), need.image, &user);
        Some(user)
    }

    async fn ensure_image(&mut self, need: Need<'_>) -> Option<String> {
        let (name, image) = (need.container, need.image.to_owned());
        let (key, subject) = (need.key(), need.volume.is_none().then_some(name));
        let reference = match Reference::parse(&image) {
            Ok(reference) => reference,
            Err(error) => {
                let problem = match normalize(&image) {
                    Err(Error::Name { message, .. }) => format!("couldn't parse image name \"{image}\": {message}"),
                    _ => error.to_string(),
                };
                let message = format!("Failed to apply default image tag \"{image}\": {problem}");
                self.event(subject, Severity::Warning, "InspectFailed", message.clone());
                self.refuse_image(name, "InvalidImageName", message);
                return None;
            }
        };
        if let Some(outcome) = self.pulls.outcome(&key, &image) {
            return self.pulled(need, outcome);
        }
        let policy = policy(need.policy, &reference);
        if policy != Policy::Always {
            match self.find_usable_image(&image, &reference).await {
                Ok(found) => {
                    let message = format!(
                        "Container image \"{image}\" already present on machine and can be accessed by the pod"
                    );
                    self.event(subject, Severity::Normal, "Pulled", message);
                    self.pulls.forget(&key, &image);
                    return Some(found.config.user);
                }
                Err(Error::NotFound(_)) if policy == Policy::Never => {
                    let message = format!("Container image \"{image}\" is not present with pull policy of Never");
                    self.event(subject, Severity::Warning, "ErrImageNeverPull", message.clone());
                    self.refuse_image(name, "ErrImageNeverPull", message);
                    return None;
                }
                Err(Error::NotFound(_)) => {}
                Err(error) => {
                    let message = format!("Failed to inspect image \"{image}\": {error}");
                    self.event(subject, Severity::Warning, "InspectFailed", message.clone());
                    self.refuse_image(name, "ImageInspectError", message);
                    return None;
                }
            }
        }
        self.pull(need, &reference).await;
        None
    }

    pub(super) async fn find_image(&self, image: &str) -> Result<Image, Error> {
        self.shared.options.images.find(image).await
    }

    /// Reports the outcome of a pull. Returns the user of a pulled image.
    fn pulled(&mut self, need: Need<'_>, outcome: Outcome) -> Option<String> {
        let (name, image) = (need.container, need.image);
        let subject = need.volume.is_none().then_some(name);
        match outcome {
            Outcome::Running => None,
            Outcome::Ended(Ok(Pulled { user, size, duration, total })) => {
                let message = format!(
                    "Successfully pulled image \"{image}\" in {} ({} including waiting). Image size: {size} bytes.",
                    go_milliseconds(duration),
                    go_milliseconds(total)
                );
                self.event(subject, Severity::Normal, "Pulled", message);
                self.pulls.forget(&need.key(), image);
                Some(user)
            }
            Outcome::Ended(Err(failure)) => {
                self.event(subject, Severity::Warning, "Failed", failure.event(image));
                let (reason, message) = failure.waiting(image);
                self.pulls.failed(image, &format!("{reason}: {message}"), self.now());
                self.wait_for_image(name, image, reason, message, true);
                None
            }
        }
    }

    /// Starts a pull, unless it backs off.
    async fn pull(&mut self, need: Need<'_>, reference: &Reference) {
        let (name, image) = (need.container, need.image);
        let subject = need.volume.is_none().then_some(name);
        if let Some(failure) = self.pulls.backs_off(image, self.now()) {
            let message = format!("Back-off pulling image \"{image}\"");
            let details = format!("{message}: {failure}");
            self.event(subject, Severity::Normal, "BackOff", message);
            self.wait_for_image(name, image, "ImagePullBackOff", details, false);
            return;
        }
        let credentials = self.pull_credentials(reference).await;
        self.event(subject, Severity::Normal, "Pulling", format!("Pulling image \"{image}\""));
        self.begin_pull(&need.key(), image, credentials);
    }

    fn begin_pull(&mut self, key: &str, image: &str, credentials: Vec<PullCredentials>) {
        let (options, full, wake) = (self.shared.options.clone(), image.to_owned(), self.wake.clone());
        let namespace = text(&self.pod.metadata.namespace).to_owned();
        let pull = async move {
            let begun = tokio::time::Instant::now();
            let pulled = image_access::pull(&options, &namespace, &full, &credentials).await;
            pulled.map_err(Failure::from).map(|pulled| Pulled {
                size: pulled.image.size,
                user: pulled.image.config.user,
                duration: pulled.duration,
                total: begun.elapsed(),
            })
        };
        self.pulls.begin(key, image, pull, Arc::new(move || wake.notify_one()));
    }

    fn wait_for_image(&mut self, name: &str, image: &str, reason: &str, message: String, first: bool) {
        let now = self.now();
        let delay = self.pulls.next_look(image, first, now);
        self.event(Some(name), Severity::Warning, "Failed", format!("Error: {reason}"));
        self.holds.hold(name, delay, delay, now);
        self.waiting.insert(name.to_owned(), Waiting { reason: reason.to_owned(), message });
    }

    fn refuse_image(&mut self, name: &str, reason: &str, message: String) {
        self.event(Some(name), Severity::Warning, "Failed", format!("Error: {reason}"));
        let now = self.now();
        self.holds.hold(name, SYNC_RETRY, SYNC_RETRY, now);
        self.waiting.insert(name.to_owned(), Waiting { reason: reason.to_owned(), message });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Clauses: K03.policy
    #[test]
    fn the_default_policy_depends_on_the_tag() {
        let of =
            |image: &str, policy_of: serde_json::Value| policy(policy_of.as_str(), &Reference::parse(image).unwrap());
        let digest = format!("nginx@sha256:{}", "0a".repeat(32));
        for (image, expect) in [
            ("nginx", Policy::Always),
            ("nginx:latest", Policy::Always),
            ("nginx:1", Policy::IfNotPresent),
            (digest.as_str(), Policy::IfNotPresent),
            ("kemudi.local/demo", Policy::Never),
        ] {
            assert_eq!(of(image, json!(null)), expect, "{image}");
        }
        assert_eq!(of("nginx", json!("IfNotPresent")), Policy::IfNotPresent);
        assert_eq!(of("nginx", json!("Never")), Policy::Never);
        assert_eq!(of("nginx:1", json!("Always")), Policy::Always);
    }
}
