//! Objects in files, directories, standard input and behind URLs: YAML or JSON, several to a file, lists taken apart.

use crate::error::{Error, Result, text};
use crate::flags::FileFlags;
use crate::kube::Kube;
use meta::{Object, Value};
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// One object and where it stood.
#[derive(Clone, Debug)]
pub struct Document {
    pub source: String,
    pub object: Object,
}

/// How an object that does not say what it is gets refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It cannot be read.
    Decoding,
    /// It is not valid, as commands that send it say first (unless `--validate=false`).
    Validation,
}

/// Files with other names in a directory are not read.
const EXTENSIONS: [&str; 3] = ["json", "yaml", "yml"];

pub async fn read(k: &mut Kube, flags: &FileFlags) -> Result<Vec<Result<Document>>> {
    read_for(k, flags, Refusal::Decoding).await
}

pub async fn read_for(k: &mut Kube, flags: &FileFlags, refusal: Refusal) -> Result<Vec<Result<Document>>> {
    if !flags.kustomize.is_empty() {
        return kustomization(k, flags, refusal);
    }
    // Every path is looked at before anything is read.
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
            documents("STDIN", &bytes, refusal, &mut out);
        } else if f.starts_with("http://") || f.starts_with("https://") {
            documents(f, &super::url::fetch(f).await?, refusal, &mut out);
        } else {
            for path in paths {
                let name = path.to_string_lossy().into_owned();
                match std::fs::read(&path) {
                    Ok(bytes) => documents(&name, &bytes, refusal, &mut out),
                    Err(e) => out.push(text(format!("open {name}: {}", os(&e)))),
                }
            }
        }
    }
    Ok(out)
}

/// The objects of a kustomization directory, in an order in which they can be made.
fn kustomization(k: &Kube, flags: &FileFlags, refusal: Refusal) -> Result<Vec<Result<Document>>> {
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
        object(&flags.kustomize, o.into_value(), refusal, &mut out);
    }
    Ok(out)
}

/// An error of the system as Go words it.
pub fn os(e: &std::io::Error) -> String {
    match e.kind() {
        std::io::ErrorKind::NotFound => "no such file or directory".into(),
        std::io::ErrorKind::PermissionDenied => "permission denied".into(),
        std::io::ErrorKind::IsADirectory => "is a directory".into(),
        _ => e.to_string(),
    }
}

fn expand(path: &Path, given: &str, recursive: bool) -> Result<Vec<PathBuf>> {
    let Ok(meta) = std::fs::metadata(path) else {
        return glob(path, given, recursive);
    };
    if meta.is_file() || !meta.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut out = Vec::new();
    directory(path, recursive, &mut out)?;
    if out.is_empty() {
        return text(format!("error reading [{given}]: recognized file extensions are [.json .yaml .yml]"));
    }
    Ok(out)
}

/// `dir/*.yaml`, quoted from the shell: a pattern in the last part of the path.
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
    let wrong = |e: std::io::Error| Error::Text(format!("open {}: {}", dir.display(), os(&e)));
    let mut entries: Vec<_> = std::fs::read_dir(dir).map_err(wrong)?.flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for e in entries {
        let path = e.path();
        if path.is_dir() {
            if recursive {
                directory(&path, recursive, out)?;
            }
        } else if path.extension().and_then(|x| x.to_str()).is_some_and(|x| EXTENSIONS.contains(&x)) {
            out.push(path);
        }
    }
    Ok(())
}

/// Reads the documents of one text. A bad one does not hide the others.
pub fn documents(source: &str, bytes: &[u8], refusal: Refusal, out: &mut Vec<Result<Document>>) {
    let text_of = String::from_utf8_lossy(bytes);
    // YAML may begin with a brace as well.
    if codec::json::is_json(bytes) && !is_flow(bytes, &text_of) {
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        if meta::depth::of_text(bytes) <= meta::depth::READ {
            reader.disable_recursion_limit();
        }
        let mut values = reader.into_iter::<Value>();
        loop {
            let begins = values.byte_offset();
            match values.next() {
                None => break,
                Some(Ok(v)) => object(source, v, refusal, out),
                Some(Err(e)) => {
                    let why = syntax_error(bytes, begins).unwrap_or_else(|| e.to_string());
                    return out.push(text(format!("error parsing {source}: {why}")));
                }
            }
        }
        return;
    }
    for part in parts(&text_of) {
        match codec::yaml::parse(&part) {
            Ok(all) => all.into_iter().for_each(|v| object(source, v, refusal, out)),
            Err(e) => {
                out.push(text(format!("error parsing {source}: error converting YAML to JSON: {e}")));
            }
        }
    }
}

/// Why there is no JSON value at `begins`, in the words of upstream's decoder of streams.
fn syntax_error(text: &[u8], begins: usize) -> Option<String> {
    let (why, at) = schema::decode::syntax::wrong_at(text.get(begins..)?)?;
    Some(match begins + at {
        end if end >= text.len() => "unexpected EOF".into(),
        // The decoder has read the wrong character.
        before => format!("json: offset {}: {why}", before + 1),
    })
}

