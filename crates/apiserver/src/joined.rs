//! Joins the stored bytes of a list's objects while sending.
//!
//! Invariant: an unread response holds one piece of its own; the objects are shared with the store.

use bytes::Bytes;
use std::sync::Arc;
use store::Entry;

/// Bytes per piece.
const PIECE: usize = 256 * 1024;

#[derive(Clone)]
pub struct Joined {
    head: Vec<u8>,
    entries: Vec<Arc<Entry>>,
    next: usize,
    splice: fn(&mut Vec<u8>, &Entry),
    left: u64,
}

const END: &[u8] = b"]}\n";

impl Joined {
    /// `head` ends where the items begin. `length` is the number of bytes that `splice` appends.
    pub fn new(
        head: Vec<u8>,
        entries: Vec<Arc<Entry>>,
        splice: fn(&mut Vec<u8>, &Entry),
        length: impl Fn(&Entry) -> usize,
    ) -> Self {
        let items: usize = entries.iter().map(|e| length(e)).sum();
        let left = (head.len() + items + entries.len().saturating_sub(1) + END.len()) as u64;
        Self { head, entries, next: 0, splice, left }
    }

    /// The number of remaining bytes.
    pub fn left(&self) -> u64 {
        self.left
    }

    pub fn next_piece(&mut self) -> Option<Bytes> {
        if self.left == 0 {
            return None;
        }
        let mut out = std::mem::take(&mut self.head);
        out.reserve((self.left as usize).min(PIECE + 8192).saturating_sub(out.len()));
        while let Some(e) = self.entries.get(self.next) {
            if out.len() >= PIECE {
                break;
            }
            if self.next > 0 {
                out.push(b',');
            }
            (self.splice)(&mut out, e);
            self.next += 1;
        }
        if self.next == self.entries.len() {
            out.extend_from_slice(END);
            self.entries = Vec::new();
            self.next = 0;
            debug_assert_eq!(self.left, out.len() as u64);
            self.left = 0;
        } else {
            self.left -= out.len() as u64;
        }
        Some(out.into())
    }
}
