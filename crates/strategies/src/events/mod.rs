//! `events.k8s.io`: another representation of the core group's events.

pub use crate::core::event;

kinds! { event }
