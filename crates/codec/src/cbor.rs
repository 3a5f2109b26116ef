//! CBOR as Kubernetes speaks it (`k8s.io/apimachinery/pkg/runtime/serializer/cbor`).
//!
//! Strings are written as byte strings, keys in the order of their encodings, and a document begins with the tag of
//! CBOR. Read is what has a JSON value: text and byte strings, also those tagged with an expected encoding, and no numbers
//! beyond 64 bits. Left out: the tag for bytes that expect base64; what is written has been encoded already, which readers take
//! for granted where no tag defines another one.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ciborium::Value as Item;
use meta::{Map, Value};

/// The tag 55799, which only marks CBOR (RFC 8949, section 3.4.6).
const SELF_DESCRIBED: [u8; 3] = [0xd9, 0xd9, 0xf7];

/// Bytes that are to be shown as base64url, base64 and base16.
const LATER_BASE64URL: u64 = 21;
const LATER_BASE64: u64 = 22;
const LATER_BASE16: u64 = 23;

/// The error of invalid CBOR.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes are no CBOR.
    #[error("cbor: {0}")]
    Syntax(String),
    /// Bytes follow the document: their number, and the offset of the first one.
    #[error("cbor: {0} bytes of extraneous data starting at index {1}")]
    Extraneous(usize, usize),
    /// A map has a key twice: the key, and the index of its entry.
    #[error("cbor: found duplicate map key {0:?} at map element index {1}")]
    Duplicate(String, usize),
    /// An item has no JSON value: the item, and the Go type that upstream decodes it into.
    #[error("cbor: cannot unmarshal {0} into Go value of type {1}")]
    Type(&'static str, &'static str),
    /// The document is nested deeper than this limit.
    #[error("cbor: exceeded max nested level {0}")]
    Deep(usize),
}

/// Reads one document, which may nest `within` levels.
pub fn decode(bytes: &[u8], within: usize) -> Result<Value, Error> {
    let mut rest = bytes;
    let item: Item = ciborium::de::from_reader_with_recursion_limit(&mut rest, within).map_err(|e| match e {
        ciborium::de::Error::RecursionLimitExceeded => Error::Deep(within),
        ciborium::de::Error::Io(_) => Error::Syntax("unexpected EOF".into()),
        ciborium::de::Error::Syntax(at) => Error::Syntax(format!("invalid data at index {at}")),
        ciborium::de::Error::Semantic(_, why) => Error::Syntax(why),
    })?;
    if !rest.is_empty() {
        return Err(Error::Extraneous(rest.len(), bytes.len() - rest.len()));
    }
    value(item)
}

fn value(item: Item) -> Result<Value, Error> {
    Ok(match item {
        Item::Null => Value::Null,
        Item::Bool(b) => b.into(),
        Item::Integer(n) => i64::try_from(n).map_err(|_| Error::Type("integer beyond 64 bits", "interface {}"))?.into(),
        Item::Float(f) => serde_json::Number::from_f64(f)
            .map(Value::Number)
            .ok_or(Error::Type("floating-point infinity or NaN", "interface {}"))?,
        Item::Array(items) => Value::Array(items.into_iter().map(value).collect::<Result<_, _>>()?),
        Item::Map(members) => {
            let mut out = Map::new();
            for (i, (k, v)) in members.into_iter().enumerate() {
                let k = string(k)?;
                if out.contains_key(&k) {
                    return Err(Error::Duplicate(k, i));
                }
                out.insert(k, value(v)?);
            }
            Value::Object(out)
        }
        Item::Tag(tag, inner) => match (tag, *inner) {
            (LATER_BASE64, Item::Bytes(b)) => STANDARD.encode(b).into(),
            (LATER_BASE64URL, Item::Bytes(b)) => URL_SAFE_NO_PAD.encode(b).into(),
            (LATER_BASE16, Item::Bytes(b)) => b.iter().map(|b| format!("{b:02x}")).collect::<String>().into(),
            (_, inner) => value(inner)?,
        },
        other => string(other)?.into(),
    })
}

fn string(item: Item) -> Result<String, Error> {
    match item {
        Item::Text(s) => Ok(s),
        Item::Bytes(b) => String::from_utf8(b).map_err(|_| Error::Syntax("invalid UTF-8 string".into())),
        Item::Integer(_) => Err(Error::Type("integer", "string")),
        Item::Float(_) => Err(Error::Type("primitives", "string")),
        Item::Map(_) => Err(Error::Type("map", "string")),
        Item::Array(_) => Err(Error::Type("array", "string")),
        _ => Err(Error::Type("other", "string")),
    }
}

