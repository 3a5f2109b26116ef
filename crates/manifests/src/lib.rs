//! Manifests as kubectl reads them: files, directories and kustomizations of YAML or JSON, several documents per file, lists split
//! into their items (`k8s.io/cli-runtime/pkg/resource`).
//!
//! Invariant: messages are upstream's, and no server is needed. Left out: URLs, and validation against a server.

mod files;

pub use files::{Disk, FileTypes, expand, read_file_within, read_within};

use meta::{Object, Value};
use std::borrow::Cow;

/// Why a path or a document was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The message, as upstream prints it.
    pub message: String,
    /// Whether upstream formats it as a list of errors.
    pub aggregate: bool,
    /// The document that the message repeats, if it does.
    pub document: Option<String>,
}

impl Error {
    fn new(message: String) -> Self {
        Self { message, aggregate: false, document: None }
    }

    /// The message without the document.
    pub fn brief(&self) -> String {
        match &self.document {
            Some(document) => self.message.replace(&format!(" in '{document}'"), ""),
            None => self.message.clone(),
        }
    }
}

/// An object with the file and the document in it that it comes from.
#[derive(Clone, Debug)]
pub struct Document {
    /// The name of the file or directory.
    pub source: String,
    /// The number of the document in the file, from 1.
    pub number: usize,
    /// The object.
    pub object: Object,
}

/// Reads all objects of files and directories. Errors with every problem, each with its file and document.
pub fn read_files(paths: &[String], recursive: bool) -> Result<Vec<Document>, Vec<Error>> {
    read_all(paths, recursive, |path| std::fs::read(path).map_err(|e| os_message(&e)))
}

/// Like [`read_files`]; refuses files that are larger than `limit` bytes, or not of an accepted type.
pub fn read_files_within(
    paths: &[String],
    recursive: bool,
    limit: u64,
    accepted: FileTypes,
) -> Result<Vec<Document>, Vec<Error>> {
    read_all(paths, recursive, |path| read_file_within(path, limit, accepted))
}

fn read_all(
    paths: &[String],
    recursive: bool,
    read: impl Fn(&std::path::Path) -> Result<Vec<u8>, String>,
) -> Result<Vec<Document>, Vec<Error>> {
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    for given in paths {
        match expand(std::path::Path::new(given), given, recursive) {
            Ok(paths) => found.extend(paths),
            Err(e) => errors.push(e),
        }
    }
    let mut documents = Vec::new();
    for path in found {
        let name = path.to_string_lossy().into_owned();
        match read(&path) {
            Ok(bytes) => read_text(&name, &bytes, &mut documents, &mut errors),
            Err(why) => errors.push(Error::new(format!("open {name}: {why}"))),
        }
    }
    if errors.is_empty() { Ok(documents) } else { Err(errors) }
}

/// Reads all objects of a text, which `name` names in errors.
pub fn read_stream(name: &str, bytes: &[u8]) -> Result<Vec<Document>, Vec<Error>> {
    let (mut documents, mut errors) = (Vec::new(), Vec::new());
    read_text(name, bytes, &mut documents, &mut errors);
    if errors.is_empty() { Ok(documents) } else { Err(errors) }
}

fn read_text(name: &str, bytes: &[u8], documents: &mut Vec<Document>, errors: &mut Vec<Error>) {
    for (i, value) in values(&decode_text(bytes)).into_iter().enumerate() {
        let source = format!("{name}, document {}", i + 1);
        let read = match value {
            Ok(v) => check_version(&source, &v).and_then(|()| objects(&source, &|_| Ok(()), v)),
            Err(why) => Err(unreadable(&source, &why)),
        };
        match read {
            Ok(all) => all.into_iter().for_each(|object| match object {
                Ok(object) => documents.push(Document { source: name.to_owned(), number: i + 1, object }),
                Err(e) => errors.push(e),
            }),
            Err(e) => errors.push(e),
        }
    }
}

