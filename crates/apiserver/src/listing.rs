//! Encodes a list in pieces, decoding only one piece of its objects at a time.
//!
//! Each piece is encoded as a separate list, without the bytes before and after its objects. The result equals the
//! encoding of the complete list, in every encoding.

use crate::body::Body;
use crate::content::{self, Encoding, Negotiated, PROTOBUF};
use crate::joined::indented;
use meta::{Status, Value};
use registry::Resource;
use std::sync::Arc;
use store::Entry;

/// Stored bytes per piece.
const PIECE: usize = 512 << 10;

pub struct Listing {
    /// Without indentation, which the complete list gets while it is sent.
    negotiated: Negotiated,
    pretty: bool,
    /// The list without its objects, and the field that holds them.
    list: Value,
    field: &'static str,
    form: Form,
    out: Vec<u8>,
}

enum Form {
    Text {
        media: &'static str,
        before: Vec<u8>,
        between: Vec<u8>,
        after: Vec<u8>,
    },
    /// `before` is the length of the message without objects.
    Protobuf {
        before: usize,
    },
    /// Encodings with a length prefix for the array.
    Whole(Vec<Value>),
}

impl Listing {
    pub fn new(negotiated: &Negotiated, mut list: Value, field: &'static str) -> Self {
        let pretty = negotiated.pretty && negotiated.encoding == Encoding::Json;
        let negotiated = Negotiated { pretty: false, ..*negotiated };
        list[field] = Value::Array(Vec::new());
        let protobuf = || content::message(&list).map(|m| m.len());
        let form = match negotiated.encoding {
            Encoding::Cbor => Form::Whole(Vec::new()),
            Encoding::Protobuf => match protobuf() {
                Some(before) => Form::Protobuf { before },
                None => text(&negotiated, &mut list, field),
            },
            Encoding::Json | Encoding::Yaml => text(&negotiated, &mut list, field),
        };
        Self { negotiated, pretty, list, field, form, out: Vec::new() }
    }

    /// Appends objects.
    pub fn push(&mut self, items: Vec<Value>) -> Result<(), Status> {
        if items.is_empty() {
            return Ok(());
        }
        if let Form::Whole(all) = &mut self.form {
            all.extend(items);
            return Ok(());
        }
        self.list[self.field] = Value::Array(items);
        match &self.form {
            Form::Text { before, between, after, .. } => {
                let (_, piece) = content::write(&self.negotiated, &self.list);
                let own = piece.strip_prefix(&before[..]).and_then(|p| p.strip_suffix(&after[..]));
                let own = own.ok_or_else(|| Status::internal("a part of a list has another form than the list"))?;
                self.out.extend_from_slice(if self.out.is_empty() { before } else { between });
                self.out.extend_from_slice(own);
            }
            Form::Protobuf { before } => {
                let message = content::message(&self.list);
                let message = message.ok_or_else(|| Status::internal("an object cannot be written as protobuf"))?;
                let from = if self.out.is_empty() { 0 } else { *before };
                self.out.extend_from_slice(message.get(from..).unwrap_or_default());
            }
            Form::Whole(_) => {}
        }
        self.list[self.field] = Value::Array(Vec::new());
        Ok(())
    }

    /// Returns the media type and bytes of the complete list.
    pub fn finish(self) -> (&'static str, Body) {
        let pretty = self.pretty;
        let (media, mut bytes) = self.compact();
        if pretty {
            bytes.truncate(bytes.trim_ascii_end().len());
            return (media, indented(bytes));
        }
        (media, bytes.into())
    }

    fn compact(mut self) -> (&'static str, Vec<u8>) {
        match self.form {
            Form::Text { media, after, .. } if !self.out.is_empty() => {
                self.out.extend_from_slice(&after);
                (media, self.out)
            }
            Form::Protobuf { .. } if !self.out.is_empty() => {
                let named = |k: &str| self.list[k].as_str().unwrap_or_default();
                (PROTOBUF, codec::protobuf::envelope(named("apiVersion"), named("kind"), &self.out))
            }
            Form::Whole(all) => {
                self.list[self.field] = Value::Array(all);
                content::write(&self.negotiated, &self.list)
            }
            _ => content::write(&self.negotiated, &self.list),
        }
    }
}

