//! The plugins of a node: programs that the node agent calls by gRPC over unix sockets.
//!
//! [`api`] has the messages and methods of each API, one file per API. A [`Method`](api::Method) is one constant that both sides use: the agent
//! calls it over a [`Connection`], and a [`Server`] answers it. [`registration`] follows the directory in which plugins announce
//! themselves.
//!
//! **Invariants.** A plugin is a stranger: every call has a deadline, every message a maximum size, and one plugin that hangs delays no
//! other. Sockets are opened by descriptors ([`SocketPath`]), so that paths may be longer than the address of a unix socket and links
//! lead nowhere else. Left out: what the plugins are for; this crate knows no kinds of Kubernetes.

#![warn(missing_docs)]

pub mod api;
mod connection;
mod error;
pub mod registration;
mod root;
mod server;
mod socket;

pub use connection::{Connection, Limits, Messages};
pub use error::{Error, code_name};
pub use prost::Message;
pub use root::KubeletRoot;
pub use server::{Answers, Running, Server};
pub use socket::SocketPath;
pub use tonic::{Code, Status};

#[cfg(test)]
mod tests;
