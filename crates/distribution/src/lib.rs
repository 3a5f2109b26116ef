//! Pulls images from registries: OCI distribution specification and Docker Registry HTTP API V2.
//!
//! [`Puller::pull`] downloads the manifest, the configuration and the layers of an image into a directory with the layout of an
//! OCI image, and the image store imports them from there, with the limits of any import.
//!
//! **Invariants.** A byte counts only when the digest above it is verified: the manifest's by the reference, the others' by the
//! manifest. A registry is hostile: what it sends is bounded in memory, on the disk and in time, and a registry that hangs delays
//! no pull from another one, nor those of other namespaces. Nothing that it sends is quoted in errors, which pod authors read, except
//! names that this crate knows. Credentials go to the registry that they are for, and to the token server that it names, never to
//! mirrors or to where blobs are redirected.
//!
//! Left out: pushing, manifests of Docker's schema 1, refresh tokens, verification of signatures.

mod account;
mod auth;
mod blob;
mod error;
mod manifest;
mod pace;
mod puller;
mod reference;
mod registries;
mod service;
mod session;
mod turns;
mod workspace;

pub use account::Progress;
pub use error::Error;
pub use puller::{Limits, Puller};
pub use reference::Reference;
pub use registries::Registries;
pub use runtime::image::{Credentials, Pulled};
pub use service::EmbeddedImages;

#[cfg(test)]
mod tests;