/// The bytes of a JSON list before, between and after its objects.
pub fn frame(negotiated: &Negotiated, mut list: Value, field: &'static str) -> [Vec<u8>; 3] {
    match text(negotiated, &mut list, field) {
        Form::Text { before, between, after, .. } => [before, between, after],
        Form::Protobuf { .. } | Form::Whole(_) => Default::default(),
    }
}

/// Finds the bytes around the objects, using a unique marker in their position.
fn text(negotiated: &Negotiated, list: &mut Value, field: &'static str) -> Form {
    let (media, empty) = content::write(negotiated, list);
    let longest = empty.split(|b| *b != b'x').map(<[u8]>::len).max().unwrap_or_default();
    let word = format!("here{}", "x".repeat(longest + 1));
    list[field] = Value::Array(vec![word.clone().into()]);
    let (_, with) = content::write(negotiated, list);
    list[field] = Value::Array(Vec::new());
    let (element, is_yaml) = match negotiated.encoding {
        Encoding::Yaml => (format!("- {word}\n"), true),
        _ => (format!("\"{word}\""), false),
    };
    let at = memchr::memmem::find(&with, element.as_bytes()).unwrap_or_default();
    let (before, after) = (with[..at].to_vec(), with[at + element.len()..].to_vec());
    let line = before.iter().rposition(|b| *b == b'\n').map(|n| &before[n..]);
    let between = match line {
        _ if is_yaml => Vec::new(),
        Some(line) if negotiated.pretty => [b",", line].concat(),
        _ => b",".to_vec(),
    };
    Form::Text { media, before, between, after }
}

/// The objects of a page in pieces, decoded one after the other. Larger if a conversion webhook is needed: each piece
/// is one call.
pub fn pieces<'a>(row: &Resource, entries: &'a [Arc<Entry>]) -> impl Iterator<Item = &'a [Arc<Entry>]> {
    let defaults = row.strategy.adds_defaults();
    let parts = if row.strategy.converter().is_some() { 4 } else { 1 };
    pieces_by(entries, move |e| (e.value.len() + defaults) / parts)
}

