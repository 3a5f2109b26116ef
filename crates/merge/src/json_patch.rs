//! RFC 6902 as kube-apiserver v1.36 applies it (evanphx/json-patch v4), which is laxer than the RFC in places: `replace` of
//! a missing member adds it, negative indices count from the end, `test` of a missing member against `null` succeeds, the
//! whole document cannot be replaced.

use meta::{Map, Reason, Status, Value, depth};
use schema::typed::have;

/// Maximum number of operations of a patch.
pub const MAX_OPERATIONS: usize = 10_000;
/// Maximum bytes by which all `copy` operations of a patch together may grow the document.
pub const MAX_COPY_BYTES: usize = 3 << 20;
/// Maximum values that all operations of a patch together may move within lists and between paths. Upstream has no such limit; only patches that
/// are made to be slow exceed it.
pub const MAX_STEPS: usize = 50_000_000;

/// The error of a JSON patch.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not a list of objects.
    #[error("error decoding patch: {0}")]
    Decode(String),
    /// The patch has more operations than allowed.
    #[error("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {0}")]
    TooMany(usize),
    /// An operation refers to a path that does not exist.
    #[error("{op} operation does not apply: doc is missing path: {path:?}: missing value")]
    MissingPath {
        /// The operation.
        op: &'static str,
        /// The path.
        path: String,
    },
    /// An operation failed.
    #[error("error in {op} for path: '{path}': {why}")]
    At {
        /// The operation.
        op: &'static str,
        /// Its path.
        path: String,
        /// The reason.
        why: String,
    },
    /// A `test` failed at this path.
    #[error("testing value {0} failed: test failed")]
    Test(String),
    /// An operation lacks this member.
    #[error("operation missing {0} field: missing value")]
    MissingMember(&'static str),
    /// There is no operation of this name.
    #[error("Unexpected kind: {0}")]
    UnknownOperation(String),
    #[error(
        "Unable to complete the copy, the accumulated size increase of copy is {0}, exceeding the limit {MAX_COPY_BYTES}"
    )]
    /// `copy` operations grow the document beyond this limit.
    CopySize(usize),
    /// The result is nested too deep.
    #[error("the patched document nests deeper than {} levels", depth::MAX)]
    Depth,
    /// The operations move too many values.
    #[error("the operations move more than {MAX_STEPS} values of the document")]
    Steps,
}

impl Error {
    /// The status of the response: 400 for an invalid patch, 413 for a patch that is too long, 422 for one that does not apply.
    pub fn status(&self) -> Status {
        match self {
            Self::Decode(_) => Status::bad_request(self.to_string()),
            Self::TooMany(_) | Self::Steps => Status::too_large(self.to_string()),
            Self::Depth => Status::bad_request(self.to_string()),
            _ => rejected(),
        }
    }
}

/// A response 422 without a reason, as upstream for a patch that does not apply.
pub(crate) fn rejected() -> Status {
    Status::new(422, Reason::Invalid, "the server rejected our request due to an error in our request")
        .with_details(meta::status::Details::default())
}

/// A decoded patch.
#[derive(Clone, Debug)]
pub struct Patch {
    operations: Vec<Map<String, Value>>,
    /// Whether it has unescaped characters that Go's encoder escapes.
    unescaped: bool,
}

/// Characters that Go's encoder escapes (`\u003c` and the like).
const ESCAPED: [char; 5] = ['<', '>', '&', '\u{2028}', '\u{2029}'];

/// Whether a string value contains such a character.
fn has_escaped(v: &Value) -> bool {
    match v {
        Value::String(s) => s.contains(ESCAPED),
        Value::Array(a) => a.iter().any(has_escaped),
        Value::Object(m) => m.values().any(has_escaped),
        _ => false,
    }
}

/// The error of a wrong type.
fn cannot(v: &Value, want: &str) -> Error {
    Error::Decode(format!("json: cannot unmarshal {} into Go value of type {want}", have(v)))
}

impl Patch {
    /// From the JSON document; `null` is the empty patch.
    pub fn decode(v: Value) -> Result<Self, Error> {
        let ops = match v {
            Value::Null => Vec::new(),
            Value::Array(a) => a,
            other => return Err(cannot(&other, "[]handlers.jsonPatchOp")),
        };
        let ops = ops
            .into_iter()
            .map(|o| match o {
                Value::Object(m) => Ok(m),
                Value::Null => Ok(Map::new()),
                other => Err(cannot(&other, "handlers.jsonPatchOp")),
            })
            .collect::<Result<Vec<_>, _>>()?;
        if ops.len() > MAX_OPERATIONS {
            return Err(Error::TooMany(ops.len()));
        }
        Ok(Self { operations: ops, unescaped: false })
    }

