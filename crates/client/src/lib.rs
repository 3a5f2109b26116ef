//! One API client over an in-process or HTTPS transport, informers, work queues and the event recorder.
//!
//! A [`Client`] is one caller's connection to the server; [`Api`] has the verbs of one resource, for [`meta::Object`] or a typed view of
//! `k8s-openapi`. Invariant: nothing here knows the semantics of a kind, and components reach the server only through this crate.

#![warn(missing_docs)]

pub mod api;
mod backoff;
pub mod certificate;
pub mod client;
pub mod discovery;
pub mod error;
mod events;
mod expectations;
pub mod https;
pub mod informer;
mod keyed_limit;
pub mod kubeconfig;
pub mod lease;
pub mod log;
pub mod lookups;
pub mod metrics;
mod options;
mod pace;
pub mod program;
pub mod queue;
mod resource;
pub mod shared;
pub mod transport;
mod watch;

pub use api::{Api, List, ListLimits};
pub use backoff::KeyedBackoff;
pub use client::{Client, Impersonation};
pub use error::{BoxError, Error, optional};
pub use events::{Recorder, Regarding, Severity, Source};
pub use expectations::{Expectations, PendingRemovals};
pub use https::Https;
pub use informer::{Change, Entry, Informer, Informers, Key, Meta, Scope};
pub use keyed_limit::{KeyedLimit, Permit};
pub use lookups::Lookups;
pub use options::{
    DeleteOptions, DryRun, FieldValidation, ListOptions, Patch, Preconditions, Propagation, Query, VersionMatch,
    WatchOptions, WriteOptions, condition_patch,
};
pub use pace::{Pace, Tokens};
pub use queue::{Outcome, RateLimit, WorkQueue};
pub use resource::ApiResource;
pub use supervisor::{Shutdown, Trigger, shutdown};
pub use transport::{Body, Duplex, InProcess, Transport, Upgrade, Upgraded};
pub use watch::{Events, RawEvents, WatchEvent};
