//! What the kubelet's HTTP service answers, as a plain function.

mod logs;

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use runtime::Container;

use crate::agent::Options;
use crate::pod::container::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE};

pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Cheap to clone; calls go to the runtime.
#[derive(Clone)]
pub struct Handle {
    options: Arc<Options>,
}
impl Handle {
    pub(crate) fn new(options: Arc<Options>) -> Self {
        Self { options }
    }
}
