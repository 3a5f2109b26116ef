//! What a server in the same process gives to informers instead of an encoded answer: the objects as its store holds them.
//!
//! A server that supports it answers a list or watch that carries a [`HandoverRequest`] with an empty body and a [`Handover`] of
//! the objects; any other server sends the usual response. Both travel as extensions, which nothing that comes over a socket can set.
//! Invariant: handed over objects passed the same authorization and selection as a response.

use crate::informer::{Labels, Meta};
use bytes::Bytes;
use http::Extensions;
use meta::Status;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Requests objects instead of their encoding.
#[derive(Clone, Copy, Debug)]
pub struct HandoverRequest;

/// An object and its metadata, shared by all readers in the process.
#[derive(Debug)]
pub struct Stored {
    /// The metadata of the object.
    pub meta: Meta,
    bytes: Bytes,
    /// The offset behind the brace that opens `metadata`, in bytes that lack the resource version.
    mark: Option<u32>,
}

impl Stored {
    /// From JSON without `metadata.resourceVersion` in the store's allocation, which is shared. `mark` is the offset behind the
    /// brace that opens `metadata`.
    pub fn new(
        (namespace, name): (Arc<str>, Arc<str>),
        labels: Labels,
        bytes: Bytes,
        mark: usize,
        revision: u64,
    ) -> Result<Self, serde_json::Error> {
        let metadata = bytes.get(mark.saturating_sub(1)..).unwrap_or_default();
        let meta = Meta::stored((namespace, name), labels, revision, metadata)?;
        Ok(Self { meta, bytes, mark: Some(mark as u32) })
    }

    /// From the JSON of a complete object.
    pub fn whole(bytes: Bytes) -> Result<Self, serde_json::Error> {
        Ok(Self { meta: Meta::from_object(&bytes)?, bytes, mark: None })
    }

    /// JSON, with or without the resource version.
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The JSON of the complete object.
    pub fn json(&self) -> Cow<'_, [u8]> {
        match self.mark {
            None => Cow::Borrowed(&self.bytes),
            Some(mark) => Cow::Owned(whole(&self.bytes, mark as usize, &self.meta.resource_version)),
        }
    }
}

/// Inserts the resource version at `mark`.
fn whole(value: &[u8], mark: usize, resource_version: &str) -> Vec<u8> {
    let (head, tail) = value.split_at(mark.min(value.len()));
    let mut out = Vec::with_capacity(value.len() + resource_version.len() + 24);
    out.extend_from_slice(head);
    out.extend_from_slice(b"\"resourceVersion\":\"");
    out.extend_from_slice(resource_version.as_bytes());
    out.push(b'"');
    if tail.first() != Some(&b'}') {
        out.push(b',');
    }
    out.extend_from_slice(tail);
    out
}

/// A page of a list.
pub struct Page {
    /// The objects of the page.
    pub objects: Vec<Arc<Stored>>,
    /// Revision of the list.
    pub resource_version: String,
    /// Empty on the last page.
    pub continue_token: String,
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Added or modified.
    Put,
    /// Deleted: the object is the last state.
    Deleted,
}

/// Events that a watch hands over at a time. The end of the stream ends the watch.
pub enum Batch {
    /// Changes in order of their revisions.
    Events(Vec<(Kind, Arc<Stored>)>),
    /// A bookmark: there are no more events up to this revision.
    Bookmark(u64),
    /// The watch failed and ends.
    Failed(Status),
}

/// The receiver of a watch.
pub type Batches = mpsc::Receiver<Batch>;

/// A value that is taken once. Extensions must be `Clone`; the first caller of [`Self::take`] gets the value.
pub struct Handover<T>(Arc<Mutex<Option<T>>>);

impl<T> Clone for Handover<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Send + 'static> Handover<T> {
    /// Adds a value to the extensions of a response.
    pub fn give(extensions: &mut Extensions, thing: T) {
        extensions.insert(Self(Arc::new(Mutex::new(Some(thing)))));
    }

    /// Takes the value from the extensions of a response; none if there is none, or it was taken.
    pub fn take(extensions: &Extensions) -> Option<T> {
        extensions.get::<Self>()?.0.lock().take()
    }
}
