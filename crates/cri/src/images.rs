//! The images of a container runtime: its image service, and the records of who may use which image.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use k8s_cri::v1;
use runtime::image::{
    Access, AccessByRepository, Credentials, Error, Image, ImageConfig, ImageService, PullError, Pulled,
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tonic::Status;

use crate::connection::failed;
use crate::security::ImageUser;
use crate::{Cri, Inner};

/// Who may use which image. An image without a record was there before any pod pulled it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Records {
    /// By the ids of the images.
    images: BTreeMap<String, AccessByRepository>,
    /// The ids of the images that were there before the pulls that run. Until they have ended, no pod may use another one without a record:
    /// it was pulled with the secrets of somebody.
    before: Option<BTreeSet<String>>,
}

impl Records {
    fn access(&self, id: &str) -> Option<AccessByRepository> {
        let is_new = self.before.as_ref().is_some_and(|before| !before.contains(id));
        self.images.get(id).cloned().or(is_new.then(AccessByRepository::default))
    }

    /// Records images that interrupted pulls have left, so that they are pulled again.
    fn settle<'a>(&mut self, ids: impl Iterator<Item = &'a str>) {
        let Some(before) = self.before.take() else { return };
        for id in ids.filter(|id| !before.contains(*id)) {
            self.images.entry(id.to_owned()).or_default();
        }
    }
}

/// Bytes of an error of the runtime that pod authors see.
const MAX_MESSAGE: usize = 1024;

fn service(error: &runtime::Error) -> Error {
    Error::Service(error.to_string())
}

fn read(path: &Path) -> Result<Records, Error> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| Error::Index(format!("{}: {e}", path.display()))),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Records::default()),
        Err(source) => Err(Error::Io { what: path.display().to_string(), source }),
    }
}

fn write(path: &Path, records: &Records) -> Result<(), Error> {
    let fail = |source| Error::Io { what: path.display().to_string(), source };
    let bytes = serde_json::to_vec(records).map_err(|e| Error::Index(e.to_string()))?;
    let new = path.with_extension("new");
    std::fs::write(&new, bytes).map_err(fail)?;
    std::fs::rename(&new, path).map_err(fail)
}

/// An image in the terms of the agent.
fn image(found: v1::Image, sandbox_image: Option<&str>, records: &Records) -> Image {
    let user = match ImageUser::of(&found) {
        ImageUser::Id(id) if found.uid.is_some() => id.to_string(),
        ImageUser::Id(_) => String::new(),
        ImageUser::Name(name) => name,
    };
    let is_of_sandboxes =
        sandbox_image.is_some_and(|s| found.repo_tags.iter().chain(&found.repo_digests).any(|n| n == s));
    Image {
        access: records.access(&found.id),
        pinned: found.pinned || is_of_sandboxes,
        names: found.repo_tags.into_iter().chain(found.repo_digests).collect(),
        config: ImageConfig { user, ..ImageConfig::default() },
        layers: Vec::new(),
        diff_ids: Vec::new(),
        size: found.size,
        id: found.id,
    }
}

impl Inner {
    async fn records(&self) -> Result<Records, Error> {
        let path = self.files.access();
        supervisor::blocking(move || read(&path)).await
    }

    /// The name of the image of sandboxes, which must stay. Newer runtimes report it as pinned.
    async fn sandbox_image(&self) -> Option<String> {
        let status = self.connection.status(true).await.ok()?;
        let config: serde_json::Value = serde_json::from_str(status.info.get("config")?).ok()?;
        config["sandboxImage"].as_str().map(str::to_owned)
    }

    async fn found(&self, name: &str) -> Result<Image, Error> {
        let found = self.images.image_status(name).await.map_err(|e| service(&e))?;
        let found = found.ok_or_else(|| Error::NotFound(name.to_owned()))?;
        Ok(image(found, None, &self.records().await?))
    }

    /// Records which images are there before a pull.
    async fn begin_pull(&self) -> Result<(), Error> {
        let mut running = self.pulls.lock().await;
        let all = self.images.list_images().await.map_err(|e| service(&e))?;
        let is_first = *running == 0;
        self.change_records(move |records| {
            if is_first {
                records.settle(all.iter().map(|i| i.id.as_str()));
                records.before = Some(all.into_iter().map(|i| i.id).collect());
            }
        })
        .await?;
        *running += 1;
        Ok(())
    }

