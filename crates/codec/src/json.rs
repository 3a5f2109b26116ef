//! JSON as Go's `encoding/json` writes it, and surgery on encoded objects that spares decoding them.
//!
//! Left out: reading. `serde_json` reads values, and strict decoding with paths is the schema's business.

mod indent;
mod text;

pub use indent::Indenter;
pub use text::{format_typed, indented_len};

use meta::Value;
use schema::{Schema, Type};
use serde_json::Number;
use std::io::Write as _;

/// What happens to `<`, `>` and `&` in strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Html {
    /// `\u003c`, the default of Go's encoder (and so of `kubectl -o json`).
    Escape,
    /// As they are, what the API server sends.
    Keep,
}

/// Whether the bytes are JSON rather than YAML: the first character that is no white space is a brace, as
/// `GuessJSONStream` decides.
pub fn is_json(bytes: &[u8]) -> bool {
    bytes.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{')
}

/// Compact, nothing between tokens, no newline at the end.
pub fn to_vec(v: &Value, html: Html) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    write(&mut out, v, html);
    out
}

/// Compact JSON as a string.
pub fn to_string(v: &Value, html: Html) -> String {
    String::from_utf8_lossy(&to_vec(v, html)).into_owned()
}

/// Indented by four spaces, with a newline at the end: `kubectl -o json`.
pub fn to_string_indent(v: &Value) -> String {
    let mut out = Vec::with_capacity(1024);
    write_with(&mut out, v, None, Html::Escape, Some("    "));
    out.push(b'\n');
    String::from_utf8_lossy(&out).into_owned()
}

/// Appends compact JSON.
pub fn write(out: &mut Vec<u8>, v: &Value, html: Html) {
    write_with(out, v, None, html, None);
}

/// Appends JSON as the API server sends it: the fields of a struct in the order of its Go type, the keys of a map sorted; indented
/// if `indent` is given, else compact with a newline at its end.
pub fn write_typed(out: &mut Vec<u8>, v: &Value, schema: Option<&Schema>, indent: Option<&str>) {
    write_with(out, v, schema, Html::Keep, indent);
    if indent.is_none() {
        out.push(b'\n');
    }
}

enum Frame<'a> {
    Object(serde_json::map::Iter<'a>, Option<&'a Schema>),
    Struct(std::vec::IntoIter<Member<'a, &'a String, &'a Value>>),
    Array(std::slice::Iter<'a, Value>, Option<&'a Schema>),
}

/// A member of an object: its name and value, and what the type says of it.
struct Member<'s, N, V> {
    name: N,
    value: V,
    schema: Option<&'s Schema>,
    place: usize,
}

/// The members of an object in the order of the type: `kind`, `apiVersion` and `metadata`, its fields, then members that the type does not have.
/// `members` are the identification of a name, its text, and the value.
fn in_order<'n, 's, N, V>(members: impl Iterator<Item = (N, &'n str, V)>, s: &'s Schema) -> Vec<Member<'s, N, V>> {
    let is_kind = s.field("kind").is_some() && s.field("apiVersion").is_some();
    let member = |(name, text, value): (N, &'n str, V)| {
        let field = s.field(text);
        let place = match (text, field) {
            ("kind", Some(f)) if is_kind && f.number == 0 => 0,
            ("apiVersion", Some(f)) if is_kind && f.number == 0 => 1,
            ("metadata", Some(_)) if is_kind => 2,
            (_, Some(f)) => 3 + usize::from(f.place),
            (_, None) => usize::MAX,
        };
        Member { name, value, schema: field.map(|f| f.schema.get()), place }
    };
    let mut all: Vec<_> = members.map(member).collect();
    all.sort_by_key(|m| m.place);
    all
}