    /// Records the text of the patch. Upstream's `test` compares texts, not values: `<` in a patch is not equal to what the
    /// server's encoder makes of it.
    #[must_use]
    pub fn written(self, text: &[u8]) -> Self {
        let unescaped = std::str::from_utf8(text).is_ok_and(|t| t.contains(ESCAPED));
        Self { unescaped, ..self }
    }

    /// Paths of unknown members of operations (`[0].foo`), up to the limit of reports.
    pub fn unknown_members(&self) -> Vec<String> {
        let operations = self.operations.iter().enumerate();
        let unknown = |k: &&String| !matches!(k.as_str(), "op" | "path" | "from" | "value");
        let named = operations.flat_map(|(i, o)| o.keys().filter(unknown).map(move |k| format!("[{i}].{k}")));
        named.take(schema::MOST_REPORTED).collect()
    }

    /// Rejects members of a wrong type, as strict decoding before anything is applied.
    pub fn check_members(&self) -> Result<(), Error> {
        for (o, name) in self.operations.iter().flat_map(|o| ["op", "path", "from"].map(|name| (o, name))) {
            let have = match o.get(name) {
                None | Some(Value::Null | Value::String(_)) => continue,
                Some(v) => have(v),
            };
            let why = format!("json: cannot unmarshal {have} into Go struct field jsonPatchOp.{name} of type string");
            return Err(Error::Decode(why));
        }
        Ok(())
    }

    /// Applies the operations in order. On an error the document is left half done: work on a copy.
    pub fn apply(self, doc: &mut Value) -> Result<(), Error> {
        let mut copied = 0;
        let mut work = Work { steps: 0, deepest: depth::of_value(doc).max(depth::MAX) };
        let compares = |op: &Map<String, Value>| {
            op.get("op").is_some_and(|o| o == "test") && op.get("value").is_some_and(has_escaped)
        };
        // Values of earlier operations have the patch's text.
        let mut encoded = (self.unescaped && self.operations.iter().any(compares)).then(|| doc.clone());
        for mut op in self.operations {
            let path = |op: &Map<String, Value>, key: &'static str| match op.get(key) {
                Some(Value::String(s)) => Ok(s.clone()),
                _ => Err(Error::MissingMember(key)),
            };
            let kind = op.get("op").and_then(Value::as_str).unwrap_or("unknown").to_owned();
            match kind.as_str() {
                "add" => {
                    let p = path(&op, "path")?;
                    let v = op.remove("value").unwrap_or_default();
                    work.nest(&p, &v)?;
                    add(doc, "add", &p, v, &mut work)?;
                }
                "remove" => _ = remove(doc, "remove", &path(&op, "path")?, &mut work)?,
                "replace" => {
                    let p = path(&op, "path")?;
                    let v = op.remove("value").unwrap_or_default();
                    work.nest(&p, &v)?;
                    replace(doc, &p, v)?;
                }
                "move" => {
                    let (from, to) = (path(&op, "from")?, path(&op, "path")?);
                    let v = remove(doc, "move", &from, &mut work)?;
                    work.nest(&to, &v)?;
                    add(doc, "move", &to, v, &mut work)?;
                }
                "copy" => {
                    let (from, to) = (path(&op, "from")?, path(&op, "path")?);
                    let v = get(doc, "copy", &from)?.cloned().unwrap_or_default();
                    copied += v.to_string().len();
                    if copied > MAX_COPY_BYTES {
                        return Err(Error::CopySize(copied));
                    }
                    work.nest(&to, &v)?;
                    add(doc, "copy", &to, v, &mut work)?;
                }
                "test" => {
                    let p = path(&op, "path")?;
                    let want = op.get("value").unwrap_or(&Value::Null);
                    let written_else = has_escaped(want)
                        && encoded.as_mut().is_some_and(|d| matches!(get(d, "test", &p), Ok(Some(v)) if v == want));
                    if written_else || get(doc, "test", &p)?.unwrap_or(&Value::Null) != want {
                        return Err(Error::Test(p));
                    }
                }
                _ => return Err(Error::UnknownOperation(kind)),
            }
        }
        Ok(())
    }
}

/// The work of a patch so far.
struct Work {
    steps: usize,
    /// Maximum depth of the result. A stored object that is deeper than the limit may still be changed in other parts.
    deepest: usize,
}

