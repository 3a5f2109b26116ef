//! Objects as the store keeps them: JSON in the stored version, `kind`, `apiVersion` and `metadata` first, without
//! `resourceVersion`, which the revision gives. To be read, they are spliced, not decoded.

use crate::pool::Pool;
use bytes::Bytes;
use meta::{Map, Object, Value};
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::io::Write;
use std::sync::Arc;
use store::{Entry, Index, IndexFn, Key, Str};

/// Where `metadata` opens: the index's mark is the offset behind it.
const METADATA: &[u8] = b"\"metadata\":{";

thread_local! {
    /// Where objects are encoded before their size is known: what is kept is allocated once, and no larger than it is.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}
/// A scratch buffer that grew larger is given back.
const SCRATCH_MAX: usize = 1 << 20;

/// The stored form of an object.
pub fn encode(object: &Object) -> Bytes {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.clear();
        write(scratch, object);
        let bytes = Bytes::copy_from_slice(scratch);
        if scratch.capacity() > SCRATCH_MAX {
            *scratch = Vec::new();
        }
        bytes
    })
}

fn write(out: &mut Vec<u8>, object: &Object) {
    out.push(b'{');
    for key in ["kind", "apiVersion"] {
        if let Some(v) = object.get(key) {
            member(out, key, v);
        }
    }
    out.extend_from_slice(METADATA);
    let metadata = object.metadata().into_iter().flatten();
    for (k, v) in metadata.filter(|(k, _)| *k != "resourceVersion") {
        member(out, k, v);
    }
    trim_comma(out);
    out.extend_from_slice(b"},");
    for (k, v) in object.0.iter().filter(|(k, _)| !matches!(k.as_str(), "kind" | "apiVersion" | "metadata")) {
        member(out, k, v);
    }
    trim_comma(out);
    out.push(b'}');
}

fn member(out: &mut Vec<u8>, key: &str, v: &Value) {
    // Writing to memory does not fail.
    let _ = serde_json::to_writer(&mut *out, key);
    out.push(b':');
    let _ = serde_json::to_writer(&mut *out, v);
    out.push(b',');
}

fn trim_comma(out: &mut Vec<u8>) {
    if out.last() == Some(&b',') {
        out.pop();
    }
}

/// Reads a stored object and gives it the resource version of its revision.
pub fn decode(entry: &Entry) -> Object {
    let mut object = decode_bytes(&entry.value);
    object.set_resource_version(&entry.revision.to_string());
    object
}

/// Reads a stored object; its resource version is missing.
pub fn decode_bytes(bytes: &[u8]) -> Object {
    // The store holds what `encode` wrote.
    match serde_json::from_slice::<Map<String, Value>>(bytes) {
        Ok(m) => Object(m),
        Err(e) => {
            tracing::error!("a stored object cannot be read: {e}");
            Object::default()
        }
    }
}

/// Appends the JSON of an entry with its resource version.
pub fn splice(out: &mut Vec<u8>, entry: &Entry) {
    let mark = entry.index().mark as usize;
    splice_from(out, entry, 0, mark);
}

/// Appends the JSON of an entry as an item of a list of its kind: without `kind` and `apiVersion`.
pub fn splice_bare(out: &mut Vec<u8>, entry: &Entry) {
    let mark = entry.index().mark as usize;
    out.push(b'{');
    splice_from(out, entry, mark - METADATA.len(), mark);
}

fn splice_from(out: &mut Vec<u8>, entry: &Entry, from: usize, mark: usize) {
    let value = &entry.value;
    out.reserve(value.len() + 40);
    out.extend_from_slice(&value[from..mark]);
    let _ = write!(out, "\"resourceVersion\":\"{}\"", entry.revision);
    if value.get(mark) != Some(&b'}') {
        out.push(b',');
    }
    out.extend_from_slice(&value[mark..]);
}

/// Appends the `PartialObjectMetadata` of an entry.
pub fn splice_metadata(out: &mut Vec<u8>, entry: &Entry) {
    let mark = entry.index().mark as usize;
    let rest = &entry.value[mark..];
    let metadata = &rest[..closing(rest)];
    out.extend_from_slice(b"{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1\",");
    out.extend_from_slice(METADATA);
    let _ = write!(out, "\"resourceVersion\":\"{}\"", entry.revision);
    if !metadata.is_empty() {
        out.push(b',');
    }
    out.extend_from_slice(metadata);
    out.extend_from_slice(b"}}");
}