/// Builds a kustomization directory. Returns its objects, and warnings about deprecated fields.
pub fn read_kustomization(directory: &str) -> Result<(Vec<Document>, Vec<String>), Error> {
    let (built, warnings) = kustomize::build(&Disk, directory, kustomize::Options::default());
    let built = built.map_err(|e| Error::new(e.to_string()))?;
    let document = |(i, object)| Document { source: directory.to_owned(), number: i + 1, object };
    Ok((built.0.into_iter().enumerate().map(document).collect(), warnings))
}

/// Error for a text that is neither YAML nor JSON.
pub fn unreadable(source: &str, why: &str) -> Error {
    Error::new(format!("error parsing {source}: {why}"))
}

/// Error for a document that fails validation.
pub fn invalid(source: &str, why: &str) -> Error {
    Error::new(format!(
        "error validating {source:?}: error validating data: {why}; if you choose to ignore these errors, turn validation off with --validate=false"
    ))
}

/// Errors if a document has a kind and no `apiVersion`.
pub fn check_version(source: &str, document: &Value) -> Result<(), Error> {
    let text = |field: &str| document[field].as_str().unwrap_or_default();
    match text("apiVersion").is_empty() && !text("kind").is_empty() {
        true => Err(invalid(source, "apiVersion not set")),
        false => Ok(()),
    }
}

/// Formats an operating system error as Go does: without the number, and in lower case.
pub fn os_message(e: &std::io::Error) -> String {
    let text = e.to_string();
    let Some(number) = e.raw_os_error() else { return text };
    let text = text.strip_suffix(&format!(" (os error {number})")).unwrap_or(&text);
    match text.char_indices().nth(1) {
        // A message that starts with two capitals starts with an acronym.
        Some((second, c)) if !c.is_uppercase() => text[..second].to_lowercase() + &text[second..],
        _ => text.to_owned(),
    }
}

/// Decodes a text with or without a byte order mark, in UTF-8 or UTF-16.
pub fn decode_text(bytes: &[u8]) -> Cow<'_, str> {
    let wide = |bytes: &[u8], unit: fn([u8; 2]) -> u16| {
        let units: Vec<u16> = bytes.chunks_exact(2).map(|c| unit([c[0], c[1]])).collect();
        Cow::Owned(String::from_utf16_lossy(&units))
    };
    match bytes {
        [0xef, 0xbb, 0xbf, rest @ ..] => String::from_utf8_lossy(rest),
        [0xff, 0xfe, rest @ ..] => wide(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => wide(rest, u16::from_be_bytes),
        all => String::from_utf8_lossy(all),
    }
}

/// Parses the documents of a stream of JSON or YAML, up to the first error. As in upstream's decoder, text after the first
/// JSON value is YAML if it is not JSON, even if it begins with a brace.
pub fn values(stream: &str) -> Vec<Result<Value, String>> {
    let bytes = stream.as_bytes();
    let (mut out, mut yaml, mut json_error) = (Vec::new(), stream, None);
    if codec::json::is_json(bytes) {
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        if meta::depth::of_text(bytes) <= meta::depth::READ {
            reader.disable_recursion_limit();
        }
        let mut values = reader.into_iter::<Value>();
        loop {
            let begins = values.byte_offset();
            match values.next() {
                None => return out,
                Some(Ok(v)) => out.push(Ok(v)),
                Some(Err(e)) => {
                    let why = syntax_error(bytes, begins).unwrap_or_else(|| e.to_string());
                    if out.len() > 1 || meta::depth::of_text(bytes) > meta::depth::READ {
                        out.push(Err(why));
                        return out;
                    }
                    let rest = &stream[begins..];
                    let space = rest.len() - rest.trim_start().len();
                    yaml = &rest[rest[..space].find('\n').map_or(space, |i| i + 1)..];
                    json_error = Some(why);
                    break;
                }
            }
        }
    }
    for part in parts(yaml) {
        let read = part.and_then(|p| codec::yaml::parse(&p).map_err(|e| format!("error converting YAML to JSON: {e}")));
        match read {
            Ok(all) => out.extend(all.into_iter().map(Ok)),
            Err(why) => {
                out.push(Err(json_error.unwrap_or(why)));
                return out;
            }
        }
        json_error = None;
    }
    out
}

