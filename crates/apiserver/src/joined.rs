//! Joins the stored bytes of a list's objects while sending, as they are or indented.
//!
//! Invariant: an unread response holds one piece of its own, and the text of one object that indentation multiplies; the objects are
//! shared with the store.

use crate::body::Body;
use bytes::Bytes;
use codec::json::{Indenter, format_typed, indented_len, write_typed};
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

/// Whether compact text is about as large when it is indented. Indentation multiplies deeply nested text.
fn is_indentable(text: &[u8], levels: usize) -> bool {
    let size = text.len();
    size <= SMALL || indented_len(text, INDENT, levels) <= 2 * size + PIECE
}

/// Indents a compact JSON document; while it is sent if that multiplies its size.
pub fn indented(text: Vec<u8>) -> Body {
    if !is_indentable(&text, 0) {
        return Body::Joined(Box::new(Joined::document(text)));
    }
    let mut out = Vec::with_capacity(text.len() * 3 / 2);
    Indenter::new(INDENT, 0).push(&text, &mut out, usize::MAX);
    out.into()
}

/// Compact text of which a part is indented already.
#[derive(Clone)]
struct Nested {
    text: Bytes,
    indenter: Indenter,
}

impl Nested {
    fn new(text: Vec<u8>, levels: usize) -> Self {
        Self { text: text.into(), indenter: Indenter::new(INDENT, levels) }
    }

    /// Fills a piece. Returns whether this was the rest.
    fn append(&mut self, out: &mut Vec<u8>) -> bool {
        let read = self.indenter.push(&self.text, out, PIECE);
        drop(self.text.split_to(read));
        self.text.is_empty()
    }
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
    /// An object that is indented piece by piece, because indentation multiplies its size.
    nested: Option<Nested>,
    /// The number of remaining bytes; for indented objects, an estimate from below.
    left: u64,
    /// The maximum bytes of its own while it is not read.
    held: usize,
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
        Self { head, between, end, entries, next: 0, splice, pretty: None, nested: None, left, held: PIECE }
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
        let held = PIECE + entries.iter().map(|e| e.value.len()).filter(|size| *size > SMALL).max().unwrap_or_default();
        Self { head, between, end, entries, next: 0, splice, pretty: Some(schema), nested: None, left, held }
    }

    /// Indents one document.
    fn document(text: Vec<u8>) -> Self {
        Self {
            head: Vec::new(),
            between: Vec::new(),
            end: Vec::new(),
            entries: Vec::new(),
            next: 0,
            splice: |_, _| {},
            pretty: Some(None),
            left: text.len() as u64,
            held: PIECE + text.len(),
            nested: Some(Nested::new(text, 0)),
        }
    }

    /// The number of remaining bytes, if it is known.
    pub fn exact(&self) -> Option<u64> {
        self.pretty.is_none().then_some(self.left)
    }

    /// The minimum number of remaining bytes; 0 at the end.
    pub fn least(&self) -> u64 {
        self.left
    }

    /// The maximum memory of an unread response beside the stored objects, in bytes.
    pub fn held(&self) -> usize {
        self.held
    }

    pub fn next_piece(&mut self) -> Option<Bytes> {
        if self.left == 0 {
            return None;
        }
        let mut out = std::mem::take(&mut self.head);
        out.reserve((self.left as usize).min(PIECE + 8192).saturating_sub(out.len()));
        loop {
            if let Some(nested) = &mut self.nested
                && nested.append(&mut out)
            {
                self.nested = None;
            }
            if out.len() >= PIECE {
                break;
            }
            let Some(e) = self.entries.get(self.next) else { break };
            if self.next > 0 {
                out.extend_from_slice(&self.between);
            }
            match self.pretty {
                None => (self.splice)(&mut out, e),
                Some(schema) => self.nested = indent(&mut out, self.splice, e, schema),
            }
            self.next += 1;
        }
        if self.next == self.entries.len() && self.nested.is_none() {
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

/// Appends an object, or returns it if it has to be indented piece by piece.
fn indent(
    out: &mut Vec<u8>,
    splice: fn(&mut Vec<u8>, &Entry),
    entry: &Entry,
    schema: Option<&Schema>,
) -> Option<Nested> {
    let mut text = Vec::new();
    splice(&mut text, entry);
    if is_indentable(&text, LEVELS) && format_typed(out, &text, schema, INDENT, LEVELS) {
        return None;
    }
    if let Some(value) = stored::encode::parse(&text) {
        text.clear();
        write_typed(&mut text, &value, schema, None);
        text.truncate(text.trim_ascii_end().len());
    }
    Some(Nested::new(text, LEVELS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn nested(levels: usize) -> Value {
        let wide = Value::Array(vec![json!({"a": ["}", {}, []]}); 5_000]);
        (0..levels).fold(wide, |v, n| if n % 2 == 0 { json!([v]) } else { json!({"s": "\"{", "v": v}) })
    }

    #[test]
    fn nested_text_is_multiplied_by_indentation() {
        let many = Value::Array(vec![json!(1); 100_000]);
        let nested = (0..100).fold(many, |v, _| json!([v]));
        let is_indentable = |v: Value| is_indentable(v.to_string().as_bytes(), LEVELS);
        assert!(!is_indentable(nested));
        assert!(is_indentable(json!({"text": "[{,".repeat(300_000)})), "brackets in text");
        assert!(is_indentable(json!({"a": [1, 2, {"b": "c"}]})));
    }

    /// An object of 100 kB became 40 MB in memory, for every client that did not read it.
    #[test]
    fn what_indentation_multiplies_is_indented_in_pieces() {
        let list = |items: &[Value]| json!({"kind": "OddList", "apiVersion": "example.com/v1", "items": items});
        let object = |n: usize, levels| json!({"metadata": {"name": format!("n{n}")}, "v": nested(levels)});
        let items: Vec<Value> = [150, 1, 180, 0].into_iter().enumerate().map(|(n, levels)| object(n, levels)).collect();
        let pretty = |v: &Value| {
            let mut out = Vec::new();
            write_typed(&mut out, v, None, Some(INDENT));
            out
        };
        let pieces = |mut joined: Joined| -> Vec<u8> {
            let all: Vec<Bytes> = std::iter::from_fn(|| joined.next_piece()).collect();
            let longest = all.iter().map(Bytes::len).max().unwrap();
            assert!(longest < 2 * PIECE + 8192, "{longest}");
            all.concat()
        };
        let Body::Joined(document) = indented(list(&items).to_string().into_bytes()) else {
            panic!("it is indented at once");
        };
        assert_eq!(document.held(), PIECE + list(&items).to_string().len());
        assert!(pieces(*document) == pretty(&list(&items)));
        assert_eq!(indented(b"{\"a\":[1]}".to_vec()).whole().unwrap(), "{\n  \"a\": [\n    1\n  ]\n}");

        let entry = |(n, v): (usize, &Value)| {
            let key = store::Key::new("things", "ns", &format!("n{n}"));
            let index = stored::encode::index_fn(std::collections::HashMap::new());
            Arc::from(Entry::new(key, v.to_string().into(), 7, index))
        };
        let entries: Vec<Arc<Entry>> = items.iter().enumerate().map(entry).collect();
        let text = |out: &mut Vec<u8>, e: &Entry| out.extend_from_slice(&e.value);
        let frame = [b"{\n  \"items\": [\n    ".to_vec(), b",\n    ".to_vec(), b"\n  ]\n}".to_vec()];
        let joined = Joined::pretty(frame, entries, text, None);
        assert!(pieces(joined) == pretty(&json!({"items": items})));
    }
}