/// Where the object closes whose first member begins here.
fn closing(json: &[u8]) -> usize {
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    for (i, b) in json.iter().enumerate() {
        match b {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'{' | b'[' if !quoted => depth += 1,
            b'}' if !quoted && depth == 0 => return i,
            b'}' | b']' if !quoted => depth -= 1,
            _ => {}
        }
    }
    json.len()
}

/// Makes the index function of the store: labels, and the selectable fields of each resource by its storage name.
pub fn index_fn(selectable: HashMap<String, Vec<String>>) -> IndexFn {
    let plans: HashMap<String, Wanted> = selectable.into_iter().map(|(k, v)| (k, Wanted::of(&v))).collect();
    let none = Wanted::of(&[]);
    let pool = Pool::default();
    Arc::new(move |key: &Key, value: &[u8]| {
        let wanted = plans.get(&*key.resource).unwrap_or(&none);
        index(value, wanted, &pool, |path| match path {
            NAME => Some(key.name.clone()),
            NAMESPACE => Some(key.namespace.clone()),
            _ => None,
        })
    })
}

/// The offset behind the brace that opens `metadata` in a stored object.
pub fn mark(value: &[u8]) -> usize {
    value.windows(METADATA.len()).position(|w| w == METADATA).map_or(0, |i| i + METADATA.len())
}

/// Fields that the key says.
const NAME: &str = "metadata.name";
const NAMESPACE: &str = "metadata.namespace";

fn index(value: &[u8], wanted: &Wanted, pool: &Pool, known: impl Fn(&str) -> Option<Str>) -> Index {
    let mark = mark(value);
    let mut found = Found { labels: Vec::new(), fields: Vec::new(), pool };
    let said = wanted.said.iter().filter_map(|path| Some((path.clone(), known(path)?)));
    found.fields.extend(said.filter(|(_, text)| !text.is_empty()));
    pick(value, wanted, &mut found);
    Index { labels: pool.labels(found.labels), fields: found.fields.into(), mark: mark as u32 }
}

fn pick(value: &[u8], wanted: &Wanted, found: &mut Found<'_>) {
    let mut d = serde_json::Deserializer::from_slice(value);
    // What ends it early is that everything was found.
    let _ = Pick { wanted, found, last: true, root: true }.deserialize(&mut d);
}

/// The text of one field of a stored object; empty when it has none.
pub fn field(value: &[u8], path: &str) -> String {
    let mut wanted = Wanted::default();
    wanted.field(path);
    let pool = Pool::default();
    let mut found = Found { labels: Vec::new(), fields: Vec::new(), pool: &pool };
    pick(value, &wanted, &mut found);
    found.fields.first().map(|(_, v)| v.to_string()).unwrap_or_default()
}

/// The paths that are looked for, as a tree; everything beside it is skipped unread.
#[derive(Default)]
struct Wanted {
    children: Vec<(String, Wanted)>,
    field: Option<Str>,
    labels: bool,
    /// Of the root: fields that need not be looked for.
    said: Vec<Str>,
}

impl Wanted {
    fn of(fields: &[String]) -> Self {
        let mut root = Self::default();
        root.child("metadata").child("labels").labels = true;
        for f in fields {
            match f.as_str() {
                NAME | NAMESPACE => root.said.push(f.as_str().into()),
                _ => root.field(f),
            }
        }
        root
    }

    fn field(&mut self, path: &str) {
        let mut at = self;
        for step in path.split('.') {
            at = at.child(step);
        }
        at.field = Some(path.into());
    }

    fn child(&mut self, name: &str) -> &mut Self {
        let i = match self.children.iter().position(|(n, _)| n == name) {
            Some(i) => i,
            None => {
                self.children.push((name.to_owned(), Self::default()));
                self.children.len() - 1
            }
        };
        &mut self.children[i].1
    }
}

struct Found<'p> {
    labels: Vec<(Str, Str)>,
    fields: Vec<(Str, Str)>,
    pool: &'p Pool,
}

struct Pick<'a, 'p> {
    wanted: &'a Wanted,
    found: &'a mut Found<'p>,
    /// Nothing is wanted behind this value.
    last: bool,
    /// The object itself, whose members are not sorted.
    root: bool,
}

impl Pick<'_, '_> {
    fn text(self, text: &str) {
        if let Some(f) = &self.wanted.field {
            self.found.fields.push((f.clone(), self.found.pool.text(text)));
        }
    }
}