/// Explains why no JSON value begins at `begins`, as upstream's stream decoder does.
fn syntax_error(text: &[u8], begins: usize) -> Option<String> {
    let (why, at) = schema::decode::syntax::wrong_at(text.get(begins..)?)?;
    Some(match begins + at {
        end if end >= text.len() => "unexpected EOF".into(),
        // The decoder has read the wrong character.
        before => format!("json: offset {}: {why}", before + 1),
    })
}

/// Splits a stream at lines of three dashes, after which only a comment may follow.
fn parts(text: &str) -> Vec<Result<String, String>> {
    let mut out = Vec::new();
    let mut part = String::new();
    for line in text.split_inclusive('\n') {
        let Some(comment) = line.strip_prefix("---") else {
            part.push_str(line);
            continue;
        };
        let comment = comment.trim();
        if !comment.is_empty() && !comment.starts_with('#') {
            out.push(Err(format!("invalid Yaml document separator: {comment}")));
            return out;
        }
        out.push(Ok(std::mem::take(&mut part)));
    }
    out.push(Ok(part));
    let empty = |p: &String| p.lines().all(|l| l.trim().is_empty() || l.trim_start().starts_with('#'));
    out.retain(|p| !p.as_ref().is_ok_and(empty));
    out
}

/// Returns the name of a value's type in Go's JSON decoder.
fn json_type(v: &Value) -> Option<&'static str> {
    match v {
        Value::Null => None,
        Value::Bool(_) => Some("bool"),
        Value::Number(_) => Some("number"),
        Value::String(_) => Some("string"),
        Value::Array(_) => Some("array"),
        Value::Object(_) => Some("object"),
    }
}

/// Checks whether an object is accepted. Errors with the reason why not.
pub type Check<'a> = &'a dyn Fn(&Object) -> Result<(), String>;

/// Returns the object or the list items of a document, each or the reason why it cannot be decoded. Errors if the document is invalid.
/// An object that is no item may lack its `apiVersion`: see [`check_version`].
pub fn objects(source: &str, check: Check<'_>, document: Value) -> Result<Vec<Result<Object, Error>>, Error> {
    let refuse = |why: String| Ok(vec![undecodable(source, &why)]);
    let shown = codec::json::to_string(&document, codec::json::Html::Keep);
    let Some(is) = json_type(&document) else { return Ok(Vec::new()) };
    let Some(o) = Object::from_value(document) else {
        return refuse(format!("json: cannot unmarshal {is} into Go value of type unstructured.detector"));
    };
    if o.kind().is_empty() {
        let undecodable = undecodable(source, &format!("Object 'Kind' is missing in '{shown}'"));
        return Ok(vec![undecodable.map_err(|e| Error { document: Some(shown), ..e })]);
    }
    if let Some(items) = o.get("items") {
        if let Some(is) = json_type(items).filter(|is| *is != "array") {
            return refuse(format!(
                "json: cannot unmarshal {is} into Go struct field decodeList.items of type []json.RawMessage"
            ));
        }
        let mut read = Vec::new();
        for item in items.as_array().into_iter().flatten() {
            let Some(mut i) = Object::from_value(item.clone()) else {
                let is = json_type(item).unwrap_or("null");
                return refuse(format!("json: cannot unmarshal {is} into Go value of type map[string]interface {{}}"));
            };
            // Typed lists of the API do not repeat the kind in their items.
            if i.kind().is_empty() && i.api_version().is_empty() {
                i.set(&["kind"], o.kind().strip_suffix("List").unwrap_or(o.kind()));
                i.set(&["apiVersion"], o.api_version());
            }
            read.push(i);
        }
        let mut out = Vec::new();
        for i in read {
            flatten(source, check, i, &mut out);
        }
        return Ok(out);
    }
    if let Err(why) = check(&o) {
        return refuse(why);
    }
    if let Some(why) = mistyped(o.get("metadata").unwrap_or(&Value::Null)) {
        return refuse(format!("json: cannot unmarshal {why}"));
    }
    Ok(vec![Ok(o)])
}

