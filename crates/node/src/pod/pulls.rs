//! The image pulls of a pod: those that run, and the back-off of those that failed: 10 s, 20 s, … 5 min (kubelet
//! `images/image_manager.go`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use runtime::image::PullError;
use supervisor::panics::caught;
use tokio::task::AbortHandle;

use super::backoff::{INITIAL, MAX};

/// How long after a failed pull the container reports its back-off.
const FIRST_LOOK: Duration = Duration::from_secs(1);
/// How often the node checks meanwhile whether the image was imported.
const LOOK: Duration = Duration::from_secs(10);

/// The pulls of a pod.
#[derive(Default)]
pub(super) struct Pulls {
    /// By container, or container and volume (`CONTAINER/VOLUME`).
    running: BTreeMap<String, Running>,
    /// By image.
    failed: BTreeMap<String, Failed>,
    /// Images that are present for a container that waits for others, with their users.
    ready: BTreeMap<String, (String, String)>,
}

struct Failed {
    until: Timestamp,
    delay: Duration,
    error: String,
}

struct Running {
    image: String,
    result: Arc<Mutex<Option<Result<Pulled, Failure>>>>,
    task: AbortHandle,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a container needs of a pulled image, and what its event shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pulled {
    /// The user in the image's configuration.
    pub user: String,
    /// Bytes.
    pub size: u64,
    pub duration: Duration,
    /// The duration with the time that the pull waited for others.
    pub total: Duration,
}

/// Why a pull failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    message: String,
    is_unavailable: bool,
}

impl From<PullError> for Failure {
    fn from(error: PullError) -> Self {
        Self { message: error.message, is_unavailable: error.is_unavailable }
    }
}

impl Failure {
    /// The message of the event.
    pub fn event(&self, image: &str) -> String {
        let prefix = if self.is_unavailable { "RegistryUnavailable: " } else { "" };
        format!("Failed to pull image \"{image}\": {prefix}{}", self.message)
    }

    /// Reason and message of the container's state.
    pub fn waiting(&self, image: &str) -> (&'static str, String) {
        let message = &self.message;
        match self.is_unavailable {
            true => {
                let message = format!("image pull failed for {image} because the registry is unavailable: {message}");
                ("RegistryUnavailable", message)
            }
            false => ("ErrImagePull", message.clone()),
        }
    }
}

/// The state of a pull.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Running,
    Ended(Result<Pulled, Failure>),
}

impl Pulls {
    /// Starts a pull for a container on a task of its own. `ended` is called after it has ended.
    pub fn begin(
        &mut self,
        container: &str,
        image: &str,
        pull: impl Future<Output = Result<Pulled, Failure>> + Send + 'static,
        ended: Arc<dyn Fn() + Send + Sync>,
    ) {
        let result = Arc::new(Mutex::new(None));
        let (slot, key) = (result.clone(), image.to_owned());
        let task = tokio::spawn(async move {
            let failed = |_| Err(Failure { message: "the pull ended unexpectedly".into(), is_unavailable: false });
            let outcome = caught("image-pull", key, pull).await.unwrap_or_else(failed);
            *slot.lock() = Some(outcome);
            ended();
        });
        let running = Running { image: image.to_owned(), result, task: task.abort_handle() };
        self.running.insert(container.to_owned(), running);
    }

    /// The state of the pull of `image` for a container; `None` if there is none. An outcome is returned once.
    pub fn outcome(&mut self, container: &str, image: &str) -> Option<Outcome> {
        let running = self.running.get(container)?;
        if running.image != image {
            self.running.remove(container);
            return None;
        }
        let Some(result) = running.result.lock().take() else { return Some(Outcome::Running) };
        self.running.remove(container);
        Some(Outcome::Ended(result))
    }

    /// Whether an image is being pulled for the container or a volume of it.
    pub fn is_running(&self, container: &str) -> bool {
        self.running.keys().any(|key| container_of(key) == container)
    }

    /// The user of an image that is present for a start of the container. `key`: as for [`Pulls::begin`].
    pub fn ready(&self, key: &str, image: &str) -> Option<String> {
        self.ready.get(key).filter(|(ready, _)| ready == image).map(|(_, user)| user.clone())
    }

    /// Records that an image is present for the next start of the container.
    pub fn set_ready(&mut self, key: String, image: &str, user: &str) {
        self.ready.insert(key, (image.to_owned(), user.to_owned()));
    }

    /// Forgets which images are present for a container: it starts, or its start has failed.
    pub fn forget_ready(&mut self, container: &str) {
        self.ready.retain(|key, _| container_of(key) != container);
    }