fn write_with(out: &mut Vec<u8>, root: &Value, schema: Option<&Schema>, html: Html, indent: Option<&str>) {
    // Explicit, because a value may be nested deeper than a thread's stack allows.
    let mut stack: Vec<Frame<'_>> = Vec::new();
    let mut next = Some((root, schema));
    loop {
        if let Some((v, schema)) = next.take() {
            let schema = schema.map(|s| shape(s, v));
            match v {
                Value::Null => out.extend_from_slice(b"null"),
                Value::Bool(b) => out.extend_from_slice(if *b { b"true" } else { b"false" }),
                Value::Number(n) => write_number(out, n),
                Value::String(s) => write_str(out, s, html),
                Value::Array(a) if a.is_empty() => out.extend_from_slice(b"[]"),
                Value::Object(m) if m.is_empty() => out.extend_from_slice(b"{}"),
                Value::Array(a) => {
                    out.push(b'[');
                    stack.push(Frame::Array(a.iter(), schema.and_then(|s| s.items.as_deref())));
                }
                Value::Object(m) => {
                    out.push(b'{');
                    stack.push(match schema.filter(|s| s.ty == Type::Struct && !s.custom) {
                        Some(s) => {
                            Frame::Struct(in_order(m.iter().map(|(name, v)| (name, name.as_str(), v)), s).into_iter())
                        }
                        None => Frame::Object(m.iter(), schema.and_then(|s| s.additional.as_deref())),
                    });
                }
            }
        }
        let depth = stack.len();
        let Some(top) = stack.last_mut() else { return };
        let first = matches!(out.last(), Some(b'[' | b'{'));
        let item = match top {
            Frame::Object(it, values) => it.next().map(|(k, v)| (Some(k), (v, *values))),
            Frame::Struct(it) => it.next().map(|m| (Some(m.name), (m.value, m.schema))),
            Frame::Array(it, items) => it.next().map(|v| (None, (v, *items))),
        };
        match item {
            Some((key, v)) => {
                if !first {
                    out.push(b',');
                }
                new_line(out, indent, depth);
                if let Some(k) = key {
                    write_str(out, k, html);
                    out.push(b':');
                    if indent.is_some() {
                        out.push(b' ');
                    }
                }
                next = Some(v);
            }
            None => {
                new_line(out, indent, depth - 1);
                out.push(if matches!(top, Frame::Array(..)) { b']' } else { b'}' });
                stack.pop();
            }
        }
    }
}

/// What a value of several possible shapes is.
fn shape<'a>(s: &'a Schema, v: &Value) -> &'a Schema {
    let ty = if v.is_array() { Type::Array } else { Type::Struct };
    s.alternative(ty).map_or(s, |a| a.schema.get())
}

fn new_line(out: &mut Vec<u8>, indent: Option<&str>, depth: usize) {
    if let Some(i) = indent {
        out.push(b'\n');
        for _ in 0..depth {
            out.extend_from_slice(i.as_bytes());
        }
    }
}

fn write_number(out: &mut Vec<u8>, n: &Number) {
    match (n.as_i64(), n.as_u64(), n.as_f64()) {
        (Some(i), _, _) => _ = write!(out, "{i}"),
        (_, Some(u), _) => _ = write!(out, "{u}"),
        (_, _, f) => out.extend_from_slice(float(f.unwrap_or_default()).as_bytes()),
    }
}

/// A float as Go's encoder prints it: no trailing `.0`, an exponent below 1e-6 and from 1e21.
pub fn float(f: f64) -> String {
    let a = f.abs();
    if a != 0.0 && !(1e-6..1e21).contains(&a) {
        let s = format!("{f:e}");
        return match s.split_once('e') {
            Some((m, e)) if !e.starts_with('-') => format!("{m}e+{e:0>2}"),
            Some((m, e)) => format!("{m}e{e}"),
            None => s,
        };
    }
    format!("{f}")
}

const HEX: &[u8; 16] = b"0123456789abcdef";

fn write_str(out: &mut Vec<u8>, s: &str, html: Html) {
    out.push(b'"');
    let bytes = s.as_bytes();
    let mut from = 0;
    for (i, &b) in bytes.iter().enumerate() {
        let escape: &[u8] = match b {
            b'"' => b"\\\"",
            b'\\' => b"\\\\",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            b'\t' => b"\\t",
            8 => b"\\b",
            12 => b"\\f",
            b'<' if html == Html::Escape => b"\\u003c",
            b'>' if html == Html::Escape => b"\\u003e",
            b'&' if html == Html::Escape => b"\\u0026",
            0..0x20 => &[b'\\', b'u', b'0', b'0', HEX[usize::from(b >> 4)], HEX[usize::from(b & 15)]],
            // U+2028 and U+2029, which JavaScript takes for line ends.
            0xe2 if bytes[i..].starts_with(&[0xe2, 0x80, 0xa8]) => b"\\u2028",
            0xe2 if bytes[i..].starts_with(&[0xe2, 0x80, 0xa9]) => b"\\u2029",
            _ => continue,
        };
        out.extend_from_slice(&bytes[from..i]);
        out.extend_from_slice(escape);
        from = i + if b == 0xe2 { 3 } else { 1 };
    }
    out.extend_from_slice(&bytes[from..]);
    out.push(b'"');
}