    /// Records that a pull has ended. No pod may use a new image until it is recorded who may.
    async fn end_pull(&self) -> Result<(), Error> {
        let mut running = self.pulls.lock().await;
        *running = running.saturating_sub(1);
        if *running > 0 {
            return Ok(());
        }
        self.settle().await
    }

    /// Records the images of pulls that have ended, or were interrupted.
    pub(crate) async fn settle(&self) -> Result<(), Error> {
        let all = self.images.list_images().await.map_err(|e| service(&e))?;
        self.change_records(move |records| records.settle(all.iter().map(|i| i.id.as_str()))).await
    }

    /// Pulls with one user of the registry.
    async fn pull_as(&self, name: &str, credentials: Option<&Credentials>) -> Result<Image, PullError> {
        let auth = credentials.map(|c| v1::AuthConfig {
            username: c.username.clone(),
            password: c.password.clone(),
            ..Default::default()
        });
        let reference = self.images.pull_image(name, auth).await.map_err(|status| pull_error(&status))?;
        self.found(&reference).await.map_err(other)
    }

    async fn pull(&self, name: &str, credentials: &[Credentials]) -> Result<(Image, Option<Credentials>), PullError> {
        let mut all: Vec<Option<&Credentials>> = credentials.iter().map(Some).collect();
        if all.is_empty() {
            all.push(None);
        }
        let mut errors: Vec<PullError> = Vec::new();
        for credentials in all {
            match self.pull_as(name, credentials).await {
                Ok(image) => return Ok((image, credentials.cloned())),
                Err(error) => errors.push(error),
            }
        }
        let is_unavailable = errors.iter().all(|e| e.is_unavailable);
        let messages: Vec<&str> = errors.iter().map(|e| e.message.as_str()).collect();
        let message = match messages.as_slice() {
            [one] => (*one).to_owned(),
            several => format!("[{}]", several.join(", ")),
        };
        Err(PullError { message, is_unavailable })
    }

    /// Changes the records.
    async fn change_records(&self, change: impl FnOnce(&mut Records) + Send + 'static) -> Result<(), Error> {
        let _turn = self.access.lock().await;
        let path = self.files.access();
        let changed = supervisor::blocking(move || {
            let before = read(&path)?;
            let mut records = before.clone();
            change(&mut records);
            if records == before { Ok(()) } else { write(&path, &records) }
        });
        changed.await
    }
}

/// The prefix by which runtimes tell that a registry is out of order (`cri-api/pkg/errors`).
const UNAVAILABLE: &str = "RegistryUnavailable";

fn other(error: Error) -> PullError {
    PullError { message: error.to_string(), is_unavailable: false }
}

fn pull_error(status: &Status) -> PullError {
    let text = status.message();
    let (mut message, is_unavailable) = match text.strip_prefix(UNAVAILABLE) {
        Some(why) => (why.trim_start_matches([':', ' ']).to_owned(), true),
        None => (failed(status).to_string(), false),
    };
    message.truncate(message.floor_char_boundary(MAX_MESSAGE));
    PullError { message, is_unavailable }
}

#[async_trait]
impl ImageService for Cri {
    async fn find(&self, name: &str) -> Result<Image, Error> {
        self.inner.found(name).await
    }

    async fn list(&self) -> Result<Vec<Image>, Error> {
        let records = self.inner.records().await?;
        let sandbox_image = self.inner.sandbox_image().await;
        let all = self.inner.images.list_images().await.map_err(|e| service(&e))?;
        Ok(all.into_iter().map(|i| image(i, sandbox_image.as_deref(), &records)).collect())
    }

    async fn remove(&self, id: &str) -> Result<(), Error> {
        self.inner.images.remove_image(id).await.map_err(|e| service(&e))?;
        let id = id.to_owned();
        self.inner.change_records(move |records| drop(records.images.remove(&id))).await
    }

