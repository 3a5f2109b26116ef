//! `events.k8s.io`: its events are those of the core group in another form.

pub use crate::core::event;

kinds! { event }
