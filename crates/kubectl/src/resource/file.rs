//! Reads objects from files, directories, standard input and URLs: YAML or JSON, several per file, lists split into items.

use super::validation::Validator;
use crate::error::{Error, Result, os_message, text};
use crate::flags::FileFlags;
use crate::kube::Kube;
use client::FieldValidation;
use meta::{Object, Value};
use std::borrow::Cow;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// An object and the name of its source.
#[derive(Clone, Debug)]
pub struct Document {
    pub source: String,
    pub object: Object,
}

/// The extensions of files that are read from a directory.
const EXTENSIONS: [&str; 3] = ["json", "yaml", "yml"];

/// Reads the objects of files, each with its source, or as an error.
pub async fn read(k: &mut Kube, flags: &FileFlags) -> Result<Vec<Result<Document>>> {
    read_for(k, flags, FieldValidation::Ignore).await
}

/// [`read`], with validation.
pub async fn read_for(k: &mut Kube, flags: &FileFlags, validation: FieldValidation) -> Result<Vec<Result<Document>>> {
    let mut validator = Validator::new(validation);
    if flags.filename.iter().filter(|f| *f == "-").count() > 1 {
        return text("standard input cannot be used for multiple arguments");
    }
    if !flags.kustomize.is_empty() {
        return kustomization(k, flags, &mut validator).await;
    }
    // Check all paths before reading anything.
    let local = |f: &str| f != "-" && !f.starts_with("http://") && !f.starts_with("https://");
    let (mut found, mut wrong) = (Vec::new(), Vec::new());
    for f in &flags.filename {
        match if local(f) { expand(Path::new(f), f, flags.recursive) } else { Ok(Vec::new()) } {
            Ok(paths) => found.push((f, paths)),
            Err(e) => wrong.push(e),
        }
    }
    Error::collect(wrong)?;
    let mut out = Vec::new();
    for (f, paths) in found {
        if f == "-" {
            let mut bytes = Vec::new();
            k.shell.input.read_to_end(&mut bytes).map_err(|e| Error::Text(format!("reading standard input: {e}")))?;
            validated(k, "STDIN", &bytes, &mut validator, &mut out).await?;
        } else if f.starts_with("http://") || f.starts_with("https://") {
            validated(k, f, &super::url::fetch(f).await?, &mut validator, &mut out).await?;
        } else {
            for path in paths {
                let name = path.to_string_lossy().into_owned();
                match std::fs::read(&path) {
                    Ok(bytes) => validated(k, &name, &bytes, &mut validator, &mut out).await?,
                    Err(e) if e.kind() == std::io::ErrorKind::IsADirectory => {
                        out.push(text(format!("error parsing {name}: read {name}: {}", os_message(&e))));
                    }
                    Err(e) => out.push(text(format!("open {name}: {}", os_message(&e)))),
                }
            }
        }
    }
    Ok(out)
}

/// Reads the objects of a kustomization directory, in an order in which they can be created.
async fn kustomization(k: &mut Kube, flags: &FileFlags, validator: &mut Validator) -> Result<Vec<Result<Document>>> {
    let mut wrong = Vec::new();
    if !flags.filename.is_empty() {
        wrong.push(Error::Text("only one of -f or -k can be specified".into()));
    }
    if flags.recursive {
        wrong.push(Error::Text("the -k flag can't be used with -f or -R".into()));
    }
    Error::collect(wrong)?;
    let built = super::kustomization::build(k, &flags.kustomize, kustomize::Options::default())?;
    let mut out = Vec::new();
    for o in built.0 {
        if let Err(e) = document(k, &flags.kustomize, o.into_value(), validator, &mut out).await? {
            out.push(Err(e));
            break;
        }
    }
    Ok(out)
}

fn expand(path: &Path, given: &str, recursive: bool) -> Result<Vec<PathBuf>> {
    if std::fs::metadata(path).is_err() {
        return glob(path, given, recursive);
    }
    // A link to a directory is not followed.
    if std::fs::symlink_metadata(path).is_ok_and(|m| !m.is_dir()) {
        return Ok(vec![path.to_owned()]);
    }
    let mut out = Vec::new();
    directory(path, recursive, &mut out)?;
    if out.is_empty() {
        return text(format!("error reading [{given}]: recognized file extensions are [.json .yaml .yml]"));
    }
    Ok(out)
}