    /// The runtime removes its own; records of images that others have removed go here.
    async fn remove_leftovers(&self) -> Result<(), Error> {
        let all = self.inner.images.list_images().await.map_err(|e| service(&e))?;
        self.inner.change_records(move |records| records.images.retain(|id, _| all.iter().any(|i| i.id == *id))).await
    }

    async fn record_access(&self, id: &str, repository: &str, access: Access) -> Result<(), Error> {
        let (id, repository) = (id.to_owned(), repository.to_owned());
        let add = move |records: &mut Records| {
            records.images.entry(id).or_default().entry(repository).or_default().merge(access);
        };
        self.inner.change_records(add).await
    }

    async fn pull(&self, _namespace: &str, name: &str, credentials: &[Credentials]) -> Result<Pulled, PullError> {
        let begun = Instant::now();
        self.inner.begin_pull().await.map_err(other)?;
        // The pull goes on if the caller goes away, and its end is recorded.
        let (inner, of_pull, credentials) = (self.inner.clone(), name.to_owned(), credentials.to_vec());
        let pull = tokio::spawn(async move {
            let pulled = inner.pull(&of_pull, &credentials).await;
            inner.end_pull().await.map_err(other)?;
            pulled
        });
        let pulled = pull.await.map_err(|e| PullError { message: e.to_string(), is_unavailable: false })?;
        let (image, credentials) = pulled?;
        let image = self.inner.found(&image.id).await.map_err(other)?;
        Ok(Pulled { image, duration: begun.elapsed(), credentials })
    }

    async fn directory(&self) -> Result<PathBuf, Error> {
        let info = self.inner.images.image_fs_info().await.map_err(|e| service(&e))?;
        let mount = info.image_filesystems.into_iter().find_map(|f| f.fs_id).map(|id| id.mountpoint);
        mount
            .map(PathBuf::from)
            .ok_or_else(|| Error::Service("the container runtime reports no image file system".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_in_the_terms_of_the_agent() {
        let found = v1::Image {
            id: "sha256:1".into(),
            repo_tags: vec!["docker.io/library/a:1".into()],
            repo_digests: vec!["docker.io/library/a@sha256:2".into()],
            size: 7,
            ..v1::Image::default()
        };
        let images = [("sha256:1".to_owned(), AccessByRepository::default())].into();
        let records = Records { images, before: None };
        let plain = image(found.clone(), None, &records);
        assert_eq!((plain.config.user.as_str(), plain.pinned, plain.size, plain.names.len()), ("", false, 7, 2));
        assert!(plain.access.is_some());
        assert!(image(found.clone(), Some("docker.io/library/a:1"), &records).pinned);
        let of = |uid: Option<i64>, username: &str| {
            let uid = uid.map(|value| v1::Int64Value { value });
            let found = v1::Image { uid, username: username.into(), ..found.clone() };
            let found = image(found, None, &Records::default());
            assert!(found.access.is_none(), "an image that no pod has pulled");
            found.config.user
        };
        assert_eq!([of(Some(0), ""), of(Some(5), ""), of(None, "app")], ["0", "5", "app"]);
    }

    /// Otherwise a pod without a secret could use an image in the moment after it was pulled with one.
    #[test]
    fn an_image_that_is_being_pulled_is_for_nobody() {
        let mut records = Records { before: Some(["old".to_owned()].into()), ..Records::default() };
        assert!(records.access("old").is_none());
        assert_eq!(records.access("new"), Some(AccessByRepository::default()));
        records.settle(["old", "new"].into_iter());
        assert_eq!((records.access("old"), records.access("new")), (None, Some(AccessByRepository::default())));
        records.settle(["other"].into_iter());
        assert!(records.access("other").is_none(), "one that appeared without a pull");
    }

    #[test]
    fn runtimes_tell_that_a_registry_is_unavailable() {
        let error = pull_error(&Status::unknown("RegistryUnavailable: 503"));
        assert_eq!(error, PullError { message: "503".into(), is_unavailable: true });
        let error = pull_error(&Status::unknown("failed to resolve reference \"r/a:1\": r/a:1: not found"));
        assert!(!error.is_unavailable && error.message.starts_with("rpc error: code = Unknown desc = failed"));
        let long = pull_error(&Status::unknown("x".repeat(100_000)));
        assert!(long.message.len() <= MAX_MESSAGE);
    }
}