fn undecodable(source: &str, why: &str) -> Result<Object, Error> {
    Err(Error::new(format!("unable to decode {source:?}: {why}")))
}

/// Adds an item of a list, or the items of a nested list.
fn flatten(source: &str, check: Check<'_>, o: Object, out: &mut Vec<Result<Object, Error>>) {
    if let Some(items) = o.get("items").and_then(Value::as_array) {
        return items.iter().filter_map(|i| Object::from_value(i.clone())).for_each(|i| flatten(source, check, i, out));
    }
    let lacks = [
        ("Kind", o.kind(), "object has no kind field "),
        ("apiVersion", o.api_version(), "object has no apiVersion field"),
    ];
    out.push(match lacks.iter().find(|(_, has, _)| has.is_empty()) {
        Some((field, _, what)) => Err(Error {
            message: format!(
                "unable to get type info from the object \"*unstructured.Unstructured\": Object '{field}' is missing in '{what}'"
            ),
            aggregate: true,
            document: None,
        }),
        None => match check(&o) {
            Ok(()) => Ok(o),
            Err(why) => undecodable(source, &why),
        },
    });
}

/// Explains which field of the metadata does not fit `ObjectMeta`, as Go's decoder does; for example a name like `y` or
/// `12`, which YAML does not read as a string.
fn mistyped(metadata: &Value) -> Option<String> {
    let wrong = |v: &Value, expected: &str, go: &str, field: &str| {
        let found = json_type(v).filter(|f| *f != expected)?;
        Some(format!("{found} into Go struct field ObjectMeta.metadata.{field} of type {go}"))
    };
    for field in ["name", "generateName", "namespace", "uid", "resourceVersion"] {
        if let Some(why) = wrong(&metadata[field], "string", "string", field) {
            return Some(why);
        }
    }
    for field in ["labels", "annotations"] {
        if let Some(why) = wrong(&metadata[field], "object", "map[string]string", field) {
            return Some(why);
        }
        let values = metadata[field].as_object().into_iter().flat_map(|m| m.values());
        if let Some(why) = values.into_iter().find_map(|v| wrong(v, "string", "string", field)) {
            return Some(why);
        }
    }
    wrong(&metadata["generation"], "number", "int64", "generation")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Errors name the file and the document; directories are read in the order of names, without other files.
    #[test]
    fn reads_directories_and_names_documents_in_errors() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let map = |name: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n");
        write("b.yaml", &format!("{}---\n{}", map("b1"), map("b2")));
        write("a.json", r#"{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Pod"}]}"#);
        write("note.txt", "no manifest");
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("sub/c.yml"), map("c")).unwrap();
        let root = dir.path().to_str().unwrap().to_owned();
        let names = |recursive| {
            let documents = read_files(std::slice::from_ref(&root), recursive).unwrap();
            documents.iter().map(|d| format!("{}{}", d.object.name(), d.number)).collect::<Vec<_>>()
        };
        assert_eq!(names(false), ["1", "b11", "b22"]);
        assert_eq!(names(true), ["1", "b11", "b22", "c1"]);
        write("bad.yaml", &format!("{}---\nkind: X\n---\na: [\n", map("x")));
        let errors = read_files(&[root.clone(), format!("{root}/absent")], false).unwrap_err();
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert!(errors[0].contains("absent\" does not exist"), "{errors:?}");
        assert!(errors[1].contains("bad.yaml, document 2\": error validating data: apiVersion not set"), "{errors:?}");
        assert!(errors[2].contains("bad.yaml, document 3: error converting YAML to JSON"), "{errors:?}");
    }
}