/// Whether a text that begins with a brace is YAML and no JSON.
fn is_flow(bytes: &[u8], text: &str) -> bool {
    let mut reader = serde_json::Deserializer::from_slice(bytes).into_iter::<serde::de::IgnoredAny>();
    let first_is_json = reader.next().is_none_or(|r| !matches!(r, Err(e) if e.is_syntax()));
    let nested = meta::depth::of_text(bytes) > meta::depth::READ;
    !first_is_json && !nested && codec::yaml::parse(text).is_ok_and(|all| all.iter().all(|v| v.is_object()))
}

/// The documents between lines of three dashes.
fn parts(text: &str) -> Vec<String> {
    let mut out = vec![String::new()];
    for line in text.split_inclusive('\n') {
        if line.starts_with("---") && line[3..].chars().next().is_none_or(char::is_whitespace) {
            out.push(String::new());
        } else if let Some(last) = out.last_mut() {
            last.push_str(line);
        }
    }
    out.retain(|p| p.lines().any(|l| !l.trim().is_empty() && !l.trim_start().starts_with('#')));
    out
}

fn object(source: &str, v: Value, refusal: Refusal, out: &mut Vec<Result<Document>>) {
    let shown = codec::json::to_string(&v, codec::json::Html::Keep);
    let Some(o) = Object::from_value(v) else {
        if shown != "null" {
            out.push(text(format!("unable to decode {source:?}: json: cannot unmarshal {shown} into Go value of type unstructured.detector")));
        }
        return;
    };
    if o.0.is_empty() {
        return;
    }
    let missing: Vec<&str> = [("apiVersion", o.api_version()), ("kind", o.kind())]
        .iter()
        .filter(|(_, v)| v.is_empty())
        .map(|(n, _)| *n)
        .collect();
    if missing.contains(&"kind") && refusal == Refusal::Decoding {
        return out.push(text(format!("unable to decode {source:?}: Object 'Kind' is missing in '{shown}'")));
    }
    if !missing.is_empty() {
        let what = match missing.as_slice() {
            [one] => format!("{one} not set"),
            many => format!("[{}]", many.iter().map(|n| format!("{n} not set")).collect::<Vec<_>>().join(", ")),
        };
        return out.push(text(format!(
            "error validating {source:?}: error validating data: {what}; if you choose to ignore these errors, turn validation off with --validate=false"
        )));
    }
    if o.kind().ends_with("List")
        && let Some(items) = o.get("items").and_then(Value::as_array)
    {
        for item in items.clone() {
            object(source, item, refusal, out);
        }
        return;
    }
    if let Some(why) = mistyped(o.get("metadata").unwrap_or(&Value::Null)) {
        return out.push(text(format!("unable to decode {source:?}: json: cannot unmarshal {why}")));
    }
    out.push(Ok(Document { source: source.to_owned(), object: o }));
}

/// What of the metadata no `ObjectMeta` can hold, as Go's decoder complains: a name like `y` or `12` that YAML does not take for
/// a text, for instance.
fn mistyped(metadata: &Value) -> Option<String> {
    let is = |v: &Value| match v {
        Value::Null => None,
        Value::Bool(_) => Some("bool"),
        Value::Number(_) => Some("number"),
        Value::String(_) => Some("string"),
        Value::Array(_) => Some("array"),
        Value::Object(_) => Some("object"),
    };
    let wrong = |v: &Value, wanted: &str, go: &str, field: &str| {
        let found = is(v).filter(|f| *f != wanted)?;
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
        documents("f", text.as_bytes(), Refusal::Decoding, &mut out);
        out.iter()
            .map(|r| match r {
                Ok(d) => format!("{}/{}", d.object.kind(), d.object.name()),
                Err(e) => format!("!{e}"),
            })
            .collect()
    }

    /// Groundwork of A01: many documents, lists, and bad ones between good ones.
    #[test]
    fn files_are_taken_apart() {
        let doc = |n: &str| format!("apiVersion: v1\nkind: A\nmetadata: {{name: {n}}}\n");
        assert_eq!(read(&format!("# c\n---\n{}---\n---\n{}", doc("a"), doc("b"))), ["A/a", "A/b"]);
        assert_eq!(
            read(
                r#"{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"B","metadata":{"name":"x"}}]} {"apiVersion":"v1","kind":"C"}"#
            ),
            ["B/x", "C/"]
        );
        let mixed = read(&format!("{}---\na: [\n---\nkind: X\n---\napiVersion: v1\n---\n{}", doc("a"), doc("b")));
        assert_eq!(mixed.len(), 5);
        assert_eq!((mixed[0].as_str(), mixed[4].as_str()), ("A/a", "A/b"));
        assert!(mixed[1].starts_with("!error parsing f: error converting YAML to JSON: yaml:"), "{}", mixed[1]);
        assert!(mixed[2].contains("apiVersion not set"));
        assert_eq!(mixed[3], "!unable to decode \"f\": Object 'Kind' is missing in '{\"apiVersion\":\"v1\"}'");
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
            for (before, want) in [("", vec![]), (good, vec!["C/".to_owned()])] {
                let why = match why {
                    (0, why) => why.to_owned(),
                    (offset, why) => format!("json: offset {}: {why}", offset + before.len()),
                };
                let want = [want, vec![format!("!error parsing f: {why}")]].concat();
                assert_eq!(read(&format!("{before}{json}")), want);
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
