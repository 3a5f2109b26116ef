//! The APIs of plugins: messages, and methods as constants. An API is one file.
//!
//! Messages are Rust structs with the field numbers of the API's `.proto` file; fields that neither side needs are left out, which
//! protobuf allows. Generated crates of these APIs are unmaintained, and would bring another version of tonic.

pub mod csi;
pub mod devices;
pub mod dra;
pub mod dra_health;
pub mod pod_resources;
pub mod registration;

use std::fmt;
use std::marker::PhantomData;

/// A method of a gRPC service.
pub struct Method<Request, Response> {
    /// `/package.Service/Method`.
    pub path: &'static str,
    messages: PhantomData<fn(Request) -> Response>,
}

impl<Request, Response> Method<Request, Response> {
    /// The method with this path, `/package.Service/Method`.
    pub const fn new(path: &'static str) -> Self {
        Self { path, messages: PhantomData }
    }
}

impl<Request, Response> Clone for Method<Request, Response> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Request, Response> Copy for Method<Request, Response> {}

impl<Request, Response> fmt::Debug for Method<Request, Response> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.path)
    }
}
