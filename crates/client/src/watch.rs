//! Decoding of watch events from a response body as they arrive.

use crate::error::Error;
use crate::transport::Body;
use bytes::{Bytes, BytesMut};
use futures::Stream;
use http_body::Body as _;
use meta::Status;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A change of one object, or a bookmark.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchEvent<T> {
    /// The object was created, or began to match the selector.
    Added(T),
    /// The object was modified.
    Modified(T),
    /// The last state of the object.
    Deleted(T),
    /// A bookmark: all events up to this revision have been sent.
    Bookmark {
        /// Revision of the bookmark.
        resource_version: String,
        /// Whether it ends the initial state (`k8s.io/initial-events-end`).
        initial_events_end: bool,
    },
}

/// Byte limit of one event.
const MAX_EVENT: usize = 64 << 20;

/// Watch events whose objects are not decoded: slices of the response.
pub struct RawEvents {
    body: Body,
    /// Received bytes that have not been split into lines yet.
    chunk: Bytes,
    /// The beginning of a line whose end has not arrived.
    partial: BytesMut,
    ended: bool,
}

impl RawEvents {
    pub(crate) fn new(body: Body) -> Self {
        Self { body, chunk: Bytes::new(), partial: BytesMut::new(), ended: false }
    }

    /// Returns the next line. A chunk that is one line (as the server in the same process sends them) is shared, not copied; a line
    /// from a chunk of many is copied, so that keeping it does not keep its neighbours.
    fn line(&mut self) -> Option<Bytes> {
        if let Some(i) = self.chunk.iter().position(|b| *b == b'\n') {
            let alone = i + 1 == self.chunk.len();
            let line = self.chunk.split_to(i + 1);
            if !self.partial.is_empty() {
                self.partial.extend_from_slice(&line);
                return Some(self.partial.split().freeze());
            }
            return Some(if alone { line } else { Bytes::copy_from_slice(&line) });
        }
        self.partial.extend_from_slice(&self.chunk);
        self.chunk.clear();
        (self.ended && !self.partial.is_empty()).then(|| self.partial.split().freeze())
    }

    fn end(&mut self) {
        self.ended = true;
        self.chunk.clear();
        self.partial.clear();
    }
}

impl Stream for RawEvents {
    type Item = Result<WatchEvent<Bytes>, Error>;

    /// Ends after an error, and when the server ends the watch.
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            while let Some(line) = self.line() {
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                let event = event(&line);
                if event.is_err() {
                    self.end();
                }
                return Poll::Ready(Some(event));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => self.ended = true,
                // As in client-go, the end of the client's time limit ends a watch without an error.
                Poll::Ready(Some(Err(Error::Cut))) => self.end(),
                Poll::Ready(Some(Err(e))) => {
                    self.end();
                    return Poll::Ready(Some(Err(e)));
                }
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.chunk = data;
                    }
                    if self.partial.len() > MAX_EVENT {
                        self.end();
                        let why = format!("an event of the watch has more than {} MiB", MAX_EVENT >> 20);
                        return Poll::Ready(Some(Err(Error::Unexpected(why))));
                    }
                }
            }
        }
    }
}

#[derive(Deserialize)]
struct Envelope<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct BookmarkView {
    metadata: BookmarkMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

fn event(line: &Bytes) -> Result<WatchEvent<Bytes>, Error> {
    let wrong = |source| Error::Decode { what: "watch event".into(), source };
    let e: Envelope<'_> = serde_json::from_slice(line).map_err(wrong)?;
    let object = || line.slice_ref(e.object.get().as_bytes());
    match e.r#type {
        "ADDED" => Ok(WatchEvent::Added(object())),
        "MODIFIED" => Ok(WatchEvent::Modified(object())),
        "DELETED" => Ok(WatchEvent::Deleted(object())),
        "BOOKMARK" => {
            let b: BookmarkView = serde_json::from_str(e.object.get()).map_err(wrong)?;
            Ok(WatchEvent::Bookmark {
                initial_events_end: b
                    .metadata
                    .annotations
                    .get("k8s.io/initial-events-end")
                    .is_some_and(|v| v == "true"),
                resource_version: b.metadata.resource_version,
            })
        }
        "ERROR" => {
            let v = meta::depth::from_str(e.object.get()).map_err(wrong)?;
            match Status::from_value(&v) {
                Some(s) => Err(s.into()),
                None => Err(Error::Unexpected(format!("watch error that is no Status: {v}"))),
            }
        }
        other => Err(Error::Unexpected(format!("watch event of type {other:?}"))),
    }
}