/// Where `resourceVersion` goes into an encoded object that lacks it: just inside the opening brace of `metadata`.
/// `None` when the bytes are no object with a `metadata` object, or `metadata` has a `resourceVersion` already.
pub fn resource_version_offset(bytes: &[u8]) -> Option<usize> {
    let mut s = Scan { bytes, at: 0 };
    let metadata = s.member(b"metadata")?;
    s.at = metadata;
    if s.peek()? != b'{' {
        return None;
    }
    let inside = s.at + 1;
    match s.member(b"resourceVersion") {
        Some(_) => None,
        None => Some(inside),
    }
}

/// Appends the object with its `resourceVersion` in place. `offset` comes from [`resource_version_offset`] of the same
/// bytes; one beyond the end appends the bytes unchanged.
pub fn splice_resource_version(out: &mut Vec<u8>, bytes: &[u8], offset: usize, resource_version: &str) {
    let Some((head, tail)) = bytes.split_at_checked(offset) else {
        out.extend_from_slice(bytes);
        return;
    };
    out.reserve(bytes.len() + resource_version.len() + 22);
    out.extend_from_slice(head);
    out.extend_from_slice(b"\"resourceVersion\":\"");
    out.extend_from_slice(resource_version.as_bytes());
    out.push(b'"');
    if tail.iter().find(|b| !b.is_ascii_whitespace()) != Some(&b'}') {
        out.push(b',');
    }
    out.extend_from_slice(tail);
}