/// Expands `dir/*.yaml` where the shell did not: a pattern in the last part of the path.
fn glob(path: &Path, given: &str, recursive: bool) -> Result<Vec<PathBuf>> {
    let missing = || text(format!("the path {given:?} does not exist"));
    let (Some(dir), Some(pattern)) = (path.parent(), path.file_name().and_then(|n| n.to_str())) else {
        return missing();
    };
    if !pattern.contains(['*', '?']) {
        return missing();
    }
    let escaped = regex::escape(pattern).replace("\\*", "[^/]*").replace("\\?", "[^/]");
    let Ok(re) = regex::Regex::new(&format!("^{escaped}$")) else { return missing() };
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let mut names: Vec<PathBuf> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|e| re.is_match(&e.file_name().to_string_lossy()))
        .map(|e| path.with_file_name(e.file_name()))
        .collect();
    names.sort();
    if names.is_empty() {
        return missing();
    }
    let mut out = Vec::new();
    for n in names {
        out.extend(expand(&n, &n.to_string_lossy(), recursive)?);
    }
    Ok(out)
}

fn directory(dir: &Path, recursive: bool, out: &mut Vec<PathBuf>) -> Result {
    let wrong = |e: std::io::Error| Error::Text(format!("open {}: {}", dir.display(), os_message(&e)));
    let mut entries: Vec<_> = std::fs::read_dir(dir).map_err(wrong)?.flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for e in entries {
        let path = e.path();
        if e.file_type().is_ok_and(|t| t.is_dir()) {
            if recursive {
                directory(&path, recursive, out)?;
            }
        } else if path.extension().and_then(|x| x.to_str()).is_some_and(|x| EXTENSIONS.contains(&x)) {
            out.push(path);
        }
    }
    Ok(())
}

/// Reads the documents of a text, up to the first that is malformed or invalid. A document that is no object does not stop
/// the reading.
pub fn documents(source: &str, bytes: &[u8], out: &mut Vec<Result<Document>>) {
    for value in values(&decoded(bytes)) {
        let failed = match value {
            Ok(v) => object(source, None, v, out).err(),
            Err(why) => Some(unreadable(source, &why)),
        };
        if let Some(e) = failed {
            return out.push(Err(e));
        }
    }
}

/// [`documents`], with each document validated before its objects are added.
async fn validated(
    k: &mut Kube,
    source: &str,
    bytes: &[u8],
    validator: &mut Validator,
    out: &mut Vec<Result<Document>>,
) -> Result {
    for value in values(&decoded(bytes)) {
        let failed = match value {
            Ok(v) => document(k, source, v, validator, out).await?.err(),
            Err(why) => Some(unreadable(source, &why)),
        };
        if let Some(e) = failed {
            out.push(Err(e));
            break;
        }
    }
    Ok(())
}

/// Adds the objects of a document. The inner error concerns the document, the outer one the server.
async fn document(
    k: &mut Kube,
    source: &str,
    v: Value,
    validator: &mut Validator,
    out: &mut Vec<Result<Document>>,
) -> Result<Result> {
    if v.is_null() {
        return Ok(Ok(()));
    }
    Ok(match validator.check(k, &v).await? {
        Ok(()) => object(source, k.scheme, v, out),
        Err(why) => Err(invalid(source, &why)),
    })
}

fn unreadable(source: &str, why: &str) -> Error {
    Error::Text(format!("error parsing {source}: {why}"))
}

fn invalid(source: &str, why: &str) -> Error {
    Error::Text(format!(
        "error validating {source:?}: error validating data: {why}; if you choose to ignore these errors, turn validation off with --validate=false"
    ))
}

