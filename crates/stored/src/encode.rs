//! The stored form of objects: JSON in the storage version, with `kind`, `apiVersion` and `metadata` first and
//! without `resourceVersion`, which comes from the revision. Responses splice the stored bytes without decoding them.

use crate::pool::Pool;
use crate::scan::{self, Scan};
use bytes::Bytes;
use meta::{Object, Status, Value, depth};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Display;
use std::io::Write;
use std::sync::Arc;
use store::{Damaged, Entry, Index, IndexFn, Key, Str};

/// The key that opens `metadata`. The index records the offset after its brace.
const METADATA: &[u8] = b"\"metadata\":{";

thread_local! {
    /// Scratch buffer for encoding: the stored value is then allocated once, in its exact size.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}
/// A larger scratch buffer is freed after use.
const SCRATCH_MAX: usize = 1 << 20;

/// Encodes an object into its stored form.
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
    // Writing to memory cannot fail.
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

/// Decodes a stored object and sets its resource version to the revision of the entry. Errors if the value is not a
/// JSON object, or nests deeper than [`depth`] allows. There is no default: an undecodable object must never become
/// an empty one.
pub fn decode(entry: &Entry) -> Result<Object, Unreadable> {
    let mut object = decode_bytes(&entry.value).map_err(|e| unreadable(entry, e))?;
    object.set_resource_version(&entry.revision.to_string());
    Ok(object)
}

/// Decodes the JSON of an object, of any depth; none if it is not an object.
pub fn parse(text: &[u8]) -> Option<Value> {
    decode_bytes(text).ok().map(Object::into_value)
}

/// Decodes a stored object for a background task that handles each object on its own. Logs and skips an undecodable
/// one.
pub fn decode_or_log(entry: &Entry) -> Option<Object> {
    decode(entry).inspect_err(|e| tracing::error!("{e}")).ok()
}

/// Checks the outer form of a stored value before it is spliced: enclosing braces and `metadata`. Errors if either is
/// missing. Does not parse the rest.
pub fn check_form(entry: &Entry) -> Result<(), Unreadable> {
    let framed = entry.value.first() == Some(&b'{') && entry.value.last() == Some(&b'}');
    if framed && entry.index().mark as usize > METADATA.len() {
        return Ok(());
    }
    Err(unreadable(entry, "the stored value is not an object with metadata"))
}

fn unreadable(entry: &Entry, why: impl Display) -> Unreadable {
    Unreadable { key: entry.key.to_string(), why: why.to_string() }
}

/// A stored object that cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unable to read {key}: {why}")]
pub struct Unreadable {
    /// The storage key as text.
    pub key: String,
    /// What is wrong with the value.
    pub why: String,
}

/// The next step that the error of an unreadable object suggests.
const HINT: &str = "to delete it without reading it, use the delete option \
     ignoreStoreReadErrorWithClusterBreakingPotential=true";

impl From<Unreadable> for Status {
    fn from(e: Unreadable) -> Self {
        Self::internal(format!("{e}; {HINT}"))
    }
}

/// The error for an object that the transform of the store cannot open. Names the storage key, as upstream does.
pub fn damaged_status(damaged: &Damaged) -> Status {
    Status::internal(format!("unable to read {}; {HINT}", damaged.error))
}

/// Decodes a stored object, without its resource version.
pub fn decode_bytes(bytes: &[u8]) -> Result<Object, serde_json::Error> {
    // The store holds what `encode` wrote. UTF-8 is checked once for the whole value instead of per string.
    match str::from_utf8(bytes) {
        Ok(text) => depth::from_str(text),
        Err(_) => depth::from_str(&String::from_utf8_lossy(bytes)),
    }
    .map(Object)
}

/// Rejects an object that nests deeper than the depth limit of readers.
pub fn check_depth(object: &Object) -> Result<(), Status> {
    let metadata = |(k, v): (&String, &Value)| match k.as_str() {
        "managedFields" => depth::exceeds(v, depth::MANAGED_FIELDS - 2),
        _ => depth::exceeds(v, depth::MAX - 2),
    };
    let deep = object.0.iter().any(|(k, v)| match v {
        Value::Object(m) if k == "metadata" => m.iter().any(metadata),
        v => depth::exceeds(v, depth::MAX - 1),
    });
    if deep {
        return Err(Status::bad_request(format!("the object nests deeper than {} levels", depth::MAX)));
    }
    Ok(())
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

/// Appends the bytes before the resource version to `head`. Returns the bytes after it, which are the stored ones.
pub fn split(head: &mut Vec<u8>, entry: &Entry) -> Bytes {
    let mark = entry.index().mark as usize;
    write_head(head, entry, 0, mark);
    entry.value.slice(mark..)
}

/// The number of bytes that [`splice`] or [`splice_bare`] appends.
pub fn spliced_len(entry: &Entry, bare: bool) -> usize {
    let mark = entry.index().mark as usize;
    let skipped = if bare { mark - METADATA.len() - 1 } else { 0 };
    let digits = entry.revision.checked_ilog10().unwrap_or(0) as usize + 1;
    let comma = usize::from(entry.value.get(mark) != Some(&b'}'));
    entry.value.len() - skipped + "\"resourceVersion\":\"\"".len() + digits + comma
}

fn splice_from(out: &mut Vec<u8>, entry: &Entry, from: usize, mark: usize) {
    out.reserve(entry.value.len() + 40);
    write_head(out, entry, from, mark);
    out.extend_from_slice(&entry.value[mark..]);
}

fn write_head(out: &mut Vec<u8>, entry: &Entry, from: usize, mark: usize) {
    let value = &entry.value;
    out.extend_from_slice(&value[from..mark]);
    let _ = write!(out, "\"resourceVersion\":\"{}\"", entry.revision);
    if value.get(mark) != Some(&b'}') {
        out.push(b',');
    }
}

/// Appends the `PartialObjectMetadata` of an entry.
pub fn splice_metadata(out: &mut Vec<u8>, entry: &Entry) {
    let mark = entry.index().mark as usize;
    let rest = &entry.value[mark..];
    let metadata = &rest[..scan::closing(rest).unwrap_or(rest.len())];
    out.extend_from_slice(b"{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1\",");
    out.extend_from_slice(METADATA);
    let _ = write!(out, "\"resourceVersion\":\"{}\"", entry.revision);
    if !metadata.is_empty() {
        out.push(b',');
    }
    out.extend_from_slice(metadata);
    out.extend_from_slice(b"}}");
}

/// Returns the index function of the store: labels, and the selectable fields of each resource by its storage name.
pub fn index_fn(selectable: HashMap<String, Vec<String>>) -> IndexFn {
    let plans: HashMap<String, PathTree> = selectable.into_iter().map(|(k, v)| (k, PathTree::new(&v))).collect();
    let none = PathTree::new(&[]);
    let pool = Pool::default();
    Arc::new(move |key: &Key, value: &[u8]| {
        let tree = plans.get(&*key.resource).unwrap_or(&none);
        index(value, tree, &pool, |path| match path {
            NAME => Some(key.name.clone()),
            NAMESPACE => Some(key.namespace.clone()),
            _ => None,
        })
    })
}

/// The offset after the brace that opens `metadata` in a stored object.
pub fn mark(value: &[u8]) -> usize {
    value.windows(METADATA.len()).position(|w| w == METADATA).map_or(0, |i| i + METADATA.len())
}

/// Fields that are part of the storage key.
const NAME: &str = "metadata.name";
const NAMESPACE: &str = "metadata.namespace";

fn index(value: &[u8], tree: &PathTree, pool: &Pool, known: impl Fn(&str) -> Option<Str>) -> Index {
    let mark = mark(value);
    let mut collected = Collected { labels: Vec::new(), fields: Vec::new(), pool };
    let from_key = tree.from_key.iter().filter_map(|path| Some((path.clone(), known(path)?)));
    collected.fields.extend(from_key.filter(|(_, text)| !text.is_empty()));
    pick(&mut Scan::new(value), tree, &mut collected, true, true);
    // As `encode` writes them; sorted for binary search.
    if !collected.labels.is_sorted() {
        collected.labels.sort_unstable();
    }
    Index { labels: pool.labels(collected.labels), fields: collected.fields.into(), mark: mark as u32 }
}

/// The values of fields of a stored object, sorted by path; empty for missing fields. Scans the object once.
pub fn fields(value: &[u8], paths: &[String]) -> Vec<String> {
    let mut tree = PathTree::default();
    paths.iter().for_each(|path| tree.field(path));
    let pool = Pool::default();
    let mut collected = Collected { labels: Vec::new(), fields: Vec::new(), pool: &pool };
    pick(&mut Scan::new(value), &tree, &mut collected, true, true);
    let text = |path: &String| collected.fields.iter().find(|(name, _)| **name == **path).map(|(_, v)| v.to_string());
    paths.iter().map(|path| text(path).unwrap_or_default()).collect()
}

/// Decodes the value at a path of a stored object, skipping the rest. Errors if the JSON is malformed before it or in
/// it.
pub fn part(entry: &Entry, path: &[&str]) -> Result<Option<Value>, Unreadable> {
    match raw_part(&entry.value, path) {
        Some(None) => Ok(None),
        Some(Some(raw)) => depth::from_slice(raw).map(Some).map_err(|e| unreadable(entry, e)),
        None => Err(unreadable(entry, "the stored value is not a complete object")),
    }
}

/// The bytes of the value at a path: `None` if the JSON is malformed before it, `Some(None)` if it does not exist.
fn raw_part<'v>(value: &'v [u8], path: &[&str]) -> Option<Option<&'v [u8]>> {
    let mut scan = Scan::new(value);
    for (depth, step) in path.iter().enumerate() {
        let mut first = true;
        if scan.peek()? != b'{' {
            return if depth == 0 { None } else { Some(None) };
        }
        loop {
            match scan.member(&mut first)? {
                None => return Some(None),
                Some(name) if name == *step => break,
                Some(_) => scan.skip()?,
            }
        }
    }
    scan.raw().map(Some)
}