/// Events with decoded objects.
pub struct Events<T> {
    raw: RawEvents,
    marker: PhantomData<fn() -> T>,
}

impl<T> Events<T> {
    pub(crate) fn new(raw: RawEvents) -> Self {
        Self { raw, marker: PhantomData }
    }

    /// The same events with their objects not decoded.
    pub fn into_raw(self) -> RawEvents {
        self.raw
    }
}

impl<T: DeserializeOwned> Stream for Events<T> {
    type Item = Result<WatchEvent<T>, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let decode = |b: Bytes| {
            meta::depth::from_slice(&b).map_err(|source| Error::Decode { what: "watched object".into(), source })
        };
        Pin::new(&mut self.raw).poll_next(cx).map(|next| {
            next.map(|event| {
                Ok(match event? {
                    WatchEvent::Added(b) => WatchEvent::Added(decode(b)?),
                    WatchEvent::Modified(b) => WatchEvent::Modified(decode(b)?),
                    WatchEvent::Deleted(b) => WatchEvent::Deleted(decode(b)?),
                    WatchEvent::Bookmark { resource_version, initial_events_end } => {
                        WatchEvent::Bookmark { resource_version, initial_events_end }
                    }
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt;
    use http_body_util::{BodyExt, StreamBody};

    fn body(chunks: &[&'static str]) -> Body {
        let frames: Vec<Result<_, Error>> =
            chunks.iter().map(|c| Ok(http_body::Frame::data(Bytes::from_static(c.as_bytes())))).collect();
        StreamBody::new(futures::stream::iter(frames)).boxed_unsync()
    }

    #[tokio::test]
    async fn events_are_split_at_any_chunk_boundary() {
        let whole = concat!(
            r#"{"type":"ADDED","object":{"kind":"Pod","metadata":{"name":"a"}}}"#,
            "\n",
            r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
            "\n",
            r#"{"type":"DELETED","object":{"kind":"Pod"}}"#,
        );
        for cut in 0..whole.len() {
            let (a, b) = whole.split_at(cut);
            let got: Vec<_> = RawEvents::new(body(&[a, b])).map(Result::unwrap).collect().await;
            assert_eq!(
                got,
                vec![
                    WatchEvent::Added(Bytes::from_static(br#"{"kind":"Pod","metadata":{"name":"a"}}"#)),
                    WatchEvent::Bookmark { resource_version: "7".into(), initial_events_end: true },
                    WatchEvent::Deleted(Bytes::from_static(br#"{"kind":"Pod"}"#)),
                ]
            );
        }
    }

    #[tokio::test]
    async fn an_endless_event_is_an_error() {
        let chunk = Bytes::from(vec![b' '; 1 << 20]);
        let endless = futures::stream::repeat_with(move || Ok(http_body::Frame::data(chunk.clone())));
        let mut events = RawEvents::new(StreamBody::new(endless).boxed_unsync());
        let error = events.next().await.unwrap().unwrap_err().to_string();
        assert!(error.contains("an event of the watch has more than 64 MiB"), "{error}");
        assert!(events.next().await.is_none());
    }

    #[tokio::test]
    async fn an_error_event_is_an_error_and_ends_the_watch() {
        let text = concat!(
            r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"message":"too old"}}"#,
            "\n{}\n"
        );
        let got: Vec<_> = RawEvents::new(body(&[text])).collect().await;
        assert_eq!(got.len(), 1);
        assert!(got[0].as_ref().unwrap_err().is_expired());
    }
}