impl Work {
    fn step(&mut self, steps: usize) -> Result<(), Error> {
        self.steps += steps;
        if self.steps > MAX_STEPS { Err(Error::Steps) } else { Ok(()) }
    }

    /// Refuses a value that would nest too deep at its new place. A document could otherwise be copied into itself until it
    /// is as deep as it is long, and no stack would be large enough to drop it.
    fn nest(&mut self, path: &str, v: &Value) -> Result<(), Error> {
        let place = path.bytes().filter(|b| *b == b'/').count();
        let mut left = vec![(v, place + 1)];
        while let Some((v, depth)) = left.pop() {
            let inner: &mut dyn Iterator<Item = &Value> = match v {
                Value::Array(a) => &mut a.iter(),
                Value::Object(m) => &mut m.values(),
                _ => continue,
            };
            if depth > self.deepest {
                return Err(Error::Depth);
            }
            let before = left.len();
            left.extend(inner.map(|v| (v, depth + 1)));
            self.step(left.len() - before)?;
        }
        Ok(())
    }
}

fn unescape(part: &str) -> String {
    part.replace("~1", "/").replace("~0", "~")
}

fn at(op: &'static str, path: &str, why: impl Into<String>) -> Error {
    Error::At { op, path: path.to_owned(), why: why.into() }
}

fn invalid_index(i: i64) -> String {
    format!("Unable to access invalid index: {i}: invalid index referenced")
}

/// An index of a list of `len` items, from the end when negative.
fn index(key: &str, len: usize) -> Result<usize, String> {
    let i: i64 = key.parse().map_err(|_| format!("value was not a proper array index: '{key}'"))?;
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    if i >= len || i < -len {
        return Err(invalid_index(i));
    }
    usize::try_from(if i < 0 { i + len } else { i }).map_err(|_| invalid_index(i))
}

/// The container a path ends in, and the last key. What stands before the first slash is ignored, as upstream does.
fn container<'a>(doc: &'a mut Value, op: &'static str, path: &str) -> Result<(&'a mut Value, String), Error> {
    let missing = || Error::MissingPath { op, path: path.to_owned() };
    let mut parts = path.split('/').skip(1).peekable();
    let mut here = doc;
    while let Some(part) = parts.next() {
        let key = unescape(part);
        if parts.peek().is_none() {
            return if here.is_object() || here.is_array() { Ok((here, key)) } else { Err(missing()) };
        }
        here = match here {
            Value::Object(m) => m.get_mut(&key).ok_or_else(missing)?,
            Value::Array(a) => {
                let i = index(&key, a.len()).map_err(|_| missing())?;
                &mut a[i]
            }
            _ => return Err(missing()),
        };
    }
    Err(missing())
}

fn get<'a>(doc: &'a mut Value, op: &'static str, path: &str) -> Result<Option<&'a Value>, Error> {
    // Only `test` and `replace` know the whole document.
    if op == "test" && path.is_empty() {
        return Ok(Some(doc));
    }
    let (con, key) = container(doc, op, path)?;
    match con {
        Value::Array(a) => {
            let i = index(&key, a.len()).map_err(|why| at(op, path, why))?;
            Ok(Some(&a[i]))
        }
        other => Ok(other.get(&key)),
    }
}

fn add(doc: &mut Value, op: &'static str, path: &str, v: Value, work: &mut Work) -> Result<(), Error> {
    match container(doc, op, path)? {
        (Value::Object(m), key) => _ = m.insert(key, v),
        (Value::Array(a), key) if key == "-" => a.push(v),
        (Value::Array(a), key) => {
            let i = index(&key, a.len() + 1).map_err(|why| at(op, path, why))?;
            work.step(a.len() - i)?;
            a.insert(i, v);
        }
        _ => {}
    }
    Ok(())
}

fn remove(doc: &mut Value, op: &'static str, path: &str, work: &mut Work) -> Result<Value, Error> {
    match container(doc, op, path)? {
        (Value::Object(m), key) => m
            .remove(&key)
            .ok_or_else(|| at(op, path, format!("Unable to remove nonexistent key: {key}: missing value"))),
        (Value::Array(a), key) => {
            let i = index(&key, a.len()).map_err(|why| at(op, path, why))?;
            work.step(a.len() - i)?;
            Ok(a.remove(i))
        }
        _ => Ok(Value::Null),
    }
}