/// Encodes a document, with the tag of CBOR.
pub fn to_vec(v: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    write(&mut out, v);
    out
}

/// Appends a document. Documents one after the other are a sequence (`application/cbor-seq`).
pub fn write(out: &mut Vec<u8>, v: &Value) {
    out.extend_from_slice(&SELF_DESCRIBED);
    // Writing to memory does not fail, and items made of JSON values are all of kinds that there are.
    let _ = ciborium::ser::into_writer(&item(v), out);
}

/// An event of a watch: its object is a document within the document.
pub fn write_event(out: &mut Vec<u8>, kind: &str, object: &Value) {
    let event = [(text("type"), text(kind)), (text("object"), Item::Tag(u64::from(TAG), Box::new(item(object))))];
    out.extend_from_slice(&SELF_DESCRIBED);
    let _ = ciborium::ser::into_writer(&Item::Map(event.into()), out);
}

const TAG: u16 = u16::from_be_bytes([SELF_DESCRIBED[1], SELF_DESCRIBED[2]]);

fn text(s: &str) -> Item {
    Item::Bytes(s.into())
}

fn item(v: &Value) -> Item {
    match v {
        Value::Null => Item::Null,
        Value::Bool(b) => Item::Bool(*b),
        Value::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(i), _) => i.into(),
            (None, Some(u)) => u.into(),
            (None, None) => n.as_f64().unwrap_or_default().into(),
        },
        Value::String(s) => text(s),
        Value::Array(items) => Item::Array(items.iter().map(item).collect()),
        Value::Object(m) => {
            let mut members: Vec<(&String, &Value)> = m.iter().collect();
            // By their encodings, which begin with the length.
            members.sort_by(|(a, _), (b, _)| (a.len(), a).cmp(&(b.len(), b)));
            Item::Map(members.into_iter().map(|(k, v)| (text(k), item(v))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1e300..1e300_f64).prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 64, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
                prop::collection::btree_map(".{0,5}", inner, 0..6).prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(v in any_json()) {
            prop_assert_eq!(decode(&to_vec(&v), 64), Ok(v));
        }

        #[test]
        fn no_bytes_break_the_reader(b in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&b, 64);
        }
    }

    /// The bytes that apimachinery writes for the same.
    #[test]
    fn is_written_as_upstream_writes_it() {
        let v = json!({"metadata": {"name": "a"}, "kind": "X", "n": [1, -1, 1.5, true, null]});
        let mut want = vec![0xd9, 0xd9, 0xf7, 0xa3];
        want.extend_from_slice(b"\x41n\x85\x01\x20\xf9\x3e\x00\xf5\xf6");
        want.extend_from_slice(b"\x44kind\x41X");
        want.extend_from_slice(b"\x48metadata\xa1\x44name\x41a");
        assert_eq!(to_vec(&v), want);
    }

    #[test]
    fn bytes_are_shown_in_the_encoding_they_expect() {
        assert_eq!(decode(b"\xd6\x43\x01\x02\xff", 8), Ok(json!("AQL/")));
        assert_eq!(decode(b"\xd5\x43\x01\x02\xff", 8), Ok(json!("AQL_")));
        assert_eq!(decode(b"\xd7\x43\x01\x02\xff", 8), Ok(json!("0102ff")));
        assert_eq!(decode(b"\xd9\xd9\xf7\x63abc", 8), Ok(json!("abc")));
        assert_eq!(decode(b"\xbf\x61a\x9f\x01\xff\xff", 8), Ok(json!({"a": [1]})), "indefinite length");
    }

    #[test]
    fn what_has_no_json_is_refused() {
        let refused = |b: &[u8]| decode(b, 4).unwrap_err().to_string();
        assert_eq!(refused(b"\xa2\x41a\x01\x61a\x02"), "cbor: found duplicate map key \"a\" at map element index 1");
        assert_eq!(refused(b"\x01\x02"), "cbor: 1 bytes of extraneous data starting at index 1");
        assert_eq!(refused(b"\x81\x81\x81\x81\x81\x01"), "cbor: exceeded max nested level 4");
        assert_eq!(refused(b""), "cbor: unexpected EOF");
        assert_eq!(refused(b"\xa1\x01\x02"), "cbor: cannot unmarshal integer into Go value of type string");
        for bad in
            [&b"\xf9\x7e\x00"[..], b"\xf9\x7c\x00", b"\x1b\xff\xff\xff\xff\xff\xff\xff\xff", b"\x41\xff", b"\x61\xff"]
        {
            assert!(decode(bad, 4).is_err(), "{bad:x?}");
        }
    }
}