/// Decodes a text with or without a byte order mark, in UTF-8 or UTF-16.
fn decoded(bytes: &[u8]) -> Cow<'_, str> {
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
fn values(stream: &str) -> Vec<std::result::Result<Value, String>> {
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
fn parts(text: &str) -> Vec<std::result::Result<String, String>> {
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

/// Adds the object or list items of a document, or the reason why they cannot be decoded. Errors if the document is
/// invalid.
fn object(source: &str, scheme: Option<&str>, v: Value, out: &mut Vec<Result<Document>>) -> Result {
    let mut refuse = |why: String| {
        out.push(text(format!("unable to decode {source:?}: {why}")));
        Ok(())
    };
    let shown = codec::json::to_string(&v, codec::json::Html::Keep);
    let Some(is) = json_type(&v) else { return Ok(()) };
    let Some(o) = Object::from_value(v) else {
        return refuse(format!("json: cannot unmarshal {is} into Go value of type unstructured.detector"));
    };
    if o.kind().is_empty() {
        return refuse(format!("Object 'Kind' is missing in '{shown}'"));
    }
    if o.api_version().is_empty() {
        return Err(invalid(source, "apiVersion not set"));
    }
    if let Some(items) = o.get("items") {
        let mut read = Vec::new();
        if let Some(is) = json_type(items).filter(|is| *is != "array") {
            return refuse(format!(
                "json: cannot unmarshal {is} into Go struct field decodeList.items of type []json.RawMessage"
            ));
        }
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
        for i in read {
            flatten(source, scheme, i, out);
        }
        return Ok(());
    }
    if let Err(why) = decodes(scheme, &o) {
        return refuse(why);
    }
    if let Some(why) = mistyped(o.get("metadata").unwrap_or(&Value::Null)) {
        return refuse(format!("json: cannot unmarshal {why}"));
    }
    out.push(Ok(Document { source: source.to_owned(), object: o }));
    Ok(())
}

/// Adds an item of a list, or the items of a nested list.
fn flatten(source: &str, scheme: Option<&str>, o: Object, out: &mut Vec<Result<Document>>) {
    if let Some(items) = o.get("items").and_then(Value::as_array) {
        return items
            .iter()
            .filter_map(|i| Object::from_value(i.clone()))
            .for_each(|i| flatten(source, scheme, i, out));
    }
    let lacks = [
        ("Kind", o.kind(), "object has no kind field "),
        ("apiVersion", o.api_version(), "object has no apiVersion field"),
    ];
    out.push(match lacks.iter().find(|(_, has, _)| has.is_empty()) {
        // Errors of list items are formatted as several errors.
        Some((field, _, what)) => Err(Error::Many(vec![Error::Text(format!(
            "unable to get type info from the object \"*unstructured.Unstructured\": Object '{field}' is missing in '{what}'"
        ))])),
        None => match decodes(scheme, &o) {
            Ok(()) => Ok(Document { source: source.to_owned(), object: o }),
            Err(why) => text(format!("unable to decode {source:?}: {why}")),
        },
    });
}

/// Checks whether an object fits its type in a scheme.
fn decodes(scheme: Option<&str>, o: &Object) -> std::result::Result<(), String> {
    match o.gvk() {
        Some(gvk) if scheme.is_some() => super::scheme::decodes(scheme, &gvk, &o.clone().into_value()),
        _ => Ok(()),
    }
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

    fn read(text: &str) -> Vec<String> {
        let mut out = Vec::new();
        documents("f", text.as_bytes(), &mut out);
        out.iter()
            .map(|r| match r {
                Ok(d) => format!("{}/{}", d.object.kind(), d.object.name()),
                Err(e) => format!("!{e}"),
            })
            .collect()
    }

    /// Several documents, lists, and invalid ones between valid ones.
    #[test]
    fn splits_files_into_objects() {
        let doc = |n: &str| format!("apiVersion: v1\nkind: A\nmetadata: {{name: {n}}}\n");
        assert_eq!(read(&format!("# c\n---\n{}---\n---\n{}", doc("a"), doc("b"))), ["A/a", "A/b"]);
        assert_eq!(
            read(
                r#"{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"B","metadata":{"name":"x"}}]} {"apiVersion":"v1","kind":"C"}"#
            ),
            ["B/x", "C/"]
        );
        // A malformed or invalid document ends a file; one that cannot be decoded does not.
        for (bad, ends, expected) in [
            ("a: [\n", true, "error parsing f: error converting YAML to JSON: yaml:"),
            ("--- foo\n", true, "error parsing f: invalid Yaml document separator: foo"),
            ("kind: X\n", true, "error validating \"f\": error validating data: apiVersion not set; "),
            (
                "apiVersion: v1\n",
                false,
                "unable to decode \"f\": Object 'Kind' is missing in '{\"apiVersion\":\"v1\"}'",
            ),
            ("{}\n", false, "unable to decode \"f\": Object 'Kind' is missing in '{}'"),
            (
                "foo\n",
                false,
                "unable to decode \"f\": json: cannot unmarshal string into Go value of type unstructured.detector",
            ),
            (
                "[1]\n",
                false,
                "unable to decode \"f\": json: cannot unmarshal array into Go value of type unstructured.detector",
            ),
            (
                "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: L}, 3]}\n",
                false,
                "unable to decode \"f\": json: cannot unmarshal number into Go value of type map[string]interface {}",
            ),
        ] {
            let mixed = read(&format!("{}---\n{bad}---\n{}", doc("a"), doc("b")));
            assert_eq!((mixed.len(), mixed[0].as_str()), (if ends { 2 } else { 3 }, "A/a"), "{bad}: {mixed:?}");
            assert!(mixed[1].starts_with(&format!("!{expected}")), "{bad}: {}", mixed[1]);
            assert!(ends || mixed[2] == "A/b", "{bad}: {mixed:?}");
        }
        assert_eq!(read(&format!("\u{feff}{}", doc("a"))), ["A/a"]);
        assert_eq!(read(&format!("{{\"apiVersion\":\"v1\",\"kind\":\"C\"}}\n---\n{}", doc("b"))), ["C/", "A/b"]);
        assert_eq!(read("# only a comment\n--- # and another\nnull\n"), Vec::<String>::new());
        let directive = read(&format!("%YAML 1.2\n---\n{}", doc("a")));
        assert!(directive.len() == 1 && directive[0].starts_with("!error parsing f: "), "{directive:?}");
        // Items of a typed list need not repeat the kind; an item with only half of it is an error.
        let item = "metadata: {name: x}";
        assert_eq!(
            read(&format!(
                "{{apiVersion: v1, kind: CList, items: [{{{item}}}, {{kind: D, {item}}}, {{kind: E, apiVersion: v1}}]}}"
            )),
            [
                "C/x",
                "!unable to get type info from the object \"*unstructured.Unstructured\": Object 'apiVersion' is missing in 'object has no apiVersion field'",
                "E/",
            ]
        );
        assert!(read("").is_empty());
        let good = r#"{"apiVersion":"v1","kind":"C"}"#;
        for (json, why) in [
            ("{\n", (0, "unexpected EOF")),
            ("{\"a\":", (0, "unexpected EOF")),
            ("{\"a\" 1}", (6, "invalid character '1' after object key")),
            ("{\"a\":{} ]}", (9, "invalid character ']' after object key:value pair")),
            ("{\"a\":[{} 2]}", (10, "invalid character '2' after array element")),
            ("{\"a\":trve}}", (8, "invalid character 'v' in literal true (expecting 'u')")),
        ] {
            for (before, expected) in [("", vec![]), (good, vec!["C/".to_owned()])] {
                let why = match why {
                    (0, why) => why.to_owned(),
                    (offset, why) => format!("json: offset {}: {why}", offset + before.len()),
                };
                let expected = [expected, vec![format!("!error parsing f: {why}")]].concat();
                assert_eq!(read(&format!("{before}{json}")), expected);
            }
        }
        for (metadata, why) in [
            ("{name: y}", "bool into Go struct field ObjectMeta.metadata.name of type string"),
            ("{name: a, labels: {b: 1}}", "number into Go struct field ObjectMeta.metadata.labels of type string"),
        ] {
            let bad = read(&format!("apiVersion: v1\nkind: A\nmetadata: {metadata}\n"));
            assert_eq!(bad, [format!("!unable to decode \"f\": json: cannot unmarshal {why}")]);
        }
    }
}