impl<'de> DeserializeSeed<'de> for Pick<'_, '_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Pick<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, v: bool) -> Result<(), E> {
        self.text(if v { "true" } else { "false" });
        Ok(())
    }

    fn visit_i64<E>(self, v: i64) -> Result<(), E> {
        self.text(&v.to_string());
        Ok(())
    }

    fn visit_u64<E>(self, v: u64) -> Result<(), E> {
        self.text(&v.to_string());
        Ok(())
    }

    fn visit_f64<E>(self, v: f64) -> Result<(), E> {
        self.text(&v.to_string());
        Ok(())
    }

    fn visit_str<E>(self, v: &str) -> Result<(), E> {
        self.text(v);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        if self.wanted.labels {
            while let Some((k, v)) = map.next_entry::<std::borrow::Cow<'de, str>, Value>()? {
                let value = self.found.pool.text(v.as_str().unwrap_or_default());
                self.found.labels.push((self.found.pool.text(&k), value));
            }
            return Ok(());
        }
        let mut left = self.wanted.children.len();
        while let Some(k) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            match self.wanted.children.iter().find(|(n, _)| *n == *k) {
                Some((_, wanted)) => {
                    left = left.saturating_sub(1);
                    let last = self.last && left == 0;
                    map.next_value_seed(Pick { wanted, found: self.found, last, root: false })?;
                }
                None => {
                    if !self.root && self.wanted.children.iter().all(|(n, _)| **n < *k) {
                        left = 0;
                    }
                    if left > 0 || !self.last {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
            }
            if left == 0 && self.last {
                return Err(A::Error::custom("everything was found"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn entry(object: Value, fields: &[&str]) -> Entry {
        let value = encode(&Object::from_value(object).unwrap());
        let f = index_fn(HashMap::from([("r".to_owned(), fields.iter().map(|f| (*f).to_owned()).collect())]));
        let key = Key { resource: "r".into(), namespace: "".into(), name: "n".into() };
        Entry::new(key, value, 7, f)
    }

    #[test]
    fn an_entry_is_spliced_without_being_decoded() {
        let o = json!({"apiVersion": "v1", "kind": "K", "data": {"a": "\"metadata\":{"}, "metadata": {"name": "n",
            "resourceVersion": "3", "labels": {"b": "c"}}, "spec": {"x": {"y": true}}});
        let e = entry(o.clone(), &["spec.x.y", "spec.z"]);
        let mut want = o;
        want["metadata"]["resourceVersion"] = "7".into();
        let mut out = Vec::new();
        splice(&mut out, &e);
        assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), want);
        assert_eq!(decode(&e).into_value(), want);
        out.clear();
        splice_bare(&mut out, &e);
        want.as_object_mut().unwrap().remove("kind");
        want.as_object_mut().unwrap().remove("apiVersion");
        assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), want);
        assert_eq!(&*e.index().labels, &[("b".into(), "c".into())]);
        assert_eq!(&*e.index().fields, &[("spec.x.y".into(), "true".into())]);
    }

    #[test]
    fn no_more_is_read_than_is_wanted() {
        let made = |fields: &[&str], value: &'static str| {
            let f = index_fn(HashMap::from([("r".to_owned(), fields.iter().map(|f| (*f).to_owned()).collect())]));
            let key = Key { resource: "r".into(), namespace: "s".into(), name: "n".into() };
            Entry::new(key, Bytes::from_static(value.as_bytes()), 7, f)
        };
        // What comes behind the labels is no JSON: whoever reads on finds nothing more.
        let e = made(&[NAME, NAMESPACE], r#"{"kind":"K","metadata":{"labels":{"b":"c"},"managedFields":..."#);
        assert_eq!(&*e.index().labels, &[("b".into(), "c".into())]);
        assert_eq!(&*e.index().fields, &[(NAME.into(), "n".into()), (NAMESPACE.into(), "s".into())]);
        let e = made(&["spec.x"], r#"{"metadata":{"labels":{"b":"c"},"uid":"u"},"spec":{"w":1,"x":"y","z":..."#);
        assert_eq!((e.index().labels.len(), &*e.index().fields), (1, &[("spec.x".into(), "y".into())][..]));
        let e = made(&["spec.x"], r#"{"metadata":{"labels":{"b":"c"},"uid":...},"spec":{"x":"y"}}"#);
        assert_eq!(
            (e.index().labels.len(), e.index().fields.len()),
            (1, 0),
            "all of the metadata lies before the spec"
        );
        assert_eq!(field(br#"{"metadata":{"name":"n","uid":..."#, NAME), "n");
    }
}