    /// Ends the pulls of a pod that terminates.
    pub fn stop(&mut self) {
        self.running.clear();
    }

    /// Reason and message of the last pull of `image`, while it backs off.
    pub fn backs_off(&self, image: &str, now: Timestamp) -> Option<&str> {
        self.failed.get(image).filter(|f| f.until > now).map(|f| f.error.as_str())
    }

    /// Records that a pull of `image` failed. The delay of the next one doubles.
    pub fn failed(&mut self, image: &str, error: &str, now: Timestamp) {
        let delay = self.failed.get(image).map_or(INITIAL, |f| (f.delay * 2).min(MAX));
        let failed = Failed { until: now + delay, delay, error: error.to_owned() };
        self.failed.insert(image.to_owned(), failed);
    }

    /// How long until the next check.
    pub fn next_look(&self, image: &str, first: bool, now: Timestamp) -> Duration {
        let longest = if first { FIRST_LOOK } else { LOOK };
        self.failed.get(image).map_or(longest, |f| meta::time::left(now, f.until).min(longest))
    }

    /// Forgets the failures of an image that is present, and its pull for the container.
    pub fn forget(&mut self, container: &str, image: &str) {
        self.running.remove(container);
        self.failed.remove(image);
    }
}

/// The container of a key.
fn container_of(key: &str) -> &str {
    key.split('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::{Notify, oneshot};

    /// Clauses: P10
    #[test]
    fn pulls_wait_longer_each_time_while_the_node_looks_for_the_image() {
        let (mut pulls, mut now, mut delays) =
            (Pulls::default(), Timestamp::from_second(1_000_000).unwrap(), Vec::new());
        for _ in 0..7 {
            assert!(pulls.backs_off("a", now).is_none());
            pulls.failed("a", "no registry", now);
            let (start, mut looks) = (now, 0);
            now += pulls.next_look("a", true, now);
            while pulls.backs_off("a", now) == Some("no registry") {
                now += pulls.next_look("a", false, now);
                looks += 1;
            }
            let waited = now.duration_since(start).as_secs();
            assert_eq!(looks, waited / 10, "{waited} s");
            delays.push(waited);
        }
        assert_eq!(delays, [10, 20, 40, 80, 160, 300, 300]);
        assert!(pulls.backs_off("b", now).is_none());
        pulls.failed("a", "no registry", now);
        pulls.forget("c", "a");
        assert!(pulls.backs_off("a", now).is_none());
    }

    #[tokio::test]
    async fn outcomes_are_returned_once_and_panics_are_failures() {
        let (mut pulls, woken) = (Pulls::default(), Arc::new(Notify::new()));
        let wake = || {
            let woken = woken.clone();
            Arc::new(move || woken.notify_one())
        };
        let (go, gone) = oneshot::channel();
        let pulled = Pulled { user: "u".into(), size: 1, duration: Duration::ZERO, total: Duration::ZERO };
        let result = pulled.clone();
        let pull = async move {
            gone.await.unwrap();
            Ok(result)
        };
        pulls.begin("c", "i", pull, wake());
        assert_eq!(pulls.outcome("c", "i"), Some(Outcome::Running));
        assert_eq!(pulls.outcome("other", "i"), None);
        go.send(()).unwrap();
        woken.notified().await;
        assert_eq!(pulls.outcome("c", "i"), Some(Outcome::Ended(Ok(pulled))));
        assert_eq!(pulls.outcome("c", "i"), None);
        pulls.begin("c", "i", async { panic!("on purpose") }, wake());
        woken.notified().await;
        assert!(matches!(pulls.outcome("c", "i"), Some(Outcome::Ended(Err(_)))));
        // Another image ends the pull.
        let (held, ended) = oneshot::channel::<()>();
        let pull = async move {
            let _held = held;
            std::future::pending().await
        };
        pulls.begin("c", "i", pull, wake());
        assert_eq!(pulls.outcome("c", "other"), None);
        assert!(ended.await.is_err(), "the pull is dropped");
    }

    /// Clauses: P08.registry-unavailable
    #[test]
    fn failures_have_upstreams_reasons() {
        let failure = |is_unavailable| Failure { message: "m".into(), is_unavailable };
        assert_eq!(failure(false).event("i"), "Failed to pull image \"i\": m");
        assert_eq!(failure(false).waiting("i"), ("ErrImagePull", "m".into()));
        assert_eq!(failure(true).event("i"), "Failed to pull image \"i\": RegistryUnavailable: m");
        let message = "image pull failed for i because the registry is unavailable: m";
        assert_eq!(failure(true).waiting("i"), ("RegistryUnavailable", message.into()));
    }
}