fn replace(doc: &mut Value, path: &str, v: Value) -> Result<(), Error> {
    if path.is_empty() {
        if !v.is_object() && !v.is_array() {
            return Err(at("replace", path, "value must be object or array"));
        }
        *doc = v;
        return Ok(());
    }
    match container(doc, "replace", path)? {
        (Value::Object(m), key) => _ = m.insert(key, v),
        (Value::Array(a), key) => {
            let i = index(&key, a.len()).map_err(|why| at("replace", path, why))?;
            a[i] = v;
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn apply(doc: &Value, patch: Value) -> Result<Value, Error> {
        let mut d = doc.clone();
        Patch::decode(patch)?.apply(&mut d)?;
        Ok(d)
    }

    #[test]
    fn a_document_does_not_grow_into_itself() {
        let copies: Vec<Value> =
            (0..depth::MAX + 1).map(|_| json!({"op": "copy", "from": "/a", "path": "/a/a"})).collect();
        assert!(matches!(apply(&json!({"a": {}}), copies.clone().into()), Err(Error::Depth)));
        assert!(apply(&json!({"a": {}}), copies[..7].to_vec().into()).is_ok());
        let moves: Vec<Value> = (0..depth::MAX + 1)
            .flat_map(|_| {
                [
                    json!({"op": "move", "from": "/a", "path": "/b"}),
                    json!({"op": "add", "path": "/a", "value": {}}),
                    json!({"op": "move", "from": "/b", "path": "/a/x"}),
                ]
            })
            .collect();
        assert!(matches!(apply(&json!({"a": {}}), moves.into()), Err(Error::Depth)));
    }

    #[test]
    fn values_are_not_moved_without_end() {
        let list = json!({"a": vec![0; 100_000], "b": []});
        let first: Vec<Value> = (0..MAX_OPERATIONS).map(|_| json!({"op": "add", "path": "/a/0", "value": 1})).collect();
        assert!(matches!(apply(&list, first.into()), Err(Error::Steps)));
        let to_and_fro: Vec<Value> = (0..MAX_OPERATIONS)
            .map(|i| {
                let (from, path) = if i % 2 == 0 { ("/a", "/c") } else { ("/c", "/a") };
                json!({"op": "move", "from": from, "path": path})
            })
            .collect();
        assert!(matches!(apply(&list, to_and_fro.into()), Err(Error::Steps)));
        let few: Vec<Value> = (0..100).map(|_| json!({"op": "add", "path": "/a/0", "value": 1})).collect();
        assert!(apply(&list, few.into()).is_ok());
    }

    #[test]
    fn operations_apply_as_upstream_applies_them() {
        let doc = json!({"a": {"b": [1, 2, 3], "c/d": 1, "e~f": 2, "n": null}, "s": "x"});
        for (patch, want) in [
            (json!({"op": "add", "path": "/x", "value": {"y": 1}}), json!({"x": {"y": 1}})),
            (json!({"op": "add", "path": "/a/b/-", "value": 4}), json!({"a/b": [1, 2, 3, 4]})),
            (json!({"op": "add", "path": "/a/b/0", "value": 4}), json!({"a/b": [4, 1, 2, 3]})),
            (json!({"op": "add", "path": "/a/b/3", "value": 4}), json!({"a/b": [1, 2, 3, 4]})),
            (json!({"op": "add", "path": "/a/b/-1", "value": 4}), json!({"a/b": [1, 2, 3, 4]})),
            (json!({"op": "remove", "path": "/a/b/-1"}), json!({"a/b": [1, 2]})),
            (json!({"op": "replace", "path": "/a/b/1", "value": 9}), json!({"a/b": [1, 9, 3]})),
            (json!({"op": "replace", "path": "/missing", "value": 9}), json!({"missing": 9})),
            (json!({"op": "replace", "path": "/a/c~1d", "value": 9}), json!({"a/c~1d": 9})),
            (json!({"op": "replace", "path": "/a/e~0f", "value": 9}), json!({"a/e~0f": 9})),
            (json!({"op": "move", "from": "/s", "path": "/t"}), json!({"t": "x", "s": null})),
            (json!({"op": "copy", "from": "/s", "path": "/t"}), json!({"t": "x", "s": "x"})),
            (json!({"op": "test", "path": "/s", "value": "x"}), json!({})),
            (json!({"op": "test", "path": "", "value": doc}), json!({})),
            (json!({"op": "replace", "path": "", "value": {"only": 1}}), json!({"only": 1, "s": null})),
            (json!({"op": "test", "path": "/missing", "value": null}), json!({})),
            (json!({"op": "test", "path": "/a/n", "value": null}), json!({})),
            (json!({"op": "test", "path": "/a/b", "value": [1, 2, 3]}), json!({})),
        ] {
            let got = apply(&doc, json!([patch])).unwrap_or_else(|e| panic!("{patch}: {e}"));
            for (path, v) in want.as_object().unwrap() {
                let found = got.pointer(&format!("/{path}")).cloned().unwrap_or_default();
                assert_eq!(&found, v, "{patch}");
            }
        }
        assert_eq!(apply(&doc, Value::Null).unwrap(), doc);
    }

    #[test]
    fn a_test_compares_what_is_written() {
        let doc = json!({"a": {"k<": "v", "rule": "x <= 5"}, "b": "y"});
        let run = |text: &str| {
            let patch = Patch::decode(serde_json::from_str(text).unwrap()).unwrap().written(text.as_bytes());
            patch.apply(&mut doc.clone()).is_ok()
        };
        for (text, fits) in [
            (r#"[{"op": "test", "path": "/a/rule", "value": "x <= 5"}]"#, false),
            (r#"[{"op": "test", "path": "/a", "value": {"k<": "v", "rule": "x <= 5"}}]"#, false),
            (r#"[{"op": "test", "path": "/a/rule", "value": "x \u003c= 5"}]"#, true),
            (r#"[{"op": "test", "path": "/a/k<", "value": "v"}]"#, true),
            (
                r#"[{"op": "add", "path": "/b", "value": "a & b"}, {"op": "test", "path": "/b", "value": "a & b"}]"#,
                true,
            ),
        ] {
            assert_eq!(run(text), fits, "{text}");
        }
    }

    #[test]
    fn what_does_not_apply_is_a_bare_422() {
        let doc = json!({"a": {"b": [1]}, "n": null, "s": "x"});
        for patch in [
            json!({"op": "remove", "path": "/x"}),
            json!({"op": "remove", "path": "/a/b/1"}),
            json!({"op": "remove", "path": "/a/b/-2"}),
            json!({"op": "remove", "path": "/a/b/-"}),
            json!({"op": "add", "path": "/x/y", "value": 1}),
            json!({"op": "add", "path": "/n/y", "value": 1}),
            json!({"op": "add", "path": "/s/y", "value": 1}),
            json!({"op": "add", "path": "/a/b/3", "value": 1}),
            json!({"op": "add", "path": "/a/b/x", "value": 1}),
            json!({"op": "add", "path": "", "value": {}}),
            json!({"op": "replace", "path": "", "value": 1}),
            json!({"op": "test", "path": "", "value": {}}),
            json!({"op": "remove", "path": ""}),
            json!({"op": "add"}),
            json!({"op": "replace", "path": "/x/y", "value": 1}),
            json!({"op": "replace", "path": "/a/b/1", "value": 1}),
            json!({"op": "test", "path": "/s", "value": "y"}),
            json!({"op": "test", "path": "/s"}),
            json!({"op": "test", "path": "/a", "value": {}}),
            json!({"op": "test", "path": "/x", "value": 1}),
            json!({"op": "move", "from": "/x", "path": "/y"}),
            json!({"op": "copy", "from": "/x/y", "path": "/y"}),
            json!({"op": "frob", "path": "/a"}),
            json!({}),
        ] {
            let Err(e) = apply(&doc, json!([patch])) else { panic!("{patch} applied") };
            let s = e.status();
            assert_eq!((s.code, s.reason), (422, Reason::Invalid), "{patch}");
            assert_eq!(s.message, "the server rejected our request due to an error in our request");
        }
    }

    #[test]
    fn what_is_no_patch_or_too_long_is_refused() {
        for (patch, code) in [
            (json!({"op": "add"}), 400),
            (json!("x"), 400),
            (json!([1]), 400),
            (Value::Array(vec![json!({"op": "test", "path": "/x"}); MAX_OPERATIONS + 1]), 413),
        ] {
            assert_eq!(apply(&json!({}), patch).unwrap_err().status().code, code);
        }
        let longest = Value::Array(vec![json!({"op": "test", "path": "/x", "value": null}); MAX_OPERATIONS]);
        assert!(apply(&json!({}), longest).is_ok());
        // Doubling by copies ends at the limit instead of in memory.
        let doc = json!({"a": ["x".repeat(1000)]});
        let bomb = Value::Array(vec![json!({"op": "copy", "from": "/a", "path": "/a/-"}); 40]);
        assert!(matches!(apply(&doc, bomb), Err(Error::CopySize(_))));
    }
}
