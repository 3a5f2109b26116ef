//! What every controller is handed.

use client::{ApiResource, Client, Entry, Informers, Recorder, Shutdown, Source};
use jiff::Timestamp;
use meta::{Clock, Object, Rng};
use std::sync::Arc;

/// A controller's way to the world: its own identity for writing, the process's informers for reading, time and randomness.
#[derive(Clone)]
pub struct Context {
    /// Under the controller's own identity.
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

    /// A recorder that writes as `component`.
    pub fn recorder(&self, component: &str) -> Recorder {
        Recorder::start(&self.client, Source::component(component), self.clock.clone(), self.shutdown.clone())
    }
}

/// The object behind an entry, with the type that list items lack.
pub(crate) fn object<V>(resource: &ApiResource, entry: &Entry<V>) -> Result<Object, client::Error> {
    let mut o: Object = entry.decode()?;
    o.set_gvk(&resource.gvk());
    Ok(o)
}

/// Why a key could not be brought to its wish; it is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Api(#[from] client::Error),
    #[error("{what}: {why}")]
    Invalid { what: &'static str, why: String },
    /// Not yet: something has to happen first.
    #[error("{0}")]
    Waiting(String),
}