/// A reader that skips over valid JSON without building anything.
struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Scan<'_> {
    fn peek(&mut self) -> Option<u8> {
        while self.bytes.get(self.at)?.is_ascii_whitespace() {
            self.at += 1;
        }
        self.bytes.get(self.at).copied()
    }

    /// Stands at an object and finds the start of a member's value.
    fn member(&mut self, key: &[u8]) -> Option<usize> {
        if self.peek()? != b'{' {
            return None;
        }
        self.at += 1;
        while self.peek()? != b'}' {
            let from = self.at + 1;
            self.string()?;
            let found = &self.bytes[from..self.at - 1] == key;
            if self.peek()? != b':' {
                return None;
            }
            self.at += 1;
            self.peek()?;
            if found {
                return Some(self.at);
            }
            self.value()?;
            if self.peek()? == b',' {
                self.at += 1;
            }
        }
        None
    }

    fn string(&mut self) -> Option<()> {
        if self.peek()? != b'"' {
            return None;
        }
        self.at += 1;
        loop {
            match self.bytes.get(self.at)? {
                b'"' => break,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        Some(())
    }

    fn value(&mut self) -> Option<()> {
        let mut depth = 0usize;
        loop {
            match self.peek()? {
                b'"' => self.string()?,
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                    continue;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                b',' | b':' => {
                    self.at += 1;
                    continue;
                }
                _ => {
                    while self.bytes.get(self.at).is_some_and(|b| !b",]}: \n\r\t".contains(b)) {
                        self.at += 1;
                    }
                }
            }
            if depth == 0 {
                return Some(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_are_written_as_go_writes_them() {
        for (text, want) in [
            ("1.0", "1"),
            ("-0.0", "-0"),
            ("1.5", "1.5"),
            ("1e3", "1000"),
            ("1e20", "100000000000000000000"),
            ("1e21", "1e+21"),
            ("1.25e300", "1.25e+300"),
            ("1e-6", "0.000001"),
            ("1e-7", "1e-7"),
            ("1.5e-10", "1.5e-10"),
            ("18446744073709551615", "18446744073709551615"),
            ("-9223372036854775808", "-9223372036854775808"),
            ("0.1", "0.1"),
        ] {
            let v: Value = serde_json::from_str(text).unwrap();
            assert_eq!(to_string(&v, Html::Keep), want, "{text}");
        }
    }

    #[test]
    fn strings_are_escaped_as_go_escapes_them() {
        let v = json!("a<b>&\"\\\n\r\t\u{8}\u{c}\u{1}\u{1f}\u{7f}é\u{2028}\u{2029}€😀");
        assert_eq!(
            to_string(&v, Html::Escape),
            "\"a\\u003cb\\u003e\\u0026\\\"\\\\\\n\\r\\t\\b\\f\\u0001\\u001f\u{7f}é\\u2028\\u2029€😀\""
        );
        assert!(to_string(&v, Html::Keep).starts_with("\"a<b>&"));
    }

    #[test]
    fn indentation_is_kubectls() {
        let v = json!({"b": [1, {"c": {}}], "a": [], "d": {}});
        let want = "{\n    \"a\": [],\n    \"b\": [\n        1,\n        {\n            \"c\": {}\n        }\n    ],\n    \"d\": {}\n}\n";
        assert_eq!(to_string_indent(&v), want);
        assert_eq!(to_string(&v, Html::Keep), r#"{"a":[],"b":[1,{"c":{}}],"d":{}}"#);
        assert_eq!(to_string(&json!(["["]), Html::Keep), r#"["["]"#);
        assert_eq!(to_string(&json!({"[": "{", "x": "{"}), Html::Keep), r#"{"[":"{","x":"{"}"#);
    }

    #[test]
    fn json_is_told_from_yaml_by_its_first_brace() {
        for (text, want) in [(" \n{\"a\":1}", true), ("a: {}", false), ("[1]", false), ("", false), ("---\n{}", false)]
        {
            assert_eq!(is_json(text.as_bytes()), want, "{text}");
        }
    }

    #[test]
    fn resource_version_is_spliced_into_the_metadata() {
        for (text, want) in [
            (
                r#"{"a":{"metadata":{}},"metadata":{"name":"x"}}"#,
                Some(r#"{"a":{"metadata":{}},"metadata":{"resourceVersion":"7","name":"x"}}"#),
            ),
            (r#"{"metadata":{}}"#, Some(r#"{"metadata":{"resourceVersion":"7"}}"#)),
            (
                r#"{ "x": ["metadata", {"q":"\"}"}], "metadata" : { "n":"}" } }"#,
                Some(r#"{ "x": ["metadata", {"q":"\"}"}], "metadata" : {"resourceVersion":"7", "n":"}" } }"#),
            ),
            (r#"{"metadata":{"resourceVersion":"1"}}"#, None),
            (r#"{"metadata":null}"#, None),
            (r#"{"spec":{"metadata":{}}}"#, None),
            ("", None),
        ] {
            let at = resource_version_offset(text.as_bytes());
            let got = at.map(|o| {
                let mut out = Vec::new();
                splice_resource_version(&mut out, text.as_bytes(), o, "7");
                String::from_utf8(out).unwrap()
            });
            assert_eq!(got.as_deref(), want, "{text}");
        }
    }

    fn any_value() -> impl proptest::strategy::Strategy<Value = Value> {
        use proptest::prelude::*;
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        let key = || prop_oneof![Just("a".to_owned()), Just("b".to_owned()), Just("kind".to_owned()), ".*"];
        leaf.prop_recursive(6, 64, 6, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(key(), inner, 0..5)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    #[test]
    fn other_text_is_left_to_the_caller() {
        let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
        for text in [deep.as_str(), "", "{", "[1,]", "{\"a\":1", "[1]]", "{\"a\" :1}", "{a:1}", "\"a"] {
            let mut out = Vec::new();
            assert!(!format_typed(&mut out, text.as_bytes(), None, "  ", 0) && out.is_empty(), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn text_is_formatted_as_its_value(v in any_value()) {
            let mut fields = Vec::new();
            for name in ["kind", "b", "apiVersion", "a"] {
                fields.push(schema::Field::new(name, schema::SchemaRef::Inline(Schema::new(Type::Any).into())));
            }
            let typed = Schema { fields, ..Schema::new(Type::Struct) };
            for schema in [None, Some(&typed)] {
                let mut want = Vec::new();
                write_typed(&mut want, &v, schema, Some("  "));
                let mut got = Vec::new();
                let text = serde_json::to_vec(&v).unwrap();
                assert!(format_typed(&mut got, &text, schema, "  ", 0));
                proptest::prop_assert_eq!(String::from_utf8(got).unwrap(), String::from_utf8(want).unwrap());
            }
        }

        #[test]
        fn what_is_written_is_read_back(s in ".*", n in proptest::num::f64::NORMAL, i: i64) {
            let v = json!({"s": s, "i": i, "n": n, "l": [s, null, true]});
            let back: Value = serde_json::from_slice(&to_vec(&v, Html::Escape)).unwrap();
            proptest::prop_assert_eq!(back["s"].as_str(), v["s"].as_str());
            proptest::prop_assert_eq!(back["i"].as_i64(), Some(i));
            proptest::prop_assert_eq!(back["n"].as_f64(), Some(n));
        }
    }
}