/// Splits a slice into parts of at least one element and limited total size.
pub fn pieces_by<T>(mut all: &[T], size: impl Fn(&T) -> usize) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = all.iter().take_while(|x| {
            bytes += size(x);
            bytes <= PIECE
        });
        let n = fits.count().max(1);
        let (piece, rest) = all.split_at_checked(n)?;
        all = rest;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::{META_V1, Shape};
    use serde_json::json;

    #[test]
    fn pieces_make_the_bytes_of_the_whole() {
        let map = |n: usize| {
            let text = format!("here {n}\n  - herex\n\"here\": ' {}", "long words ".repeat(n % 9 * 20));
            json!({"metadata": {"name": format!("m{n}"), "labels": {"a": "b"}}, "data": {"x": text, "y": "", "z": "1"}})
        };
        let items: Vec<Value> = (0..23).map(map).collect();
        let lists = [
            (
                json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "7", "continue": "here"}}),
                "items",
            ),
            (json!({"kind": "OddList", "apiVersion": "example.com/v1", "metadata": {"resourceVersion": "7"}}), "items"),
            (json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {}}), "items"),
            (
                json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {},
                "columnDefinitions": [{"name": "herexx", "description": "- here\n"}]}),
                "rows",
            ),
            // Column descriptions come from authors of definitions.
            (
                json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {},
                "columnDefinitions": [{"name": "a", "description": format!("here{}", "x".repeat(200_000))}]}),
                "rows",
            ),
        ];
        for (list, field) in &lists {
            for encoding in [Encoding::Json, Encoding::Yaml, Encoding::Protobuf, Encoding::Cbor] {
                for (pretty, count) in [(false, 23), (true, 23), (false, 1), (false, 0)] {
                    let negotiated = Negotiated { encoding, pretty, shape: Shape::Object, meta: META_V1 };
                    let items = &items[..count];
                    let mut whole = list.clone();
                    whole[*field] = items.to_vec().into();
                    for step in [1, 4, 100] {
                        let mut listing = Listing::new(&negotiated, list.clone(), field);
                        items.chunks(step).for_each(|c| listing.push(c.to_vec()).unwrap());
                        let (media, body) = listing.finish();
                        let bytes = body.whole().unwrap();
                        let (expected_media, expected) = content::write(&negotiated, &whole);
                        assert!(
                            (media, &*bytes) == (expected_media, &*expected),
                            "{encoding:?} {pretty} {count} {step}:\n{}\n{}",
                            String::from_utf8_lossy(&bytes),
                            String::from_utf8_lossy(&expected)
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_piece_has_as_much_as_fits_and_one_at_least() {
        let sizes = [1, PIECE, 1, PIECE - 1, 1, 2 * PIECE, 0, 0, 1];
        let cut: Vec<&[usize]> = pieces_by(&sizes, |s| *s).collect();
        assert_eq!(cut, [&sizes[..1], &sizes[1..2], &sizes[2..4], &sizes[4..5], &sizes[5..6], &sizes[6..]]);
        assert_eq!(pieces_by(&[0_usize; 0], |s| *s).count(), 0);
    }

    /// Issue 17: a pretty list was decoded as a whole before the first byte was sent, and took 20 times as long as a plain one.
    #[test]
    fn pretty_lists_are_joined_from_stored_bytes() {
        let deep = (0..200).fold(json!(1), |v, _| json!([v]));
        let data = [json!({"x": "line\u{2028}end", "a": ""}), json!({}), json!({"deep": deep, "f": 1.0, "g": -2.5e-9})];
        for (kind, version, bare, count) in [
            ("Pod", "v1", true, 1),
            ("Pod", "v1", true, 3),
            ("ConfigMap", "v1", true, 3),
            ("Odd", "example.com/v1", false, 3),
        ] {
            let object = |n: usize| {
                let metadata = json!({"uid": "u", "name": format!("n{n}"), "labels": {"b": "1", "a": "2"}});
                let spec = json!({"nodeName": "n", "containers": [{"name": "c", "image": "i"}]});
                let all =
                    json!({"kind": kind, "apiVersion": version, "metadata": metadata, "data": data[n], "spec": spec});
                meta::Object::from_value(all).unwrap()
            };
            let entries: Vec<Arc<Entry>> = (0..count)
                .map(|n| {
                    let key = store::Key::new("things", "ns", &format!("n{n}"));
                    let index = stored::encode::index_fn(std::collections::HashMap::new());
                    Entry::new(key, stored::encode::encode(&object(n)), 7 + n as u64, index)
                })
                .map(Arc::from)
                .collect();
            let negotiated = Negotiated { encoding: Encoding::Json, pretty: true, shape: Shape::Object, meta: META_V1 };
            let list_kind = format!("{kind}List");
            let list = json!({"kind": list_kind, "apiVersion": version, "metadata": {"resourceVersion": "9"}});
            let mut whole = list.clone();
            whole["items"] = (0..count)
                .map(|n| {
                    let mut o = object(n);
                    o.set_resource_version(&(7 + n).to_string());
                    if bare {
                        o.remove(&["kind"]);
                        o.remove(&["apiVersion"]);
                    }
                    o.into_value()
                })
                .collect();
            let splice = if bare { stored::encode::splice_bare } else { stored::encode::splice };
            let schema = crate::order::schema_of_items(version, &list_kind);
            let mut joined = crate::joined::Joined::pretty(frame(&negotiated, list, "items"), entries, splice, schema);
            let sent: Vec<u8> = std::iter::from_fn(|| joined.next_piece()).flatten().collect();
            let (_, expected) = content::write(&negotiated, &whole);
            if bare {
                let at = |part: &str| memchr::memmem::find(&sent, part.as_bytes());
                assert!(at("\"metadata\"") < at("\"items\""), "as in Go's types");
            }
            assert_eq!(String::from_utf8(sent).unwrap(), String::from_utf8(expected).unwrap(), "{kind} {count}");
        }
    }
}