/// The paths to find, as a tree; the scan skips everything else.
#[derive(Default)]
struct PathTree {
    children: Vec<(String, PathTree)>,
    field: Option<Str>,
    labels: bool,
    /// At the root: fields that the storage key provides.
    from_key: Vec<Str>,
}

impl PathTree {
    fn new(fields: &[String]) -> Self {
        let mut root = Self::default();
        root.child("metadata").child("labels").labels = true;
        for f in fields {
            match f.as_str() {
                NAME | NAMESPACE => root.from_key.push(f.as_str().into()),
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

struct Collected<'p> {
    labels: Vec<(Str, Str)>,
    fields: Vec<(Str, Str)>,
    pool: &'p Pool,
}

/// Collects the fields and labels of `tree` from the value at the scan's position. `None` if the value is truncated,
/// or nothing is left to find. `last`: nothing to find follows this value. `root`: the value is the object itself,
/// whose members are unsorted.
fn pick(scan: &mut Scan<'_>, tree: &PathTree, collected: &mut Collected<'_>, last: bool, root: bool) -> Option<()> {
    match (&tree.field, scan.peek()?) {
        (Some(_), b'{' | b'[' | b'n') => return scan.skip(),
        (Some(field), _) => {
            let text = collected.pool.text(&scan.text()?);
            collected.fields.push((field.clone(), text));
            return Some(());
        }
        (None, b'{') => {}
        (None, _) => return scan.skip(),
    }
    let mut left = tree.children.len();
    let mut first = true;
    while let Some(key) = scan.member(&mut first)? {
        if tree.labels {
            let key = collected.pool.text(&key);
            let value = collected.pool.text(&scan.text()?);
            collected.labels.push((key, value));
            continue;
        }
        match tree.children.iter().find(|(n, _)| *n == *key) {
            Some((_, tree)) => {
                left = left.saturating_sub(1);
                pick(scan, tree, collected, last && left == 0, false)?;
            }
            None => {
                if !root && tree.children.iter().all(|(n, _)| **n < *key) {
                    left = 0;
                }
                if left > 0 || !last {
                    scan.skip()?;
                }
            }
        }
        if left == 0 && last {
            return None;
        }
    }
    Some(())
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
        let mut expected = o;
        expected["metadata"]["resourceVersion"] = "7".into();
        let mut out = Vec::new();
        splice(&mut out, &e);
        assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), expected);
        assert_eq!(decode(&e).unwrap().into_value(), expected);
        out.clear();
        splice_bare(&mut out, &e);
        expected.as_object_mut().unwrap().remove("kind");
        expected.as_object_mut().unwrap().remove("apiVersion");
        assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), expected);
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
        // The bytes after the labels are not JSON: reading on would fail.
        let e = made(&[NAME, NAMESPACE], r#"{"kind":"K","metadata":{"labels":{"b":"c"},"managedFields":..."#);
        assert_eq!(&*e.index().labels, &[("b".into(), "c".into())]);
        assert_eq!(&*e.index().fields, &[(NAME.into(), "n".into()), (NAMESPACE.into(), "s".into())]);
        let e = made(&["spec.x"], r#"{"metadata":{"labels":{"b":"c"},"uid":"u"},"spec":{"w":1,"x":"y","z":..."#);
        assert_eq!((e.index().labels.len(), &*e.index().fields), (1, &[("spec.x".into(), "y".into())][..]));
        let e = made(&["spec.x"], r#"{"metadata":{"labels":{"b":"c"},"uid":{},"spec":{"x":"y"}}"#);
        assert_eq!(
            (e.index().labels.len(), e.index().fields.len()),
            (1, 0),
            "all of the metadata lies before the spec"
        );
        assert_eq!(fields(br#"{"metadata":{"name":"n","uid":..."#, &[NAME.to_owned()]), ["n"]);
    }

    #[test]
    fn a_part_is_decoded_without_the_rest() {
        let value = br#"{"kind":"K","metadata":{"name":"n"},"spec":{"a":[...],"selector":{"b":["c"]},"z":..."#;
        let e = stored(value);
        let check = |path: &[&str], expected: Option<Value>| assert_eq!(part(&e, path), Ok(expected), "{path:?}");
        check(&["spec", "selector"], Some(json!({"b": ["c"]})));
        check(&["spec", "selector", "b"], Some(json!(["c"])));
        check(&["metadata", "name"], Some(json!("n")));
        check(&["metadata", "name", "x"], None);
        check(&["metadata", "uid"], None);
        let cut = part(&e, &["status"]).unwrap_err().to_string();
        assert_eq!(cut, "unable to read r//n: the stored value is not a complete object");
    }

    fn stored(value: &'static [u8]) -> Entry {
        let key = Key { resource: "r".into(), namespace: "".into(), name: "n".into() };
        Entry::new(key, Bytes::from_static(value), 7, index_fn(HashMap::new()))
    }

    #[test]
    fn a_value_that_is_no_object_is_an_error_that_names_it() {
        for value in ["", "null", "[]", r#"{"kind":"K","metadata":{"name":"n"}"#, "\u{0}\u{1}"] {
            let e = stored(value.as_bytes());
            assert!(decode(&e).unwrap_err().to_string().starts_with("unable to read r//n: "), "{value}");
            assert!(value.ends_with('}') || check_form(&e).is_err(), "{value}");
        }
        assert!(check_form(&stored(b"{}")).is_err() && check_form(&stored(br#"{"metadata":{}}"#)).is_ok());
    }
}
