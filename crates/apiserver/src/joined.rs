//! Joins the stored bytes of a list's objects while sending, as they are or indented.
//!
//! Invariant: an unread response holds one piece of its own; the objects are shared with the store.

use bytes::Bytes;
use codec::json::{format_typed, indented_len, write_typed};
use schema::Schema;
use std::sync::Arc;
use store::Entry;

/// Bytes per piece.
const PIECE: usize = 256 * 1024;
/// Indentation of pretty output, and the levels around an object of a list.
const INDENT: &str = "  ";
const LEVELS: usize = 2;

/// Smaller objects are not measured: indented, they stay below two pieces.
const SMALL: usize = 4 * 1024;

/// Whether an object is about as large when it is indented. Indentation multiplies deeply nested text, and a piece has whole objects.
pub fn is_indentable(entry: &Entry) -> bool {
    let size = entry.value.len();
    size <= SMALL || indented_len(&entry.value, INDENT, LEVELS) <= 2 * size + PIECE
}

#[derive(Clone)]
pub struct Joined {
    head: Vec<u8>,
    between: Vec<u8>,
    end: Vec<u8>,
    entries: Vec<Arc<Entry>>,
    next: usize,
    splice: fn(&mut Vec<u8>, &Entry),
    /// Whether objects are indented, and the type of their fields.
    pretty: Option<Option<&'static Schema>>,
    /// The number of remaining bytes; for indented objects, an estimate from below.
    left: u64,
}

impl Joined {
    /// Joins objects as they are stored. `head` ends where the items begin. `length` is the number of bytes that `splice` appends.
    pub fn new(
        head: Vec<u8>,
        entries: Vec<Arc<Entry>>,
        splice: fn(&mut Vec<u8>, &Entry),
        length: impl Fn(&Entry) -> usize,
    ) -> Self {
        let (between, end) = (b",".to_vec(), b"]}\n".to_vec());
        let items: usize = entries.iter().map(|e| length(e)).sum();
        let left = (head.len() + items + entries.len().saturating_sub(1) + end.len()) as u64;
        Self { head, between, end, entries, next: 0, splice, pretty: None, left }
    }

    /// Indents objects with the fields in the order of `schema`. `frame` are the bytes before, between and after the objects.
    pub fn pretty(
        frame: [Vec<u8>; 3],
        entries: Vec<Arc<Entry>>,
        splice: fn(&mut Vec<u8>, &Entry),
        schema: Option<&'static Schema>,
    ) -> Self {
        let [head, between, end] = frame;
        let left = 1 + entries.iter().map(|e| e.value.len() as u64).sum::<u64>();
        Self { head, between, end, entries, next: 0, splice, pretty: Some(schema), left }
    }

    /// The number of remaining bytes, if it is known.
    pub fn exact(&self) -> Option<u64> {
        self.pretty.is_none().then_some(self.left)
    }

    /// The minimum number of remaining bytes; 0 at the end.
    pub fn least(&self) -> u64 {
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
                out.extend_from_slice(&self.between);
            }
            match self.pretty {
                None => (self.splice)(&mut out, e),
                Some(schema) => indent(&mut out, self.splice, e, schema),
            }
            self.next += 1;
        }
        if self.next == self.entries.len() {
            out.extend_from_slice(&self.end);
            self.entries = Vec::new();
            self.next = 0;
            debug_assert!(self.pretty.is_some() || self.left == out.len() as u64);
            self.left = 0;
        } else {
            let sent = out.len() as u64;
            self.left = if self.pretty.is_some() { self.left.saturating_sub(sent).max(1) } else { self.left - sent };
        }
        Some(out.into())
    }
}

fn indent(out: &mut Vec<u8>, splice: fn(&mut Vec<u8>, &Entry), entry: &Entry, schema: Option<&Schema>) {
    let mut text = Vec::new();
    splice(&mut text, entry);
    if format_typed(out, &text, schema, INDENT, LEVELS) {
        return;
    }
    // Nested deeply.
    let mut whole = Vec::new();
    match stored::encode::parse(&text) {
        Some(value) => write_typed(&mut whole, &value, schema, Some(INDENT)),
        None => whole = text,
    }
    for (i, line) in whole.split(|b| *b == b'\n').enumerate() {
        if i > 0 {
            out.push(b'\n');
            out.extend_from_slice(INDENT.repeat(LEVELS).as_bytes());
        }
        out.extend_from_slice(line);
    }
}
