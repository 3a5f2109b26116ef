//! What every controller receives.

use client::{Api, ApiResource, Client, Entry, Informers, Recorder, Shutdown, Source, WriteOptions};
use jiff::Timestamp;
use meta::{Clock, Object, Rng};
use std::sync::Arc;
use std::time::Duration;
use supervisor::panics::{Everything, caught};

/// A controller's name, its identity for writing, the informers of the process for reading, time and randomness.
#[derive(Clone)]
pub struct Context {
    /// The name of the controller: of its service account in `kube-system`, its queue, its events and its log lines.
    pub name: &'static str,
    /// A client with the controller's own identity.
    pub client: Client,
    pub informers: Informers,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    pub shutdown: Shutdown,
}

impl Context {
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// A recorder of events whose source is the controller.
    pub fn recorder(&self) -> Recorder {
        self.recorder_as(self.name)
    }

    /// A recorder of events with another source, where upstream's differs from the name of the controller.
    pub fn recorder_as(&self, component: &str) -> Recorder {
        Recorder::start(&self.client, Source::component(component), self.clock.clone(), self.shutdown.clone())
    }

    /// Runs `round` now and `period` after the end of each round, until shutdown. A round that panics is logged, and the next one runs.
    pub async fn every<F: Future<Output = ()>>(&self, period: Duration, round: impl Fn() -> F) {
        let rounds = async {
            loop {
                let _ = caught(self.name, Everything, async { round().await }).await;
                tokio::time::sleep(period).await;
            }
        };
        self.shutdown.race(rounds).await;
    }
}

/// Decodes the object of an entry, with its type, which list items lack.
pub(crate) fn object<V>(resource: &ApiResource, entry: &Entry<V>) -> Result<Object, client::Error> {
    let mut o: Object = entry.decode()?;
    o.set_gvk(&resource.gvk());
    Ok(o)
}

/// Writes the status that `write` sets. After a conflict, which a change of the spec causes, it writes to the newest version of the
/// same object: what was counted is still valid. An object that is gone needs no status.
pub(crate) async fn put_status(
    api: &Api<Object>,
    object: &Object,
    write: impl Fn(&mut Object),
) -> Result<(), client::Error> {
    let options = WriteOptions::default();
    let mut next = object.clone();
    write(&mut next);
    match api.update_status(object.name(), &options, &next).await {
        Err(e) if e.is_conflict() => {
            let mut fresh = api.get(object.name()).await?;
            if fresh.uid() == object.uid() {
                write(&mut fresh);
                api.update_status(object.name(), &options, &fresh).await?;
            }
            Ok(())
        }
        Err(e) if e.is_not_found() => Ok(()),
        other => other.map(|_| ()),
    }
}

/// Why a key could not be reconciled; it is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Api(#[from] client::Error),
    #[error("{what}: {why}")]
    Invalid { what: &'static str, why: String },
    /// Something has to happen first.
    #[error("{0}")]
    Waiting(String),
    /// An object cannot do what is needed. Trying again does not help.
    #[error("{0}")]
    Unsupported(String),
}
