//! What a server in the same process gives to informers instead of an encoded answer: the objects as its store holds them.
//!
//! A list or a watch that carries [`Ask`] is answered, by a server that knows of it, with an empty body and a [`Handover`] of
//! the objects; any other server answers as always. Both travel as extensions, which nothing that comes over a socket can set.
//! Invariant: what is handed over went through the same authorization and selection as an answer.

use crate::informer::Labels;
use bytes::Bytes;
use http::Extensions;
use meta::Status;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Asks for objects instead of an encoding of them.
#[derive(Clone, Copy, Debug)]
pub struct Ask;

/// An object in its store's allocations.
#[derive(Clone, Debug)]
pub struct Stored {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub labels: Labels,
    /// JSON without `metadata.resourceVersion`.
    pub value: Bytes,
    /// The offset behind the brace that opens `metadata`.
    pub mark: usize,
    /// What `metadata.resourceVersion` is.
    pub revision: u64,
}

impl Stored {
    /// The JSON of the whole object.
    pub fn whole(&self) -> Vec<u8> {
        whole(&self.value, self.mark, &self.revision.to_string())
    }
}

/// Puts the resource version where `mark` says.
pub(crate) fn whole(value: &[u8], mark: usize, resource_version: &str) -> Vec<u8> {
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
    pub objects: Vec<Stored>,
    pub resource_version: String,
    /// Empty on the last page.
    pub continue_token: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Added or modified.
    Put,
    Deleted,
}

/// What a watch hands over at a time. The stream's end is the watch's.
pub enum Batch {
    Events(Vec<(Kind, Stored)>),
    /// Nothing more up to this revision.
    Bookmark(u64),
    /// The watch failed, and ends.
    Failed(Status),
}

pub type Batches = mpsc::Receiver<Batch>;

/// One thing that changes hands once. Extensions have to be clonable; the first to take it has it.
pub struct Handover<T>(Arc<Mutex<Option<T>>>);

impl<T> Clone for Handover<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Send + 'static> Handover<T> {
    pub fn give(extensions: &mut Extensions, thing: T) {
        extensions.insert(Self(Arc::new(Mutex::new(Some(thing)))));
    }

    pub fn take(extensions: &Extensions) -> Option<T> {
        extensions.get::<Self>()?.0.lock().take()
    }
}
