//! Parses JSON and reports duplicate keys.
//!
//! As in Go, the last of two equal keys wins. Duplicates are reported with full paths, for `fieldValidation`.

pub mod syntax;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::fmt;

/// A decoded document.
#[derive(Debug)]
pub struct Decoded {
    /// The value.
    pub value: Value,
    /// Paths of duplicate keys: `spec.replicas`, `spec.containers[0].name`.
    pub duplicates: Vec<String>,
}

/// The error of invalid JSON, in the form of Go's.
#[derive(Debug)]
pub struct DecodeError(pub String);

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DecodeError {}

/// Maximum of duplicate or unknown fields that are reported, as in Go (`sigs.k8s.io/json`).
pub const MOST_REPORTED: usize = 100;
/// Maximum bytes of reported paths: a document can repeat keys below a long one any number of times.
pub(crate) const MOST_WRITTEN: usize = 256 << 10;

/// Maximum nesting of a document, as in Go.
pub const MAX_DEPTH: usize = 10_000;

/// Parses one JSON document. The caller checks [`meta::depth::of_text`] first: recursion is as deep as the text. Invalid UTF-8
/// and half of a surrogate pair become U+FFFD, as in Go.
pub fn decode(text: &[u8]) -> Result<Decoded, DecodeError> {
    // The check of valid text is much faster than the replacement.
    let valid = match str::from_utf8(text) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => String::from_utf8_lossy(text),
    };
    let read = parse(&valid).or_else(|e| match without_half_pairs(&valid) {
        Some(mended) => parse(&mended),
        None => Err(e),
    });
    read.map_err(|e| go_message(&e, text))
}

fn parse(text: &str) -> Result<Decoded, serde_json::Error> {
    let state = State::default();
    let mut d = serde_json::Deserializer::from_str(text);
    d.disable_recursion_limit();
    let value = Seed(&state).deserialize(&mut d)?;
    d.end()?;
    Ok(Decoded { value, duplicates: state.duplicates.into_inner() })
}

/// The text with `\ufffd` for every escape that is half of a surrogate pair; none if there is none.
fn without_half_pairs(text: &str) -> Option<String> {
    let unit = |at: usize| {
        let hex = text.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(hex, 16).ok()
    };
    let (mut out, mut from, mut at) = (String::new(), 0, 0);
    while let Some(found) = text[at..].find('\\') {
        at += found;
        match (unit(at), unit(at + 6)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => at += 12,
            (Some(0xd800..=0xdfff), _) => {
                out.push_str(&text[from..at]);
                out.push_str("\\ufffd");
                at += 6;
                from = at;
            }
            // The escaped character may be a backslash, or have several bytes in invalid JSON.
            _ => at += 1 + text[at + 1..].chars().next().map_or(0, char::len_utf8),
        }
    }
    (from > 0).then(|| out + &text[from..])
}

/// The error message of Go, unless Go accepts the text.
fn go_message(e: &serde_json::Error, text: &[u8]) -> DecodeError {
    DecodeError(syntax::wrong(text).unwrap_or_else(|| format!("invalid JSON: {e}")))
}

#[derive(Default)]
struct State {
    path: RefCell<Vec<Segment>>,
    duplicates: RefCell<Vec<String>>,
    /// Bytes of all paths, reported or not.
    written: Cell<usize>,
}

enum Segment {
    Key(String),
    Index(usize),
}

impl State {
    fn report(&self, key: &str) {
        if self.duplicates.borrow().len() >= MOST_REPORTED || self.written.get() > MOST_WRITTEN {
            return;
        }
        let mut text = String::new();
        for s in self.path.borrow().iter() {
            match s {
                Segment::Key(k) if text.is_empty() => text.push_str(k),
                Segment::Key(k) => {
                    text.push('.');
                    text.push_str(k);
                }
                Segment::Index(i) => text.push_str(&format!("[{i}]")),
            }
        }
        if !text.is_empty() {
            text.push('.');
        }
        text.push_str(key);
        self.written.set(self.written.get() + text.len());
        let mut d = self.duplicates.borrow_mut();
        if !d.contains(&text) {
            d.push(text);
        }
    }
}

struct Seed<'a>(&'a State);

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<Value, E> {
        Number::from_f64(v).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        loop {
            self.0.path.borrow_mut().push(Segment::Index(out.len()));
            let next = seq.next_element_seed(Seed(self.0))?;
            self.0.path.borrow_mut().pop();
            match next {
                Some(v) => out.push(v),
                None => return Ok(out.into()),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if out.contains_key(&key) {
                self.0.report(&key);
            }
            self.0.path.borrow_mut().push(Segment::Key(key));
            let value = map.next_value_seed(Seed(self.0))?;
            match self.0.path.borrow_mut().pop() {
                Some(Segment::Key(key)) => out.insert(key, value),
                _ => return Err(A::Error::custom("lost the path")),
            };
        }
        Ok(out.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_reported_with_their_paths_and_the_last_wins() {
        let d = decode(br#"{"a":1,"b":[{"c":1,"c":2}],"a":3,"a":4}"#).unwrap();
        assert_eq!(d.value, serde_json::json!({"a": 4, "b": [{"c": 2}]}));
        assert_eq!(d.duplicates, ["b[0].c", "a"]);
    }

    #[test]
    fn what_is_reported_is_bounded() {
        let text: String = (0..50_000).map(|i| format!("\"k{i}\":1,\"k{i}\":2,")).collect();
        let d = decode(format!("{{{}}}", text.trim_end_matches(',')).as_bytes()).unwrap();
        assert_eq!((d.duplicates.len(), d.duplicates[99].as_str(), d.value["k49999"].as_i64()), (100, "k99", Some(2)));
        // The same few duplicates below a long key, over and over: writing each path would take hours.
        let inner = vec![r#""p":{"a":1,"a":2}"#; 50_000].join(",");
        let d = decode(format!("{{\"{}\":{{{inner}}}}}", "x".repeat(400_000)).as_bytes()).unwrap();
        assert!(d.duplicates.len() <= 2 && d.duplicates[0].ends_with(".p.a"), "{}", d.duplicates.len());
    }

    #[test]
    fn what_is_no_json_is_refused() {
        assert!(decode(b"{").is_err() && decode(b"{} x").is_err() && decode(b"").is_err());
    }

    #[test]
    fn what_is_no_text_is_read_as_go_reads_it() {
        assert_eq!(decode(b"{\"a\":\"x\xffy\"}").unwrap().value["a"], "x\u{fffd}y");
        assert_eq!(
            decode(br#"{"a":"\ud800x\\ud800\ud83d\ude00\udc00"}"#).unwrap().value["a"],
            "\u{fffd}x\\ud800\u{1f600}\u{fffd}"
        );
        assert!(decode(br#"{"a":"\ud800"#).is_err() && decode(br#"{"a":"\ud8"}"#).is_err());
    }
}
